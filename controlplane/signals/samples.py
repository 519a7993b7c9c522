"""What the sources bring to one tick: scrapes, query answers, gateway outcomes, targets, orders.

A sample is a fact with the time at which it was taken. Cumulative values stay cumulative here; only
the tick, which remembers the sample before, turns them into rates. The journal stores these values as
they are, so that `controlplane replay` can hand them to the tick again.
"""

import msgspec

from controlplane.signals.decision import Orders
from controlplane.signals.gpu import NodeSample
from controlplane.signals.histogram import Histogram
from controlplane.signals.kept import Handed
from controlplane.signals.node import NodeFacts, Placement
from controlplane.signals.pod import PodNews
from controlplane.signals.probe import Probe
from controlplane.signals.reading import Reason
from controlplane.signals.size_class import SizeClass
from controlplane.signals.snapshot import Quantiles


class Target(msgspec.Struct, frozen=True):
    """One engine endpoint that should be there; `name` is unique in the fleet.

    `engine` is "auto" where the page tells what it is, "ollama" where only an API can be asked. `pod` is
    "namespace/name" where a cluster told of it, else empty.
    """

    name: str
    pool: str
    url: str
    engine: str = "auto"
    pod: str = ""


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

    `first_token` is of the seconds from sending a request to its first token; streams that have waited for it
    for longer than the objective count too, with their age at the end. `late` first tokens came later than
    the objective after the request was offered, so the queue's part is in it. `gaps` counts gaps between two
    tokens of one stream that ended in the window, `gap_seconds` adds them up; `whole_tokens` are those after
    the first of answers that came whole. `overloaded` requests were refused by the engine for load. In flight
    are sequences, at the end, at most, and on average over the window; `reserved_tokens` is what they are
    likely to need of KV cache in the end, likewise. `paced` answers of two tokens and more finished, and
    `slow` of them missed the TPOT objective or, if they came whole, both objectives together. `output_tokens`
    and `token_steps` are the sums over finished requests of out and of out * (in + out/2), for
    `policy/limits/kv_ceiling`. `limit` was in force at the end, for the whole replica; None where the gateway
    was never told and found none.
    """

    sent: int = 0
    finished: int = 0
    failed: int = 0
    overloaded: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    mean_in_flight: float | None = None
    reserved_tokens: int = 0
    max_reserved_tokens: int = 0
    paced: int = 0
    slow: int = 0
    late: int = 0
    first_token: Quantiles | None = None
    gaps: int = 0
    gap_seconds: float = 0.0
    whole_tokens: int = 0
    output_tokens: int = 0
    token_steps: float = 0.0
    limit: float | None = None


TENANT_REASONS = "tenant_"
"""How reasons begin for which a gateway refuses a tenant that is over its own quota, whatever the load.
Such a refusal is a promise kept, not one broken: it counts in no goodput and wakes nobody."""


class OutcomeWindow(msgspec.Struct, frozen=True):
    """What a gateway saw of one pool from `start` to `end` (Unix seconds): requests by how they ended.

    `offered` = finished + failed + gave up + shed in that window. `good` requests met every objective;
    tokens are prompt plus output. `client_errors` (the request itself was wrong) are not among the offered.
    `would_shed` counts what observing let through and enforcing would have shed, by reason. `wait` is of the
    seconds that requests let in had waited in the gateway's queue, `queued` waited there at the end. `sizes`
    is by size class, by the size that requests are routed by (see `size_class.EDGES` for the keys). A gateway
    that `is_alone` sets its limits itself: nobody steers it. Of a short pool `boundary_tokens` is the
    boundary that the gateway goes by, `longest_tokens` the longest sequence that the pool takes (None: not
    known). `asked` requests came, which are likely to need `asked_tokens` of KV cache in the end.
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
    sizes: dict[int, SizeClass] = {}
    is_alone: bool = False
    boundary_tokens: int | None = None
    longest_tokens: int | None = None
    asked: int = 0
    asked_tokens: int = 0

    @property
    def refused(self) -> int:
        """Requests shed for want of room or time, not for their tenant's own quota."""
        return sum(n for reason, n in self.shed.items() if not reason.startswith(TENANT_REASONS))


class Samples(msgspec.Struct, frozen=True):
    """All that arrived since the last tick. None where something did not change.

    `gpu_nodes` are the nodes whose GPUs should be seen, `placements` say where replicas run. `node_facts`
    are of all nodes of the cluster. `handed` is what another leader left. The replicas `triable` can be
    asked for a token.
    """

    targets: tuple[Target, ...] | None = None
    orders: Orders | None = None
    scrapes: tuple[Scrape | ScrapeFailure, ...] = ()
    outcomes: tuple[OutcomeWindow, ...] = ()
    gpus: tuple[NodeSample, ...] = ()
    gpu_nodes: tuple[str, ...] | None = None
    placements: tuple[Placement, ...] | None = None
    node_facts: dict[str, NodeFacts] | None = None
    pods: PodNews | None = None
    handed: Handed | None = None
    probes: tuple[Probe, ...] = ()
    triable: frozenset[str] | None = None

    def then(self, later: "Samples") -> "Samples":
        """Both together: what came adds up; of what stays until it changes, the later word counts."""
        news = {name: (*getattr(self, name), *getattr(later, name)) for name in _NEWS}
        changes = {name: change for name in _STANDING if (change := getattr(later, name)) is not None}
        if self.pods is not None and later.pods is not None:
            changes["pods"] = self.pods.then(later.pods)
        return msgspec.structs.replace(self, **news, **changes)

    def standing(self) -> "Samples":
        """Only what stays until it changes, and is therefore told once."""
        return Samples(**{name: getattr(self, name) for name in _STANDING})


_NEWS = ("scrapes", "outcomes", "gpus", "probes")
_STANDING = tuple(name for name in Samples.__struct_fields__ if name not in _NEWS)
