"""The `faults` of a scenario that begin with its GPUs, or with those who watch them.

Each also does to the engines what it does in truth: `xid_effects` says what an XID comes with. What `for`
ends is repaired then: the GPU is reset, or the node boots anew, or another card is put in.
"""

from typing import Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from controlplane.simulator.scenario.lasting import AnyFault, Lasting
from controlplane.simulator.scenario.strict import LongerThanNothing, SomeShare
from controlplane.simulator.scenario.xid_effects import EFFECTS


def _known(code: int) -> int:
    if code not in EFFECTS:
        raise ValueError(f"it is not known what XID {code} does; known are {', '.join(map(str, EFFECTS))}")
    return code


class Xid(Lasting):
    """A GPU reports an XID error, and what comes with it befalls the `replica` on it.

    Of a `node` its first GPU, and all replicas on it.
    """

    kind: Literal["xid"]
    node: str | None = None
    replica: str | None = None
    code: int = Field(ge=1, le=1000)

    _code = field_validator("code")(_known)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.node is None) == (self.replica is None):
            raise ValueError("an XID is of a node or of a replica")
        return self


class XidBefore(AnyFault):
    """The exporter's gauge shows a code that is weeks old, of the replica's GPU, which is well."""

    kind: Literal["xid-before"]
    replica: str
    code: int = Field(ge=1, le=1000)

    _code = field_validator("code")(_known)


class GpuLost(Lasting):
    """The replica's first GPU is gone without a word, with the engine on it; those behind it are numbered
    anew."""

    kind: Literal["gpu-lost"]
    replica: str


class Throttled(Lasting):
    """GPUs of a replica or of a rack run at the share `to` of their speed, for heat or a power brake."""

    kind: Literal["throttled"]
    to: SomeShare
    by: Literal["heat", "power-brake"] = "heat"
    replica: str | None = None
    rack: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.rack is None) == (self.replica is None):
            raise ValueError("throttled are the GPUs of a replica or of a rack")
        return self


class LinkFlaky(Lasting):
    """The PCIe link of the replica's first GPU has a quarter of its lanes and retries; the engine has the
    share `to` of its speed."""

    kind: Literal["link-flaky"]
    replica: str
    to: SomeShare


class ExporterRestarted(Lasting):
    """The source of a `node` (None: of all) is away for `for`, and has forgotten the last XIDs."""

    kind: Literal["exporter-restarted"]
    duration: LongerThanNothing = Field(20.0, alias="for")
    node: str | None = None


class DriverHangs(Lasting):
    """Whoever asks the driver of the node waits for ever; the engines on it go on."""

    kind: Literal["driver-hangs"]
    node: str


class DriverUpgraded(AnyFault):
    """Node after node, one `every` so often, is without its driver and its engines for `each`, and boots with
    a new one."""

    kind: Literal["driver-upgraded"]
    every: LongerThanNothing = 30.0
    each: LongerThanNothing = 60.0


GpuFault: TypeAlias = (
    Xid | XidBefore | GpuLost | Throttled | LinkFlaky | ExporterRestarted | DriverHangs | DriverUpgraded
)
