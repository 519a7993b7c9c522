"""Growth of cumulative signals between two marks of one replica.

A mark is what a page said at one time. A signal that the earlier mark does not name at all began at 0
after it (vLLM creates a series with its first request); one that it names as unknown gives no growth,
because nobody knows from where.
"""

from collections.abc import Iterable

import msgspec

from controlplane.signals.counter import increase, process_restarted, went_back
from controlplane.signals.histogram import Histogram, merge
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Signals

NOTHING = Signals()
SERVER = "server"
_NEVER_FALL = ("prompt_tokens_total", "generation_tokens_total", "preemptions_total", "finished_total")
_NEVER_SHRINK = ("ttft", "e2e")


class Mark(msgspec.Struct, frozen=True):
    """The signals of a replica at Unix time `at`. No engines at all: a process that has just begun.

    Where several engines share one server, some dialects count some signals only for all of them (SGLang
    its latencies and tokens). `units` are the engines, and the server as one more where it counts for them.
    """

    at: float
    engines: dict[str, Signals] = {}
    server: Signals = NOTHING

    @property
    def units(self) -> dict[str, Signals]:
        return {**self.engines, SERVER: self.server} if _counts_for_engines(self.server) else self.engines

    def unit(self, name: str) -> Signals:
        return self.server if name == SERVER else self.engines.get(name, NOTHING)


def _counts_for_engines(server: Signals) -> bool:
    return "ttft" in server.histograms or "generation_tokens_total" in server.numbers


def began_again(earlier: Mark, later: Mark) -> bool:
    """Whether the process behind the later mark is another one than behind the earlier."""
    start = "start_time"
    if process_restarted(earlier.server.numbers.get(start), later.server.numbers.get(start)):
        return True
    return any(_fell(earlier.unit(name), signals) for name, signals in later.units.items())


def _fell(earlier: Signals, later: Signals) -> bool:
    for name in _NEVER_FALL:
        if went_back(earlier.numbers.get(name, 0.0), later.numbers.get(name, float("inf"))):
            return True
    for name in _NEVER_SHRINK:
        before, now = earlier.histograms.get(name), later.histograms.get(name)
        if before is not None and now is not None and now.count < before.count:
            return True
    return False


def of_number(earlier: Signals, later: Signals, name: str) -> float | None:
    """Growth of one counter; None where either end of it is not known."""
    if name not in later.numbers or name in earlier.unknown:
        return None
    return increase(earlier.numbers.get(name, 0.0), later.numbers[name])


def of_parts(earlier: Signals, later: Signals, name: str) -> dict[str, float]:
    """Growth of each part of a counter that is split by a label."""
    if name in earlier.unknown:
        return {}
    before = earlier.by.get(name, {})
    return {part: increase(before.get(part, 0.0), value) for part, value in later.by.get(name, {}).items()}


def of_histogram(earlier: Signals, later: Signals, name: str) -> Histogram | None:
    """What one histogram observed between the two; None where it is not there."""
    now = later.histograms.get(name)
    if now is None or name in earlier.unknown:
        return None
    return now.growth(earlier.histograms.get(name))


def over_engines(earlier: Mark, later: Mark, name: str) -> float | None:
    """Growth of a counter summed over all engines; None where no engine has it, or one cannot say."""
    grown = 0.0
    found = False
    for unit, signals in later.units.items():
        if name not in signals.numbers and signals.unknown.get(name, Reason.ABSENT) is Reason.ABSENT:
            continue
        part = of_number(earlier.unit(unit), signals, name)
        if part is None:
            return None
        grown, found = grown + part, True
    return grown if found else None


def merged(earlier: Mark, later: Mark, name: str) -> Histogram | None:
    """What all engines together observed between the two marks."""
    grown = (of_histogram(earlier.unit(unit), signals, name) for unit, signals in later.units.items())
    return merge(h for h in grown if h is not None)


def why_unknown(marks: Iterable[Mark], name: str) -> Reason:
    """The reason that the latest of the marks gives for not knowing a signal."""
    for mark in marks:
        for signals in mark.units.values():
            if name in signals.unknown:
                return signals.unknown[name]
    return Reason.ABSENT
