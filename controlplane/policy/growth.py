"""Growth of cumulative signals between two marks of one replica.

A mark is what a page said at one time. What the earlier mark does not know gives no growth, because
nobody knows from where; only in a process that has just begun did everything begin at 0. Within one
process a counter that falls did not begin again: some of its series left the page. It is held at its
highest and called unknown until they are back, so that their return is no load.
"""

import math
from collections.abc import Iterable

import msgspec

from controlplane.signals.counter import process_restarted, went_back
from controlplane.signals.histogram import Histogram, merge
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Signals

NOTHING = Signals()
SERVER = "server"
_CLOCKS_APART_SECONDS = 300.0  # by more the engine's clock and ours hardly differ
_NEVER_FALL = ("prompt_tokens_total", "generation_tokens_total", "preemptions_total", "finished_total")
_NEVER_SHRINK = ("ttft", "e2e")


class Mark(msgspec.Struct, frozen=True):
    """The signals of a replica at Unix time `at`; `fresh` marks a process that has just begun, all at 0.

    Where several engines share one server, some dialects count some signals only for all of them (SGLang
    its latencies and tokens). `units` are the engines, and the server as one more where it counts for them.
    """

    at: float
    engines: dict[str, Signals] = {}
    server: Signals = NOTHING
    fresh: bool = False

    @property
    def units(self) -> dict[str, Signals]:
        return {**self.engines, SERVER: self.server} if _counts_for_engines(self.server) else self.engines

    def unit(self, name: str) -> Signals:
        return self.server if name == SERVER else self.engines.get(name, NOTHING)


def _counts_for_engines(server: Signals) -> bool:
    return "ttft" in server.histograms or "generation_tokens_total" in server.numbers


def began_again(earlier: Mark, later: Mark) -> bool:
    """Whether the process behind the later mark is another one than behind the earlier.

    The start times decide where both are known; else a count that fell does.
    """
    before, now = earlier.server.numbers.get("start_time"), later.server.numbers.get("start_time")
    if before is not None and now is not None:
        return process_restarted(before, now)
    return any(_fell(earlier.unit(name), signals) for name, signals in later.units.items())


def ran_already(earlier: Mark, later: Mark) -> bool:
    """Whether the process behind the later mark was there at the time of the earlier: its counters did not
    begin at 0 in between."""
    start = later.server.numbers.get("start_time")
    return start is not None and start < earlier.at - _CLOCKS_APART_SECONDS


def _fell(earlier: Signals, later: Signals) -> bool:
    for name in _NEVER_FALL:
        if went_back(earlier.numbers.get(name, 0.0), later.numbers.get(name, float("inf"))):
            return True
    for name in _NEVER_SHRINK:
        before, now = earlier.histograms.get(name), later.histograms.get(name)
        if before is not None and now is not None and now.count < before.count:
            return True
    return False


def held(earlier: Mark, later: Mark) -> Mark:
    """The later mark of the same process, with whatever fell held at its value of before, as unknown."""
    engines = {name: _held(earlier.unit(name), signals) for name, signals in later.engines.items()}
    return Mark(later.at, engines, _held(earlier.server, later.server), later.fresh)


def _held(before: Signals, now: Signals) -> Signals:
    numbers = {
        name: value
        for name, value in before.numbers.items()
        if name.endswith("_total") and value > now.numbers.get(name, math.inf)
    }
    histograms = {
        name: value
        for name, value in before.histograms.items()
        if name in now.histograms and now.histograms[name].count < value.count
    }
    if not numbers and not histograms:
        return now
    return msgspec.structs.replace(
        now,
        numbers={**now.numbers, **numbers},
        histograms={**now.histograms, **histograms},
        unknown={**now.unknown, **dict.fromkeys((*numbers, *histograms), Reason.AMBIGUOUS)},
    )


class Gap(msgspec.Struct, frozen=True):
    """One unit (an engine, or the server) at both ends; `fresh` where it began at 0 in between."""

    earlier: Signals
    later: Signals
    fresh: bool = False

    def number(self, name: str) -> float | None:
        """Growth of one counter; None where either end of it is not known."""
        if name not in self.later.numbers or name in self.later.unknown or name in self.earlier.unknown:
            return None
        if self.fresh:
            return self.later.numbers[name]
        before, now = self.earlier.numbers.get(name), self.later.numbers[name]
        return None if before is None or went_back(before, now) else now - before

    def parts(self, name: str) -> dict[str, float]:
        """Growth of each part of a counter that is split by a label; a part that is new began at 0."""
        if self.number(name) is None:
            return {}
        before = {} if self.fresh else self.earlier.by.get(name, {})
        return {part: max(0.0, v - before.get(part, 0.0)) for part, v in self.later.by.get(name, {}).items()}

    def histogram(self, name: str) -> Histogram | None:
        """What one histogram observed; None where either end of it is not known."""
        now = self.later.histograms.get(name)
        if name in self.later.unknown or name in self.earlier.unknown:
            return None
        if now is None or self.fresh:
            return now
        before = self.earlier.histograms.get(name)
        return None if before is None else now.minus(before)

    def why(self, name: str) -> Reason:
        """Why the growth of a signal is not known."""
        return self.later.unknown.get(name) or self.earlier.unknown.get(name) or Reason.ABSENT


def gaps(earlier: Mark, later: Mark) -> dict[str, Gap]:
    """Both ends of each unit of the later mark."""
    return {name: Gap(earlier.unit(name), signals, earlier.fresh) for name, signals in later.units.items()}


def over_engines(earlier: Mark, later: Mark, name: str) -> float | None:
    """Growth of a counter summed over all engines; None where no engine has it, or one cannot say."""
    grown = 0.0
    found = False
    for gap in gaps(earlier, later).values():
        if name not in gap.later.numbers and gap.later.unknown.get(name, Reason.ABSENT) is Reason.ABSENT:
            continue
        part = gap.number(name)
        if part is None:
            return None
        grown, found = grown + part, True
    return grown if found else None


def merged(earlier: Mark, later: Mark, name: str) -> Histogram | None:
    """What all engines together observed between the two marks."""
    grown = (gap.histogram(name) for gap in gaps(earlier, later).values())
    return merge(histogram for histogram in grown if histogram is not None)


def tokens_a_gap(earlier: Mark, later: Mark) -> float:
    """How many tokens of a stream came at once, on average; 1 unless an engine guesses ahead.

    vLLM observes a gap a step, and a step brings what was guessed right besides its own token.
    """
    gaps, guessed = merged(earlier, later, "itl"), over_engines(earlier, later, "spec_accepted_tokens_total")
    return 1.0 if gaps is None or not gaps.count or guessed is None else 1.0 + guessed / gaps.count


def why_unknown(marks: Iterable[Mark], name: str) -> Reason:
    """The reason that the latest of the marks gives for not knowing a signal."""
    for mark in marks:
        for signals in mark.units.values():
            if name in signals.unknown:
                return signals.unknown[name]
    return Reason.ABSENT
