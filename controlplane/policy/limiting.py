"""The limit of each replica: once a window its law looks and moves it, and what it comes to is a decision.

* A window of a pool that gateways of ours report on ends whenever they have told something new, one that is
  only scraped with each new page. Where neither comes it ends all the same, so that the law sees that it is
  blind.
* While a hold or an override keeps the limit where it is, the law looks away: it goes on from there later,
  and nothing jumps.
* A gateway that was alone has set limits by itself. The law goes on from those, not from its own old ones.
* A replica that we see for the first time has the limit that the leader before us left, if there was one;
  else it begins, as after a restart, from half of what the others of its pool have found.
* A person's word on the limit wins over the law, which goes on from there once the word is taken back.
* A limit of which nothing is known (no law, a replica that is gone) is None, never 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from controlplane.policy import growth
from controlplane.policy.limits import kv_ceiling, windows
from controlplane.policy.limits.kv_ceiling import Lengths
from controlplane.policy.limits.law import LimitReason, Window
from controlplane.policy.limits.laws import KeptLaw, KeptState, fits, observe, ordered, resumed
from controlplane.policy.limits.none import NoLimit, NoneState
from controlplane.policy.limits.slo_gradient import SloGradientState
from controlplane.policy.limits.windows import Growth, Page, Sight
from controlplane.policy.memory import LimitMemory, PoolMemory, ReplicaMemory
from controlplane.policy.settings import PolicySettings, Slo
from controlplane.signals.decision import Evidence, Orders, Override
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.snapshot import Distribution, Limit, Number, Quantiles

HEARD_SECONDS = 5.0
"""A gateway that told nothing for so long is not heard: its reports are a second apart."""

_LENGTHS_MEMORY_SECONDS = 60.0


class Round(NamedTuple):
    """What one tick brings for the limits of one pool: the gateways' new windows, the oldest first, and what
    is remembered of the pool, these windows included. `left` are the limits that another leader left,
    `replicas` all of the pool as they were before."""

    told: tuple[OutcomeWindow, ...]
    pool: PoolMemory
    left: Mapping[str, int] = {}
    replicas: Sequence[ReplicaMemory] = ()


class Change(NamedTuple):
    """The limit of a replica after a tick, and the window that its law was told of, None where none ended."""

    limit: LimitMemory
    window: Window | None = None


def hear(
    pool: PoolMemory, told: tuple[OutcomeWindow, ...], replicas: Iterable[ReplicaMemory], now: float
) -> PoolMemory:
    """What is remembered of a pool once the gateways' new windows and its replicas' new pages have come."""
    heard = {gateway: at for gateway, at in pool.heard.items() if now - at <= HEARD_SECONDS}
    heard |= dict.fromkeys((window.gateway for window in told), now)
    decay = math.exp(-max(0.0, now - pool.lengths_at) / _LENGTHS_MEMORY_SECONDS)
    lengths = pool.lengths.decayed(decay)
    if heard:
        for window in told:
            lengths = lengths.with_asked(window.asked, window.asked_tokens)
            for seen in window.replicas.values():
                lengths = lengths.plus(seen.finished, seen.output_tokens, seen.token_steps)
    else:
        for replica in replicas:
            lengths = _with_page(lengths, replica, pool.lengths_at)
    return replace(pool, heard=heard, lengths=lengths, lengths_at=now)


def look(
    replica: ReplicaMemory, round_: Round, settings: PolicySettings, orders: Orders, now: float
) -> Change | None:
    """The limit of one replica after this tick; None where no law limits it."""
    policy = settings.pool(replica.target.pool)
    law, memory = policy.limits, replica.limit
    word = orders.limit(replica.target.name, replica.target.pool)
    if isinstance(law, NoLimit) and word is None and not _is_unlimited(memory):
        return None
    page = _page(replica, policy.max_num_seqs, now)
    in_force, alone = _reported(replica.target.name, round_.told)
    if memory is None:
        left = in_force if alone else round_.left.get(replica.target.name)
        state = (
            _warmed(law.start(), replica.target.name, round_) if left is None else resumed(law, float(left))
        )
        state = state if word is None else _ordered(law, word)
        sight = Sight(now, page.restarts, page.at)
        return Change(LimitMemory(state.slots, state, sight, now, in_force))
    if in_force is not None:
        memory = replace(memory, in_force=in_force)
    if is_held(replica, orders):
        return Change(replace(memory, sight=windows.skipped(memory.sight, page, now)))
    if word is not None:
        return Change(_moved(memory, _ordered(law, word), windows.skipped(memory.sight, page, now), now))
    state = _state(law, memory, in_force if alone else None)
    made = _window(replica, memory.sight, page, round_, settings=settings, now=now)
    if made is None:
        return Change(_moved(memory, state, memory.sight, now))
    window, sight = made
    state = observe(law, state, window)
    if window.restarted:
        state = _warmed(state, replica.target.name, round_)
    return Change(_moved(memory, state, sight, now), window)


def is_held(replica: ReplicaMemory, orders: Orders) -> bool:
    """Whether people keep the limit where it is: a hold, or an override that makes it observe."""
    return orders.keep(("replica", replica.target.name), ("pool", replica.target.pool))


def shown(replica: ReplicaMemory, settings: PolicySettings) -> Limit | None:
    """The limit as the snapshot has it."""
    memory = replica.limit
    if memory is None:
        return None
    state = memory.state
    return Limit(
        law=settings.pool(replica.target.pool).limits.law,
        slots=memory.slots,
        reason=Reason.RESTARTED if state is None else state.reason,
        detail="the clock was set back" if state is None else state.detail,
        since=memory.since,
        in_force=memory.in_force,
        tokens=state.budget_tokens if isinstance(state, SloGradientState) else None,
    )


def _warmed(state: KeptState, name: str, round_: Round) -> KeptState:
    """Begun from half of what the others of its pool have found: the same engine bears about the same, and
    slow start makes good the other half within two windows."""
    found = _found_by_others(name, round_)
    if found is None or not isinstance(state, SloGradientState) or found / 2 <= state.limit:
        return state
    why = f"begins with half of the {found} that the others of its pool have found"
    return replace(state, limit=found / 2, detail=why)


def _found_by_others(name: str, round_: Round) -> int | None:
    """The middle one of their limits; None while all of them search."""
    others = (replica.limit for replica in round_.replicas if replica.target.name != name)
    states = [limit.state for limit in others if limit is not None]
    found = sorted(
        state.slots for state in states if isinstance(state, SloGradientState) and not state.starting
    )
    return found[(len(found) - 1) // 2] if found else None


def _ordered(law: KeptLaw, word: Override) -> KeptState:
    return ordered(law, int(word.value), f"{word.by} ordered it ({word.reason})")


def _is_unlimited(memory: LimitMemory | None) -> bool:
    """Whether a replica that no law limits has, or had, an ordered limit: actuators must hear of its end."""
    return memory is not None and isinstance(memory.state, NoneState)


def _state(law: KeptLaw, memory: LimitMemory, alone_with: float | None) -> KeptState:
    """What the law goes on from: its own state, or a limit that others have found."""
    state = memory.state
    if alone_with is not None and int(alone_with) != memory.slots:
        return resumed(law, alone_with)
    if state is None or not fits(law, state) or state.reason is LimitReason.ORDERED:
        return resumed(law, float(memory.slots))
    return state


def _moved(memory: LimitMemory, state: KeptState, sight: Sight, now: float) -> LimitMemory:
    since = memory.since if state.slots == memory.slots else now
    return LimitMemory(state.slots, state, sight, since, memory.in_force)


def _window(
    replica: ReplicaMemory, sight: Sight, page: Page, round_: Round, *, settings: PolicySettings, now: float
) -> tuple[Window, Sight] | None:
    """The window that ends now; None where none does. Without pages one ends after two polling intervals."""
    if now <= sight.end:
        return None
    pool = round_.pool
    fresh = page.at > sight.page_at
    grown = _growth(replica, settings.slo(replica.target.pool)) if fresh else None
    if pool.heard:
        if not round_.told:
            return None
        parts = [(w.gateway, w.end, w.replicas.get(replica.target.name)) for w in round_.told]
        return windows.from_gateways(sight, parts, page, grown, pool.lengths, heard=pool.heard, now=now)
    if not fresh and now - sight.end < 2 * settings.poll_interval:
        return None
    return windows.from_scrapes(sight, page, grown, pool.lengths, now)


def _page(replica: ReplicaMemory, max_num_seqs: int | None, now: float) -> Page:
    seen, latest = replica.view, replica.latest
    if seen is None or latest is None:
        nothing = Unknown(Reason.NOT_SCRAPED, now)
        return Page(running=nothing, waiting=nothing, kv_usage=nothing, preemptions=nothing)
    return Page(
        at=latest.at,
        restarts=replica.restarts,
        running=seen.load.running,
        waiting=seen.load.waiting,
        kv_usage=seen.load.kv_usage,
        preemptions=_preemptions(replica, seen.load.preemptions_per_second),
        kv_tokens=seen.kv_tokens,
        max_num_seqs=max_num_seqs,
    )


def _preemptions(replica: ReplicaMemory, rate: Number) -> Number:
    """How many there were between the two newest pages; where the rate is not known, neither is that."""
    if isinstance(rate, Unknown) or replica.previous is None or replica.latest is None:
        return rate
    grown = growth.over_engines(replica.previous, replica.latest, "preemptions_total")
    return rate if grown is None else Known(grown, replica.latest.at, rate.quality)


def _growth(replica: ReplicaMemory, slo: Slo) -> Growth | None:
    previous, latest = replica.previous, replica.latest
    if previous is None or latest is None:
        return None
    gap, tpot = growth.merged(previous, latest, "itl"), growth.merged(previous, latest, "tpot")
    tokens = None if gap is None else gap.count * growth.tokens_a_gap(previous, latest)
    if gap is None or gap.mean is None:  # the mean of each request is better than nothing, but it comes late
        gap = tpot
    ttft = growth.merged(previous, latest, "ttft")
    return Growth(ttft, gap, tpot, slo.ttft, slo.tpot, tokens)


def _with_page(lengths: Lengths, replica: ReplicaMemory, since: float) -> Lengths:
    """With the requests that finished between a replica's two newest pages, if the newest is new."""
    previous, latest = replica.previous, replica.latest
    if previous is None or latest is None or latest.at <= since:
        return lengths
    prompts = growth.merged(previous, latest, "prompt_len")
    outputs = growth.merged(previous, latest, "generation_len")
    sums = None if prompts is None or outputs is None else kv_ceiling.sums(prompts, outputs)
    return lengths if sums is None else lengths.plus(*sums)


