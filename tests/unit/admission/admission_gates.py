"""Short ways to make admissions, replicas and requests."""

from typing import Any

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaSpec
from controlplane.gateway.admission.request import Request, ServiceClass
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused, Verdict
from controlplane.signals.decision import Mode

INTERACTIVE, AGENT, BATCH = ServiceClass


def spec(name: str, **more: Any) -> ReplicaSpec:
    return ReplicaSpec(
        **({"name": name, "pool": "chat", "kv_tokens": 100_000, "max_model_len": 32_768} | more)
    )


def gate(
    *replicas: ReplicaSpec | str,
    limit: float = 1e6,
    now: float = 0.0,
    mode: Mode = Mode.ENFORCE,
    **settings: Any,
) -> Admission:
    """An admission that enforces, in front of these replicas, each with the same limit."""
    admission = Admission(AdmissionSettings(mode=mode, **settings), gateway="gw", now=now)
    specs = [spec(each) if isinstance(each, str) else each for each in replicas or ("r0",)]
    admission.set_replicas(specs, now)
    admission.set_limits({each.name: limit for each in specs}, {}, now)
    return admission


def ask(prompt: int = 800, output: int = 200, **more: Any) -> Request:
    return Request(**({"tenant": "t", "prompt_tokens": prompt, "output_tokens": output} | more))


def admitted(verdict: Verdict | None) -> Ticket:
    assert isinstance(verdict, Admitted), verdict
    return verdict.ticket


def queued(verdict: Verdict | None) -> Ticket:
    assert isinstance(verdict, Queued), verdict
    return verdict.ticket


def reason(verdict: Verdict) -> str:
    assert isinstance(verdict, Refused), verdict
    return verdict.refusal.reason.value
