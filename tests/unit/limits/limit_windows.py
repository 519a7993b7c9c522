"""Short ways to write windows of an engine."""

from collections.abc import Iterable, Iterator
from typing import Any

from controlplane.policy.limits.law import Law, RoundTrip, State, Window
from controlplane.signals.reading import Known
from controlplane.signals.snapshot import Quantiles


def told(*round_trips: RoundTrip, end: float = 1.0, random: float = 0.5) -> Window:
    """One second that ends at `end`, in which these requests ended."""
    return Window(start=end - 1.0, end=end, round_trips=round_trips, random=random)


def trip(seconds: float, in_flight: int = 1000, started: float = 0.0, *, dropped: bool = False) -> RoundTrip:
    return RoundTrip(started, seconds, in_flight, dropped)


def limits(law: Law[Any], windows: Iterable[Window]) -> Iterator[float]:
    """The limit after each window."""
    for state in states(law, windows):
        yield state.limit


def states(law: Law[Any], windows: Iterable[Window]) -> Iterator[Any]:
    """The state after each window."""
    state = law.start()
    for window in windows:
        state = law.observe(state, window)
        yield state


def after(law: Law[Any], state: Any, window: Window) -> State:
    """One more window, typed for tests that only look at what every state has."""
    result: State = law.observe(state, window)
    return result


def number(value: float, at: float) -> Known[float]:
    return Known(value, at)


def first_tokens(p90_seconds: float, at: float, count: float = 30.0) -> Known[Quantiles]:
    return Known(Quantiles(count, p90_seconds, p90_seconds, p90_seconds, p90_seconds, p90_seconds), at)
