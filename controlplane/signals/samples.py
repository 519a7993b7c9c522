"""What the sources bring to one tick: scrapes, query answers, gateway outcomes, targets, orders.

A sample is a fact with the time at which it was taken. Cumulative values stay cumulative here; only
the tick, which remembers the sample before, turns them into rates. The journal stores these values as
they are, so that `controlplane replay` can hand them to the tick again.
"""

import msgspec

from controlplane.signals.decision import Orders
from controlplane.signals.histogram import Histogram
from controlplane.signals.reading import Reason
from controlplane.signals.snapshot import Quantiles


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
    lower bound (a Prometheus answer with warnings). `loose` names the histograms that this engine does not
    observe at a request's finish though others do; `gauges_lag` says that its gauges are older than its
    histograms and its tokens are counted late.
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
    loose: tuple[str, ...] = ()
    gauges_lag: bool = False


class ScrapeFailure(msgspec.Struct, frozen=True, tag_field="is", tag="failure"):
    """A page that was not read; `detail` is a sentence that names what went wrong."""

    target: str
    at: float
    reason: Reason
    detail: str


class ReplicaWindow(msgspec.Struct, frozen=True):
    """What a gateway saw of one replica in an outcome window, for the limit laws.

    `first_token` is of the seconds from sending a request to its first token. `gaps` counts gaps between
    two tokens of one stream that ended in the window, `gap_seconds` adds them up. `overloaded` requests were
    refused by the engine for load. In flight are sequences, at the end and at most. `output_tokens` and
    `token_steps` are the sums over finished requests of out and of out * (in + out/2), for
    `policy/limits/kv_ceiling`.
    """

    sent: int = 0
    finished: int = 0
    failed: int = 0
    overloaded: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    first_token: Quantiles | None = None
    gaps: int = 0
    gap_seconds: float = 0.0
    output_tokens: int = 0
    token_steps: float = 0.0


class OutcomeWindow(msgspec.Struct, frozen=True):
    """What a gateway saw of one pool from `start` to `end` (Unix seconds): requests by how they ended.

    `offered` = finished + failed + gave up + shed in that window. `good` requests met every objective;
    tokens are prompt plus output. `client_errors` (the request itself was wrong) are not among the offered.
    `would_shed` counts what observing let through and enforcing would have shed, by reason. `wait` is of the
    seconds that requests let in had waited in the gateway's queue, `queued` waited there at the end.
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
    queued: int = 0
    client_errors: int = 0
    would_shed: dict[str, int] = {}
    tokens_by_tenant: dict[str, int] = {}
    wait: Quantiles | None = None
    replicas: dict[str, ReplicaWindow] = {}


class Samples(msgspec.Struct, frozen=True):
    """All that arrived since the last tick. `targets` and `orders` are None where they did not change."""

    targets: tuple[Target, ...] | None = None
    orders: Orders | None = None
    scrapes: tuple[Scrape | ScrapeFailure, ...] = ()
    outcomes: tuple[OutcomeWindow, ...] = ()
