"""Short ways to make windows of two pools."""

from typing import Any

from controlplane.policy.boundary.law import Boundary, BoundaryState
from controlplane.policy.boundary.seen import PairWindow, PoolSeen
from controlplane.signals.reading import Known
from controlplane.signals.size_class import EDGES, SizeClass

SECONDS = 60.0
STEP_SECONDS = 0.02

LAW = Boundary()

ONE_A_SECOND: dict[int, tuple[float, float]] = {1024: (8.0, 5.0), 4096: (1.5, 10.0), 32_768: (0.5, 20.0)}
"""By size class: requests a second, seconds that one is there."""


def sizes(mix: dict[int, tuple[float, float]], seconds: float = SECONDS) -> dict[int, SizeClass]:
    """What such requests are in a window."""
    return {
        edge: SizeClass(
            rate * seconds, rate * seconds, rate * seconds * stays, rate * seconds * stays * edge * 0.75
        )
        for edge, (rate, stays) in mix.items()
    }


def pool(mix: dict[int, tuple[float, float]], at: float, **more: Any) -> PoolSeen:
    """A pool that serves `mix` well; its replicas have 100 slots, and KV memory enough."""
    at_work = sum(rate * stays for rate, stays in mix.values())
    usual: dict[str, Any] = {
        "replicas": 4,
        "slots": 100.0,
        "kv_tokens": None,
        "longest_tokens": None,
        "heard": True,
        "in_flight": at_work,
        "queued": 0.0,
        "gaps": at_work * SECONDS / STEP_SECONDS,
        "gap_seconds": at_work * SECONDS,
        "sizes": sizes(mix),
        "waiting": Known(0.0, at),
        "kv_usage": Known(0.3, at),
        "preemptions_per_second": Known(0.0, at),
    }
    return PoolSeen(**(usual | more))


def window(
    number: int,
    boundary: int,
    mix: dict[int, tuple[float, float]],
    *,
    short: dict[str, Any] | None = None,
    long: dict[str, Any] | None = None,
) -> PairWindow:
    """The window number `number` of two pools parted at `boundary`, where each serves its part of `mix`."""
    start = SECONDS * number
    end = start + SECONDS
    below = {edge: part for edge, part in mix.items() if edge <= boundary}
    above = {edge: part for edge, part in mix.items() if edge > boundary}
    return PairWindow(start, end, pool(below, end, **(short or {})), pool(above, end, **(long or {})))


def run(
    state: BoundaryState,
    mix: dict[int, tuple[float, float]],
    minutes: int,
    *,
    law: Boundary = LAW,
    since: int = 0,
    short: dict[str, Any] | None = None,
    long: dict[str, Any] | None = None,
) -> list[BoundaryState]:
    """The states of so many minutes in which the pools follow the boundary."""
    states = []
    for number in range(since, since + minutes):
        state = law.observe(state, window(number, state.tokens, mix, short=short, long=long))
        states.append(state)
    return states


def edges_between(low: int, high: int) -> list[int]:
    return [edge for edge in EDGES if low <= edge <= high]
