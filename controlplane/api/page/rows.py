"""The tables: pools, replicas, nodes with GPUs, as rows of cells; the worst first, a page at a time."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from controlplane.api.page import cells
from controlplane.api.page.cells import NOTHING, Cell, Tone
from controlplane.signals.decision import Standing
from controlplane.signals.node import GpuVerdict, NodeHealth
from controlplane.signals.snapshot import (
    Condition,
    FleetSnapshot,
    PoolSnapshot,
    ReplicaSnapshot,
    ReplicaState,
    Trend,
)
from controlplane.signals.status import Objective, Status
from controlplane.terminal.figures import age, count, percent

REPLICAS_A_PAGE = 50
NODES_A_PAGE = 20

T = TypeVar("T")


class Column(NamedTuple):
    """`help` explains the title. Columns that are `spare` 1 are left out on a phone, those that are 2 on most
    screens. Words stand on the left of their column, figures on its right."""

    title: str
    help: str = ""
    spare: int = 0
    is_text: bool = False


class Row(NamedTuple):
    """One thing: its name, a cell a column, and sentences about it."""

    name: str
    cells: tuple[Cell, ...]
    sentences: tuple[str, ...] = ()
    tone: Tone = ""


class Part(NamedTuple, Generic[T]):
    """Page `number` (from 1) of `pages`, out of `total` things."""

    items: tuple[T, ...]
    number: int
    pages: int
    total: int


class Wanted(NamedTuple):
    """What is to be shown: of the replicas those of `pool` ("": all) whose name holds `text`, and which page;
    of the nodes which page."""

    text: str = ""
    pool: str = ""
    troubled: bool = False
    page: int = 1
    node_page: int = 1


# -- pools -----------------------------------------------------------------------------------------

POOL_COLUMNS = (
    Column("goodput", "share of requests within the objective, as the interval that is proven"),
    Column("up", "replicas that are up, of all"),
    Column("wanted", "replicas that it should have, where it is scaled", spare=1),
    Column("run", "requests running in the engines", spare=1),
    Column("wait", "requests waiting in the engines"),
    Column("KV max", "use of the fullest KV cache"),
    Column("out tok/s", "output tokens a second", spare=1),
    Column("TTFT p95", "time to the first token, 95th percentile"),
    Column("TPOT p95", "time per output token, 95th percentile"),
    Column("preempt/s", "preemptions a second", spare=1),
    Column("control", "what controlplane may do here", is_text=True),
)


def pool_rows(snapshot: FleetSnapshot, status: Status, now: float) -> list[Row]:
    """A row for each pool, the worst first."""
    pools = sorted(snapshot.pools.values(), key=lambda pool: _pool_rank(pool, status))
    return [_pool_row(pool, status, now) for pool in pools]


def _pool_row(pool: PoolSnapshot, status: Status, now: float) -> Row:
    objective, load = status.objectives.get(pool.name), pool.load
    up: Tone = "bad" if not pool.replicas_up else "warn" if pool.replicas_up < pool.replicas else ""
    goodput = cells.goodput(pool.goodput, objective)
    row = (
        goodput,
        Cell(f"{pool.replicas_up}/{pool.replicas}", up),
        cells.scale(pool.scale),
        cells.number(load.running, now),
        cells.number(load.waiting, now, tone=cells.some("warn")),
        cells.number(load.kv_usage, now, percent, cells.kv_tone),
        cells.number(load.generation_tokens_per_second, now),
        cells.p95(pool.latency.ttft, now, None if objective is None else objective.ttft_seconds),
        cells.p95(pool.latency.tpot, now, None if objective is None else objective.tpot_seconds),
        cells.number(load.preemptions_per_second, now, tone=cells.some("warn")),
        control(status.pool_standings.get(pool.name, {})),
    )
    return Row(pool.name, row, _sentences(pool.conditions, now), goodput.tone)


def control(standings: dict[str, Standing]) -> Cell:
    """What the actuators of a pool may do, in a word where they agree."""
    if not standings:
        return Cell("nobody acts", "dim", "no gateway, Envoy or webhook of this pool is configured")
    why = ", ".join(f"{name}: {standing}" for name, standing in standings.items())
    words = sorted({str(standing) for standing in standings.values()})
    tone: Tone = "held" if Standing.HELD in standings.values() else "dim" if words == ["observe"] else "warn"
    return Cell("/".join(words), tone, why)


def boundary(snapshot: FleetSnapshot, status: Status, now: float) -> str:
    """What parts the short pool from the long one, in a sentence; "" where nothing does."""
    of = snapshot.boundary
    if of is None:
        return ""
    standing = "nobody acts on it" if status.boundary_standing is None else str(status.boundary_standing)
    in_force = "" if of.in_force in (None, of.tokens) else f", the gateways go by {of.in_force:,}"
    words = f"{of.tokens:,} tokens for {age(now - of.since)}{in_force} ({standing})"
    return f"Boundary between {of.short} and {of.long}: {words}: {of.detail}"


def _pool_rank(pool: PoolSnapshot, status: Status) -> tuple[int, str]:
    ratio, objective = pool.goodput.ratio, status.objectives.get(pool.name)
    tone = "unknown" if ratio is None else cells.goodput_tone(ratio.low, ratio.high, objective)
    return _RANKS.index(tone), pool.name


_RANKS: tuple[Tone, ...] = ("bad", "warn", "unknown", "held", "dim", "", "good")


# -- replicas --------------------------------------------------------------------------------------

REPLICA_COLUMNS = (
    Column("pool", spare=1, is_text=True),
    Column("state", is_text=True),
    Column("goodput", "share of requests within the objective, as the interval that is proven"),
    Column("run", "requests running", spare=1),
    Column("wait", "requests waiting"),
    Column("limit", "sequences it may hold at once; in brackets what is in force where that is another"),
    Column("because", "what moved the limit last, or held it", spare=1, is_text=True),
    Column("KV", "use of its fullest KV cache"),
    Column("out tok/s", "output tokens a second", spare=2),
    Column("TTFT p95", "time to the first token, 95th percentile", spare=1),
    Column("TPOT p95", "time per output token, 95th percentile", spare=1),
    Column("fails", "pages that were not read since the daemon's start", spare=2),
    Column("age", "of its last page"),
)

_STATE_RANKS = (
    ReplicaState.UNREACHABLE,
    ReplicaState.NOT_AN_ENGINE,
    ReplicaState.UNSEEN,
    ReplicaState.UP,
    ReplicaState.ASLEEP,
)


def replica_rows(snapshot: FleetSnapshot, status: Status, wanted: Wanted, now: float) -> Part[Row]:
    """The replicas that are wanted, the troubled first."""
    chosen = [r for r in snapshot.replicas.values() if _is_wanted(r, wanted)]
    chosen.sort(key=_replica_rank)
    return _part(chosen, wanted.page, REPLICAS_A_PAGE, lambda replica: _replica_row(replica, status, now))


def is_troubled(replica: ReplicaSnapshot) -> bool:
    """Whether there is something to say of it."""
    well = replica.state in (ReplicaState.UP, ReplicaState.ASLEEP)
    return (
        not well
        or bool(replica.conditions)
        or replica.quarantined_since is not None
        or replica.out is not None
        or not replica.was_ready
    )


def _is_wanted(replica: ReplicaSnapshot, wanted: Wanted) -> bool:
    return (
        wanted.pool in ("", replica.pool)
        and wanted.text.lower() in replica.name.lower()
        and (not wanted.troubled or is_troubled(replica))
    )


def _replica_rank(replica: ReplicaSnapshot) -> tuple[bool, bool, int, int, str, str]:
    """By what changes seldom, so that rows stay where they are while somebody reads them."""
    state = _STATE_RANKS.index(replica.state)
    is_well = replica.quarantined_since is None
    return not is_troubled(replica), is_well, state, -len(replica.conditions), replica.pool, replica.name


def _replica_row(replica: ReplicaSnapshot, status: Status, now: float) -> Row:
    objective: Objective | None = status.objectives.get(replica.pool)
    load, limit = replica.load, replica.limit
    fails = status.scrape_failures.get(replica.name, 0)
    sustained = replica.preemption_trend is Trend.SUSTAINED
    row = (
        Cell(replica.pool, "dim"),
        cells.state(replica),
        cells.goodput(replica.goodput, objective),
        cells.number(load.running, now),
        cells.number(load.waiting, now, tone=cells.some("warn")),
        cells.limit(limit, status.limit_standings.get(replica.name)),
        NOTHING if limit is None else Cell(limit.reason, "dim", limit.detail),
        cells.number(load.kv_usage, now, percent, cells.kv_tone),
        cells.number(load.generation_tokens_per_second, now),
        cells.p95(replica.latency.ttft, now, None if objective is None else objective.ttft_seconds),
        cells.p95(replica.latency.tpot, now, None if objective is None else objective.tpot_seconds),
        Cell(count(fails), "warn" if fails else "dim"),
        cells.since(replica.last_scrape_at, now),
    )
    sentences = _sentences(replica.conditions, now)
    if replica.detail and replica.state is not ReplicaState.UP and not sentences:
        sentences = (replica.detail,)
    if sustained:
        sentences = (*sentences, "it preempts again and again")
    if replica.quarantined_since is not None:
        out = (
            f"it is out of rotation for {age(now - replica.quarantined_since)}: its GPU is held to be broken"
        )
        sentences = (*sentences, out)
    elif replica.out is not None:
        is_out = "is" if replica.name in status.out else "should be"
        why = f"it {is_out} out of rotation for {age(now - replica.out.since)}: {replica.out.detail}"
        sentences = (*sentences, why)
    elif replica.state is ReplicaState.UP and not replica.was_ready:
        sentences = (*sentences, "it gets no requests yet: it has not made a token since it was started")
    return Row(replica.name, row, sentences, "bad" if is_troubled(replica) else "")


# -- nodes -----------------------------------------------------------------------------------------

NODE_COLUMNS = (
    Column("GPUs", "how many are known"),
    Column("seen", "since when nobody sees them", is_text=True),
    Column("verdict", "what is held against them, and how far it has come", is_text=True),
    Column("taken out", "our mark on the node", is_text=True),
)


def node_rows(snapshot: FleetSnapshot, wanted: Wanted, now: float) -> Part[Row]:
    """The nodes with GPUs, those with verdicts first, then those nobody sees."""
    chosen = sorted(snapshot.nodes.values(), key=_node_rank)
    return _part(chosen, wanted.node_page, NODES_A_PAGE, lambda node: _node_row(node, now))


def _node_rank(node: NodeHealth) -> tuple[bool, bool, bool, str]:
    return node.quarantined is None, not node.verdicts, node.blind_since is None, node.name


def gpus_in_words(snapshot: FleetSnapshot) -> str:
    """All GPUs in one clause."""
    nodes = snapshot.nodes.values()
    gpus, faulty = sum(node.gpus for node in nodes), sum(len(node.verdicts) for node in nodes)
    blind = sum(node.blind_since is not None for node in nodes)
    words = f"{gpus:,} GPUs on {len(nodes):,} nodes, {faulty} with faults"
    return f"{words}; nobody sees those of {blind} node{'s' * (blind > 1)}" if blind else words


def _node_row(node: NodeHealth, now: float) -> Row:
    blind, mark = node.blind_since, node.quarantined
    faults = len(node.verdicts)
    stages = ", ".join(sorted({verdict.stage for verdict in node.verdicts}))
    row = (
        Cell(count(node.gpus)),
        Cell("yes", "dim") if blind is None else Cell(f"not for {age(now - blind)}", "unknown", "cannot see"),
        Cell(f"{faults} faulty: {stages}", "bad") if faults else Cell("none", "dim"),
        NOTHING if mark is None else Cell(f"{mark.kind} for {age(now - mark.since)}", "held", mark.reason),
    )
    return Row(node.name, row, tuple(_verdict(one, now) for one in node.verdicts), "bad" if faults else "")


def _verdict(verdict: GpuVerdict, now: float) -> str:
    why = f"; not acted on: {verdict.why}" if verdict.why else ""
    what = f"{verdict.uuid}: {verdict.sentence}"
    return f"{what} ({verdict.check}, {verdict.stage} for {age(now - verdict.since)}, {verdict.remedy}{why})"


# -- parts -----------------------------------------------------------------------------------------


def _sentences(conditions: Iterable[Condition], now: float) -> tuple[str, ...]:
    return tuple(f"{c.sentence} (for {age(now - c.since)})" for c in conditions)


def _part(chosen: Sequence[T], number: int, size: int, made: Callable[[T], Row]) -> Part[Row]:
    pages = max(1, -(-len(chosen) // size))
    number = min(max(1, number), pages)
    shown = chosen[(number - 1) * size : number * size]
    return Part(tuple(made(one) for one in shown), number, pages, len(chosen))
