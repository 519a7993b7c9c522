"""A scenario, as its file has it."""

from typing import Self

from pydantic import Field, model_validator

from controlplane.gateway.admission.settings import AdmissionSettings, ClassSettings
from controlplane.policy.settings import Slo
from controlplane.signals.decision import Mode
from controlplane.signals.units import duration_text
from controlplane.simulator.scenario.faults import Fault
from controlplane.simulator.scenario.fleet import EngineGroup, Scrapes
from controlplane.simulator.scenario.gpus import GpuWatching
from controlplane.simulator.scenario.policies import NamedPolicy, Policy
from controlplane.simulator.scenario.strict import AtLeastOne, LongerThanNothing, Seconds, Several, Strict
from controlplane.simulator.scenario.workload import Workload

LARGEST_SEED = 2**63 - 1
_MOST_REQUESTS = 20_000_000


class Scenario(Strict):
    """`title` is a sentence for people. What happens before `warmup` is not measured.

    `slo` is the objective of interactive requests; those of the other classes, and all else that the gateway
    can be told, are `admission`'s. Its mode follows from the policy. Without `gpus` nobody watches the GPUs.
    """

    title: str = Field(min_length=1)
    duration: LongerThanNothing
    warmup: Seconds = 60.0
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    fleet: AtLeastOne[EngineGroup]
    workload: Workload
    faults: Several[Fault] = ()
    slo: Slo = Slo()
    policy: NamedPolicy = Policy()
    admission: AdmissionSettings = AdmissionSettings()
    scrape: Scrapes = Scrapes()
    gpus: GpuWatching | None = None

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.warmup >= self.duration:
            raise ValueError(
                f"warmup ({duration_text(self.warmup)}) leaves nothing of the "
                f"duration ({duration_text(self.duration)}) to measure"
            )
        return self

    @property
    def replica_names(self) -> tuple[str, ...]:
        return tuple(name for group in self.fleet for name in group.replica_names)

    @property
    def nodes(self) -> dict[str, tuple[str, ...]]:
        """Replicas by node."""
        return {node: names for group in self.fleet for node, names in group.nodes.items()}

    @property
    def admission_settings(self) -> AdmissionSettings:
        """What the gateway is started with."""
        objective = ClassSettings.model_construct(ttft=self.slo.ttft, tpot=self.slo.tpot)
        observes = self.policy.controls and not self.policy.enforce
        mode = Mode.OBSERVE if observes else Mode.ENFORCE
        return self.admission.model_copy(update={"interactive": objective, "mode": mode})

    @property
    def expected_requests(self) -> float:
        """On average, without those of users who wait for their answers."""
        curves = [source.curve for source in self.workload.sources if source.curve is not None]
        return sum(curve.times(self.workload.times).arrivals_until(self.duration) for curve in curves)

    def check_requests(self) -> None:
        """Raises ValueError where more requests are expected than a run can hold."""
        expected = self.expected_requests
        if not expected <= _MOST_REQUESTS:
            raise ValueError(
                f"{expected:.3g} requests in {duration_text(self.duration)} are more than {_MOST_REQUESTS:,}"
            )

    def changed(
        self, *, policy: Policy | None = None, seed: int | None = None, times: float | None = None
    ) -> "Scenario":
        """The same scenario under another policy, with another seed, or at another load."""
        workload = self.workload if times is None else self.workload.model_copy(update={"times": times})
        return self.model_copy(
            update={
                "policy": self.policy if policy is None else policy,
                "seed": self.seed if seed is None else seed,
                "workload": workload,
            }
        )
