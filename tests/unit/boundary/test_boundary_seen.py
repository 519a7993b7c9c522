"""What several gateways tell of a pool, put together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.boundary.seen import Room, merged, pool_seen
from controlplane.signals.reading import Unknown
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow
from controlplane.signals.size_class import EDGES, SizeClass, edge_of


def told(
    gateway: str, start: float, in_flight: int, queued: int, sizes: dict[int, SizeClass]
) -> OutcomeWindow:
    return OutcomeWindow(
        gateway,
        "short",
        start,
        start + 1.0,
        offered=0,
        finished=0,
        good=0,
        failed=0,
        gave_up=0,
        shed={},
        tokens=0,
        good_tokens=0,
        in_flight=in_flight,
        queued=queued,
        replicas={"r0": ReplicaWindow(in_flight=in_flight, gaps=10 * in_flight, gap_seconds=0.2 * in_flight)},
        sizes=sizes,
    )


def test_gateways_add_up_and_their_windows_average() -> None:
    one = SizeClass(10, 8, 40.0, 4000.0)
    windows = [
        told("a", 0.0, 10, 2, {512: one}),
        told("a", 1.0, 20, 0, {512: one, 1024: one}),
        told("b", 0.0, 5, 1, {512: one}),
    ]
    seen = pool_seen(windows, [Room(50.0, 1000.0, 8192), Room(70.0, 3000.0, 4096)], None, 2.0)
    assert (seen.in_flight, seen.queued) == (15.0 + 5.0, 1.0 + 1.0)
    assert (seen.gaps, seen.gap_seconds) == (350.0, pytest.approx(7.0))
    assert seen.sizes[512] == SizeClass(30, 24, 120.0, 12_000.0)
    assert seen.sizes[1024] == one
    assert (seen.replicas, seen.slots, seen.kv_tokens, seen.longest_tokens) == (2, 60.0, 2000.0, 8192)
    assert isinstance(seen.waiting, Unknown)


def test_what_is_not_known_of_all_is_not_known() -> None:
    seen = pool_seen([], [Room(50.0, None, 8192), Room(None, None, None)], None, 2.0)
    assert (seen.heard, seen.replicas) == (False, 2)
    assert (seen.slots, seen.kv_tokens, seen.longest_tokens) == (None, None, None)
    assert pool_seen([], [], None, 2.0).slots is None


@given(
    counts=st.lists(st.tuples(st.sampled_from(EDGES), st.integers(1, 100)), max_size=30),
    cut=st.integers(0, 30),
)
def test_however_requests_are_divided_the_histogram_is_the_same(
    counts: list[tuple[int, int]], cut: int
) -> None:
    parts = [{edge: SizeClass(n, n, 2.0 * n, 8.0 * n)} for edge, n in counts]
    whole = merged(parts)
    assert merged((merged(parts[:cut]), merged(parts[cut:]))) == whole
    assert sum(size.served for size in whole.values()) == sum(n for _, n in counts)


@given(st.integers(0, 10**9))
def test_every_size_has_one_class(tokens: int) -> None:
    edge = edge_of(tokens)
    assert edge in EDGES
    assert tokens <= edge or edge == EDGES[-1]
    smaller = [each for each in EDGES if each < edge]
    assert not smaller or tokens > smaller[-1]


def test_classes_of_another_version_are_left_out() -> None:
    assert merged([{700: SizeClass(1, 1, 1.0, 1.0), 512: SizeClass(1, 1, 1.0, 1.0)}]) == {
        512: SizeClass(1, 1, 1.0, 1.0)
    }
