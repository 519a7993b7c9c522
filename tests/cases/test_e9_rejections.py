"""Case E9: every "come back later" says when, and not the same to all."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.refusal import (
    Refusal,
    RefusalReason,
    bad_request,
    spread,
    upstream_overloaded,
)
from controlplane.gateway.admission.replica import ReplicaSpec, Rotation
from controlplane.gateway.admission.request import Fault, Request
from controlplane.gateway.admission.settings import AdmissionSettings, TenantSettings
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused
from controlplane.signals.decision import Mode

CASE = yaml.safe_load((Path(__file__).parent / "data/E9/rejections.yaml").read_text())
ROWS = {row["cause"]: row for row in CASE["rows"]}
NOW = 1000.0
PEOPLE = 100

Refuse = Callable[[], list[Refusal]]


def admission(limit: float = 1.0, kv_tokens: int = 100_000, **settings: Any) -> Admission:
    made = Admission(AdmissionSettings(mode=Mode.ENFORCE, **settings), gateway="gw", now=NOW)
    made.set_replicas([ReplicaSpec(name="r", pool="chat", kv_tokens=kv_tokens, models=("m",))], NOW)
    made.set_limits({"r": limit}, {}, NOW)
    return made


def ask(tokens: int = 1000, **more: Any) -> Request:
    return Request(**({"tenant": "t", "model": "m", "prompt_tokens": tokens, "output_tokens": 0} | more))


def refusals(gate: Admission, at: float, request: Request | None = None) -> list[Refusal]:
    """What a hundred clients are told within one second."""
    rng = random.Random(3)
    told = []
    for i in range(PEOPLE):
        outcome = gate.offer(request or ask(), at + i / PEOPLE, rng.random())
        assert isinstance(outcome, Refused), outcome
        told.append(outcome.refusal)
    return told


def tenant_token_quota() -> list[Refusal]:
    gate = admission(limit=1e6, tenants={"t": TenantSettings(tokens_per_minute=6000)})
    assert isinstance(gate.offer(ask(5500), NOW, 0.5), Admitted)
    told = refusals(gate, NOW, ask(2000))
    # 500 tokens are left, 100 come each second: 2000 are there after 15 s, and 14 s for the last one told.
    assert all(int(refusal.retry_after or 0) >= 14 for refusal in told)
    assert isinstance(gate.offer(ask(2000), NOW + 15.01, 0.5), Admitted), "the time that was told is true"
    return told


def tenant_in_flight_limit() -> list[Refusal]:
    gate = admission(limit=1e6, tenants={"t": TenantSettings(sequences=2)})
    assert isinstance(gate.offer(ask(sequences=2), NOW, 0.5), Admitted)
    return refusals(gate, NOW)


def full(gate: Admission, size: int) -> float:
    """Overload it for three seconds at one end in a quarter of a second; returns the time."""
    rng = random.Random(5)
    running = []
    now = NOW
    for step in range(60):
        now = NOW + step * 0.05
        outcome = gate.offer(ask(size), now, rng.random())
        if isinstance(outcome, Admitted):
            running.append(outcome.ticket)
        if step % 5 == 4:
            gate.finished(running.pop(0), now, Usage(size, 0))
        running += [outcome.ticket for outcome in gate.poll(now) if isinstance(outcome, Admitted)]
    return now


def kv_reservation_full() -> list[Refusal]:
    gate = admission(limit=1e6)
    now = full(gate, 60_000)
    told = refusals(gate, now, ask(60_000))
    assert all(1 <= int(refusal.retry_after or 0) <= 60 for refusal in told)
    return told


def queue_wait_expired() -> list[Refusal]:
    gate = admission()
    assert isinstance(gate.offer(ask(), NOW, 0.5), Admitted)
    rng = random.Random(3)
    for i in range(PEOPLE):
        assert isinstance(gate.offer(ask(), NOW + i / PEOPLE, rng.random()), Queued)
    told = []
    for step in range(40):
        for outcome in gate.poll(NOW + 1 + step * 0.1):
            assert isinstance(outcome, Refused)
            told.append(outcome.refusal)
    return told


def breaker_open() -> list[Refusal]:
    gate = admission(limit=1e6)
    for _ in range(5):
        outcome = gate.offer(ask(), NOW, 0.5)
        assert isinstance(outcome, Admitted)
        assert gate.failed(outcome.ticket, NOW, Fault.BROKEN) is None
    told = refusals(gate, NOW + 0.5)
    until = NOW + AdmissionSettings().breaker.open_for
    assert all(int(refusal.retry_after or 0) >= until - (NOW + 1.5) for refusal in told)
    return told


def no_ready_replica() -> list[Refusal]:
    gate = admission()
    gate.set_replicas([ReplicaSpec(name="r", pool="chat", models=("m",), rotation=Rotation.UNREADY)], NOW)
    return refusals(gate, NOW)


def replica_starting_from_zero() -> list[Refusal]:
    gate = admission()
    spec = ReplicaSpec(
        name="r", pool="chat", models=("m",), rotation=Rotation.STARTING, ready_expected_at=NOW + 40
    )
    gate.set_replicas([spec], NOW)
    told = refusals(gate, NOW)
    assert all(int(refusal.retry_after or 0) >= 39 for refusal in told)
    return told


def upstream_429_with_header() -> list[Refusal]:
    date = "Mon, 30 Nov 2026 01:19:16 GMT"
    rng = random.Random(3)
    told = [upstream_overloaded({"retry-after": date}, 429, 3.0, rng.random()) for _ in range(PEOPLE)]
    assert {refusal.retry_after for refusal in told} == {date}
    assert upstream_overloaded({"retry-after": "17"}, 429, 3.0, 0.9).retry_after == "17"
    return told


def upstream_429_without_header() -> list[Refusal]:
    rng = random.Random(3)
    return [upstream_overloaded({}, 429, 3.0, rng.random()) for _ in range(PEOPLE)]


def unknown_model() -> list[Refusal]:
    return refusals(admission(), NOW, ask(model="no-such"))


def bad_json() -> list[Refusal]:
    return [bad_request(RefusalReason.BAD_JSON, "the body is no JSON object: it ends after 12 bytes")]


CAUSES: dict[str, Refuse] = {
    make.__name__: make
    for make in (
        tenant_token_quota,
        tenant_in_flight_limit,
        kv_reservation_full,
        queue_wait_expired,
        breaker_open,
        no_ready_replica,
        replica_starting_from_zero,
        upstream_429_with_header,
        upstream_429_without_header,
        unknown_model,
        bad_json,
    )
}


def test_E9_every_row_of_the_case_is_there() -> None:
    assert CAUSES.keys() == ROWS.keys()


@pytest.mark.parametrize("cause", ROWS)
def test_E9_status_header_and_body(cause: str) -> None:
    row, told = ROWS[cause], CAUSES[cause]()
    assert told
    for refusal in told:
        assert refusal.status == row["status"]
        assert refusal.headers["content-type"] == "application/json"
        error = json.loads(refusal.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["type"]
        if not cause.startswith("upstream"):
            assert error["code"] == cause
        if row["retry_after"] == "absent":
            assert "retry-after" not in refusal.headers
        elif "own value" not in row["retry_after"]:
            assert int(refusal.headers["retry-after"]) >= 1
            assert refusal.headers["retry-after"] == str(int(refusal.headers["retry-after"]))


OURS = [
    cause
    for cause, row in ROWS.items()
    if "absent" not in row["retry_after"] and "own" not in row["retry_after"]
]


@pytest.mark.parametrize("cause", OURS)
def test_E9_not_all_come_back_together(cause: str) -> None:
    values = [int(refusal.retry_after or 0) for refusal in CAUSES[cause]()]
    assert len(values) == PEOPLE
    assert max(values) >= 1.2 * min(values)


@pytest.mark.parametrize("seconds", [0.0, 0.2, 1.0, 1.5, 7.0, 39.0, 47.0, 55.0, 60.0, 900.0, float("inf")])
@pytest.mark.parametrize("most", [None, 60])
def test_E9_spread(seconds: float, most: int | None) -> None:
    rng = random.Random(9)
    values = [spread(seconds, rng.random(), most) for _ in range(100)]
    assert min(values) >= 1
    assert max(values) >= 1.2 * min(values)
    if most is None or 1.25 * seconds <= most:
        assert min(values) >= min(seconds, 86_400), "never earlier than computed"
    if most is not None:
        assert max(values) <= most


@pytest.mark.parametrize("cause", ["kv_reservation_full", "queue_wait_expired"])
def test_E9_a_full_tier_tells_the_sdks_not_to_retry(cause: str) -> None:
    assert {refusal.headers.get("x-should-retry") for refusal in CAUSES[cause]()} == {"false"}


@pytest.mark.parametrize("cause", ["tenant_token_quota", "breaker_open", "unknown_model"])
def test_E9_else_the_sdks_decide_themselves(cause: str) -> None:
    assert all("x-should-retry" not in refusal.headers for refusal in CAUSES[cause]())
