"""What the sources bring to one tick: scrapes, query answers, gateway outcomes, targets, orders.

A sample is a fact with the time at which it was taken. Cumulative values stay cumulative here; only
the tick, which remembers the sample before, turns them into rates. The journal stores these values as
they are, so that `controlplane replay` can hand them to the tick again.
"""

import msgspec

from controlplane.signals.decision import Orders
from controlplane.signals.histogram import Histogram
from controlplane.signals.reading import Reason


class Target(msgspec.Struct, frozen=True):
    """One engine endpoint that should be there; `name` is unique in the fleet.

    `engine` is "auto" where the page tells what it is, "ollama" where only an API can be asked.
    """

    name: str
    pool: str
    url: str
    engine: str = "auto"


class Signals(msgspec.Struct, frozen=True):
    """The normalized signals of one engine (or of the server around its engines) on one page.

    Keys are the signal names of the dialect tables. `by` splits a signal by the one label that
    matters (finished by reason, waiting by reason, sleep state, requests by status class); its parts
    add up to the entry of the same name in `numbers` where both are there. `unknown` names signals that
    should be there and have no usable value.
    """

    numbers: dict[str, float] = {}
    by: dict[str, dict[str, float]] = {}
    histograms: dict[str, Histogram] = {}
    unknown: dict[str, Reason] = {}


class Scrape(msgspec.Struct, frozen=True, tag_field="is", tag="scrape"):
    """One page that was read.

    `at` is the Unix time at which the whole page had arrived, `seconds` how long that took. `engines`
    has one entry a data-parallel engine (key: its `engine` label, "0" where the page has none);
    `server` holds what belongs to the process around them. `partial` marks an answer that is only a
    lower bound (a Prometheus answer with warnings).
    """

    target: str
    at: float
    seconds: float
    engine: str
    version: str
    models: tuple[str, ...]
    engines: dict[str, Signals]
    server: Signals
    warnings: tuple[str, ...] = ()
    partial: bool = False


class ScrapeFailure(msgspec.Struct, frozen=True, tag_field="is", tag="failure"):
    """A page that was not read; `detail` is a sentence that names what went wrong."""

    target: str
    at: float
    reason: Reason
    detail: str


class OutcomeWindow(msgspec.Struct, frozen=True):
    """What a gateway saw of one pool from `start` to `end` (Unix seconds): requests by how they ended.

    `offered` = finished + failed + gave up + shed in that window. `good` requests met every objective;
    tokens are prompt plus output.
    """

    gateway: str
    pool: str
    start: float
    end: float
    offered: int
    finished: int
    good: int
    failed: int
    gave_up: int
    shed: dict[str, int]
    tokens: int
    good_tokens: int
    in_flight: int


class Samples(msgspec.Struct, frozen=True):
    """All that arrived since the last tick. `targets` and `orders` are None where they did not change."""

    targets: tuple[Target, ...] | None = None
    orders: Orders | None = None
    scrapes: tuple[Scrape | ScrapeFailure, ...] = ()
    outcomes: tuple[OutcomeWindow, ...] = ()
