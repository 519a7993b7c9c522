"""The `faults` of a scenario: what goes wrong when, with which replica or node, and for how long.

`at` is in seconds of the run. A fault without `for` lasts to the end.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from controlplane.simulator.scenario.strict import LongerThanNothing, Seconds, SomeShare, Strict


class _Fault(Strict):
    at: Seconds

    @property
    def lasts(self) -> float | None:
        return None


class _Lasting(_Fault):
    duration: LongerThanNothing | None = Field(None, alias="for")

    @property
    def lasts(self) -> float | None:
        return self.duration


class Lost(_Lasting):
    """The process is gone with all its requests, and nothing answers; after `for` a new one does."""

    kind: Literal["lost"]
    replica: str


class Restarted(_Fault):
    """The process ends with all its requests and begins anew; it answers after a cold start."""

    kind: Literal["restarted"]
    replica: str


class Started(_Fault):
    """The replica is not there before `at`, when its cold start begins."""

    kind: Literal["started"]
    replica: str


class Wedged(_Lasting):
    """No step of the engine ends, while its server goes on answering."""

    kind: Literal["wedged"]
    replica: str


class Slowed(_Lasting):
    """The engine runs at the share `to` of its speed: its GPUs are too hot."""

    kind: Literal["slowed"]
    replica: str
    to: SomeShare


class Xid(_Lasting):
    """A GPU of the node reports an XID error that ends the work on it (79: it fell off the bus).

    All replicas on the node are lost; after `for` new ones answer.
    """

    kind: Literal["xid"]
    node: str
    code: int = Field(ge=1, le=1000)


class _OfScrapes(_Lasting):
    replica: str | None = None  # None: all


class ScrapeSlow(_OfScrapes):
    """Pages take `seconds`; over the timeout they are lost."""

    kind: Literal["scrape-slow"]
    seconds: LongerThanNothing


class ScrapeFailing(_OfScrapes):
    """No page arrives."""

    kind: Literal["scrape-failing"]


class ScrapeFrozen(_OfScrapes):
    """Every page is the one from before: something in between caches."""

    kind: Literal["scrape-frozen"]


class ScrapeNan(_OfScrapes):
    """The gauges on the page are NaN."""

    kind: Literal["scrape-nan"]


class PrometheusAway(_Lasting):
    """What the daemon asks does not answer, for the whole fleet."""

    kind: Literal["prometheus-away"]


ScrapeFault: TypeAlias = ScrapeSlow | ScrapeFailing | ScrapeFrozen | ScrapeNan | PrometheusAway
ReplicaFault: TypeAlias = Lost | Restarted | Started | Wedged | Slowed | Xid
Fault: TypeAlias = Annotated[ReplicaFault | ScrapeFault, Field(discriminator="kind")]
