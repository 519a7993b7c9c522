"""The `faults` of a scenario: what goes wrong when, with which replica or node, and for how long.

`at` is in seconds of the run. A fault without `for` lasts to the end.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from controlplane.simulator.scenario.gpu_faults import GpuFault
from controlplane.simulator.scenario.lasting import AnyFault, Lasting
from controlplane.simulator.scenario.strict import LongerThanNothing, SomeShare


class Lost(Lasting):
    """The process is gone with all its requests, and nothing answers; after `for` a new one does."""

    kind: Literal["lost"]
    replica: str


class Restarted(AnyFault):
    """The process ends with all its requests and begins anew; it answers after a cold start."""

    kind: Literal["restarted"]
    replica: str


class Started(AnyFault):
    """The replica is not there before `at`, when its cold start begins."""

    kind: Literal["started"]
    replica: str


class Wedged(Lasting):
    """No step of the engine ends, while its server goes on answering."""

    kind: Literal["wedged"]
    replica: str


class Slowed(Lasting):
    """The engine runs at the share `to` of its speed, whatever the reason."""

    kind: Literal["slowed"]
    replica: str
    to: SomeShare


class _OfScrapes(Lasting):
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


class PrometheusAway(Lasting):
    """What the daemon asks does not answer, for the whole fleet."""

    kind: Literal["prometheus-away"]


class DaemonAway(Lasting):
    """The daemon is gone: nobody scrapes, ticks or steers. After `for` it is back with what it remembers."""

    kind: Literal["daemon-away"]


ScrapeFault: TypeAlias = ScrapeSlow | ScrapeFailing | ScrapeFrozen | ScrapeNan | PrometheusAway
ReplicaFault: TypeAlias = Lost | Restarted | Started | Wedged | Slowed
OtherFault: TypeAlias = ReplicaFault | ScrapeFault | DaemonAway
Fault: TypeAlias = Annotated[OtherFault | GpuFault, Field(discriminator="kind")]
