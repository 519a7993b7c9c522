"""What the windows of a pool have taught, old windows weighing less and less; and what follows for replicas.

By Little's law a request occupies a replica for as long as it is there, so for a set of size classes

    sequences = sum of sequence_seconds * offered / served / seconds      at work in the mean
    tokens    = the same of token_seconds
    replicas  = max(sequences / slots, tokens / kv_tokens) / target load

How long a request is there depends on the pool: a fuller engine makes slower steps. The line of step time
over sequences (t = W + H n, as arXiv 2604.09613 has it) is fitted to the windows, and seconds measured at one
pace are counted at the pace of the pool in question at its target load:

    seconds there = seconds here * (W + H * target load * sequences that fill a replica) / mean step here

Where the sequences did not vary enough for a slope there is none: the pace is taken as it was seen.
"""

import math
from collections.abc import Iterable

import msgspec

from controlplane.policy.boundary.seen import PoolSeen, merged
from controlplane.signals.size_class import SizeClass

_MOST_DEMAND = 10.0
"""A class of which less than a tenth was served says too little about the rest."""
_SHORTEST_STEP_SECONDS, _LONGEST_STEP_SECONDS = 1e-5, 600.0
"""No engine's step lies outside."""
_FORGOTTEN = 1e-9
"""Of the weight: what has faded so far is nothing, before ratios of it mean nothing."""
_ENOUGH_SPREAD = 0.1
"""Of sequences a replica, as standard deviation over mean, for a slope."""


class Pace(msgspec.Struct, frozen=True):
    """Sums for the line of step time over sequences a replica; `weight` in seconds of windows."""

    gaps: float = 0.0
    gap_seconds: float = 0.0
    weight: float = 0.0
    n: float = 0.0
    t: float = 0.0
    nn: float = 0.0
    nt: float = 0.0

    def add(self, gaps: float, gap_seconds: float, sequences: float, seconds: float) -> "Pace":
        """With a window of `seconds` more, with `sequences` at work on a replica."""
        if gaps < 1 or not _SHORTEST_STEP_SECONDS <= gap_seconds / gaps <= _LONGEST_STEP_SECONDS:
            return self
        step = gap_seconds / gaps
        return Pace(
            self.gaps + gaps,
            self.gap_seconds + gap_seconds,
            self.weight + seconds,
            self.n + seconds * sequences,
            self.t + seconds * step,
            self.nn + seconds * sequences * sequences,
            self.nt + seconds * sequences * step,
        )

    def decayed(self, factor: float) -> "Pace":
        return Pace(*(factor * getattr(self, name) for name in self.__struct_fields__))

    @property
    def mean_seconds(self) -> float | None:
        """Of a step, as the tokens saw it; None of no tokens."""
        return self.gap_seconds / self.gaps if self.gaps > 0 else None

    def seconds_at(self, sequences: float) -> float | None:
        """Of a step with so many sequences on the replica; None of no tokens."""
        if self.weight <= 0:
            return None
        n, t = self.n / self.weight, self.t / self.weight
        variance = self.nn / self.weight - n * n
        slope = 0.0
        if n > 0 and variance > (_ENOUGH_SPREAD * n) ** 2:
            # Neither more sequences nor none at all make a step shorter than nothing.
            slope = min(max(0.0, (self.nt / self.weight - n * t) / variance), t / n)
        return t + slope * (sequences - n)


class Learned(msgspec.Struct, frozen=True):
    """One pool. `seconds` of windows, weighted as everything else; `strain` is the share of the latest time
    in which the pool was full (by its queues, preemptions or utilisation). `correction` (from 1 up) is how
    many times more replicas it needed than its sizes say."""

    seconds: float = 0.0
    sizes: dict[int, SizeClass] = {}
    pace: Pace = Pace()
    strain: float = 0.0
    correction: float = 1.0

    def learn(self, seen: PoolSeen, seconds: float, memory_seconds: float) -> "Learned":
        """With a window of `seconds` more."""
        factor = math.exp(-seconds / memory_seconds)
        factor = factor if factor >= _FORGOTTEN else 0.0
        old = {edge: _times(size, factor) for edge, size in self.sizes.items()}
        sequences = seen.in_flight / seen.replicas if seen.replicas else 0.0
        return msgspec.structs.replace(
            self,
            seconds=factor * self.seconds + seconds,
            sizes=merged((old, seen.sizes)),
            pace=self.pace.decayed(factor).add(seen.gaps, seen.gap_seconds, sequences, seconds),
            correction=1 + factor * (self.correction - 1),
        )

    def strained(self, is_full: bool, seconds: float, memory_seconds: float) -> "Learned":
        weight = 1 - math.exp(-seconds / memory_seconds)
        return msgspec.structs.replace(self, strain=self.strain + weight * (is_full - self.strain))

    @property
    def served(self) -> float:
        return sum(size.served for size in self.sizes.values())


def replicas_needed(
    pool: PoolSeen, own: Learned, other: Learned, edges: Iterable[int], target_load: float
) -> float:
    """Replicas like those of `pool` (not rounded) for the requests of the classes in `edges`, wherever they
    ran: `own` is what was learned of this pool, `other` of the other one. It knows its slots or its KV."""
    wanted = set(edges)
    pace = own.pace if own.pace.weight > 0 else other.pace
    here = _work(own, wanted)
    there = _work(other, wanted)
    sequences, tokens = here[0] + there[0], here[1] + there[1]
    if sequences <= 0:
        return 0.0
    full = _full_sequences(pool, tokens / sequences)
    step = pace.seconds_at(target_load * full)
    sequences, tokens = (
        _at_pace(here[i], own.pace, step) + _at_pace(there[i], other.pace, step) for i in (0, 1)
    )
    needs = [sequences / pool.slots if pool.slots else 0.0]
    needs.append(tokens / pool.kv_tokens if pool.kv_tokens else 0.0)
    return own.correction * max(needs) / target_load


def _full_sequences(pool: PoolSeen, tokens_each: float) -> float:
    """Sequences of so many tokens that fill a replica."""
    by_tokens = pool.kv_tokens / tokens_each if pool.kv_tokens and tokens_each > 0 else math.inf
    return min(pool.slots or math.inf, by_tokens)


def _work(learned: Learned, edges: set[int]) -> tuple[float, float]:
    """Sequences and tokens at work in the mean, were all served that were offered."""
    if learned.seconds <= 0:
        return 0.0, 0.0
    sequences = tokens = 0.0
    for edge, size in learned.sizes.items():
        if edge in edges and size.served > 0:
            demand = min(size.offered / size.served, _MOST_DEMAND)
            sequences += demand * size.sequence_seconds
            tokens += demand * size.token_seconds
    return sequences / learned.seconds, tokens / learned.seconds


def _at_pace(amount: float, measured: Pace, step_seconds: float | None) -> float:
    mean = measured.mean_seconds
    return amount if mean is None or step_seconds is None else amount * step_seconds / mean


def _times(size: SizeClass, factor: float) -> SizeClass:
    return SizeClass(
        factor * size.offered,
        factor * size.served,
        factor * size.sequence_seconds,
        factor * size.token_seconds,
    )