def _reported(name: str, told: Sequence[OutcomeWindow]) -> tuple[float | None, bool]:
    """The limit that the gateways go by, on average, and whether it is their own: all of them are alone.

    One that comes back to others which were steered meanwhile follows them, not they it.
    """
    newest = {window.gateway: window for window in told}
    limits = [
        (seen.limit, window.is_alone)
        for window in newest.values()
        if (seen := window.replicas.get(name)) is not None and seen.limit is not None
    ]
    if not limits:
        return None, False
    mean = sum(limit for limit, _ in limits) / len(limits)
    return mean, all(is_alone for _, is_alone in limits)


def evidence(window: Window | None) -> tuple[Evidence, ...]:
    """The readings that the law was told."""
    if window is None:
        return ()
    in_flight = window.max_in_flight
    most = Evidence("max_in_flight", in_flight, 0.0, Reason.NO_DATA if in_flight is None else None)
    readings: dict[str, Number | Distribution] = {
        "step_gap_seconds": window.step_gap,
        "first_token_p90_seconds": window.first_token,
        "kv_usage": window.kv_usage,
        "waiting": window.waiting,
        "preemptions": window.preemptions,
    }
    return (most, *(evidence_of(name, reading, window.end) for name, reading in readings.items()))


def evidence_of(name: str, reading: Number | Distribution, now: float) -> Evidence:
    """One reading as evidence, with its age at `now`."""
    age = max(0.0, now - reading.at)
    if isinstance(reading, Unknown):
        return Evidence(name, None, age, reading.reason)
    value = reading.value
    return Evidence(name, value.p90 if isinstance(value, Quantiles) else value, age)
