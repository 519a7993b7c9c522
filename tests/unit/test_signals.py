"""Counters, histograms, intervals, readings, units."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.signals.counter import increase, process_restarted
from controlplane.signals.histogram import Histogram, histogram, merge
from controlplane.signals.interval import Interval, exactly
from controlplane.signals.reading import Known, Reason, Unknown, aged
from controlplane.signals.units import duration_text, seconds, share

INF = math.inf
values = st.lists(st.floats(0, 100), max_size=50)
layouts = st.lists(st.floats(0.01, 99), max_size=8, unique=True).map(lambda b: (*sorted(b), INF))


def observed(bounds: tuple[float, ...], seen: list[float]) -> Histogram:
    return Histogram(bounds, tuple(float(sum(v <= b for v in seen)) for b in bounds), math.fsum(seen))


# -- counters --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("previous", "current", "restarted", "grown"),
    [(5, 9, False, 4), (5, 5, False, 0), (500_000, 1_200, False, 1_200), (5, 9, True, 9), (0, 0, True, 0)],
)
def test_increase(previous: float, current: float, restarted: bool, grown: float) -> None:
    assert increase(previous, current, restarted=restarted) == grown


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.booleans())
def test_increase_is_never_negative_and_never_above_the_value(a: float, b: float, restarted: bool) -> None:
    assert 0 <= increase(a, b, restarted=restarted) <= b


@pytest.mark.parametrize(
    ("a", "b", "restarted"),
    [(None, 5.0, False), (5.0, None, False), (5.0, 5.03, False), (5.0, 912.4, True), (912.4, 5.0, True)],
)
def test_process_restarted(a: float | None, b: float | None, restarted: bool) -> None:
    assert process_restarted(a, b) is restarted


# -- histograms ------------------------------------------------------------------------------------


@given(layouts, values, values)
def test_the_difference_of_two_states_is_what_came_between(
    bounds: tuple[float, ...], before: list[float], between: list[float]
) -> None:
    later = observed(bounds, before + between)
    grown = later.minus(observed(bounds, before))
    assert grown is not None
    assert grown.counts == observed(bounds, between).counts
    assert grown.total == pytest.approx(math.fsum(between), abs=1e-6)


@given(layouts, values, st.floats(0, 120))
def test_count_below_holds_the_truth_and_is_exact_on_an_edge(
    bounds: tuple[float, ...], seen: list[float], threshold: float
) -> None:
    found = observed(bounds, seen).count_below(threshold)
    if not seen:
        assert found is None
        return
    assert found is not None
    assert sum(v <= threshold for v in seen) in found
    for edge in bounds[:-1]:
        assert observed(bounds, seen).count_below(edge) == exactly(float(sum(v <= edge for v in seen)))


@given(layouts, layouts, values, values)
def test_merging_never_invents_an_edge(
    one: tuple[float, ...], other: tuple[float, ...], a: list[float], b: list[float]
) -> None:
    both = merge([observed(one, a), observed(other, b)])
    assert both is not None
    assert set(both.bounds) == set(one) & set(other)
    assert both.counts == observed(both.bounds, a + b).counts
    assert both.total == pytest.approx(math.fsum(a + b), abs=1e-6)


@given(layouts, st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0.001, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(
    bounds: tuple[float, ...], seen: list[float], q: float
) -> None:
    h = observed(bounds, seen)
    found = h.quantile(q)
    rank = max(1, math.ceil(q * len(seen) - 1e-9))
    true = sorted(seen)[rank - 1]
    upper = min(b for b in bounds if true <= b)
    if found is None:
        assert bounds == (INF,)
    elif math.isinf(upper):
        assert found == bounds[-2]
    else:
        assert found <= upper


def test_rounding_carries_no_quantile_past_its_bucket() -> None:
    bounds = (1.8956916100995098, 18.38805306842718, INF)
    assert observed(bounds, [2.0, 19.0]).quantile(0.5) == 18.38805306842718


def test_known_quantiles() -> None:
    h = Histogram((0.1, 0.5, 1.0, 5.0, INF), (5.0, 20.0, 30.0, 38.0, 40.0), 48.4)
    assert h.quantile(0.5) == 0.5
    assert h.quantile(0.9) == 4.0
    assert h.mean == pytest.approx(1.21)
    assert h.quantile(0.99) == 5.0  # in the +Inf bucket: no more can be said than the last edge


def test_nothing_observed_has_no_quantile_and_no_share() -> None:
    h = Histogram((1.0, INF), (0.0, 0.0), 0.0)
    assert h.quantile(0.5) is None
    assert h.mean is None
    assert h.fraction_below(1.0) is None


def test_between_two_edges_only_the_neighbours_are_proven() -> None:
    h = Histogram((1.0, 2.0, INF), (10.0, 30.0, 40.0), None)
    assert h.fraction_below(1.5) == Interval(0.25, 0.75)
    assert h.fraction_below(0.5) == Interval(0.0, 0.25)
    assert h.fraction_below(99.0) == Interval(0.75, 1.0)


def test_a_reset_gives_the_new_histogram_whole() -> None:
    old = Histogram((1.0, INF), (100.0, 120.0), 50.0)
    new = Histogram((1.0, INF), (3.0, 4.0), 2.0)
    assert new.minus(old) is None
    assert new.growth(old) == new


def test_a_bucket_that_runs_ahead_of_its_neighbour_stays_cumulative() -> None:
    old = Histogram((1.0, 2.0, INF), (1.0, 5.0, 5.0), None)
    new = Histogram((1.0, 2.0, INF), (4.0, 6.0, 7.0), None)  # one observation half written
    grown = new.minus(old)
    assert grown is not None
    assert grown.counts == (3.0, 3.0, 3.0)


def test_an_unknown_sum_leaves_the_buckets_good() -> None:
    both = merge([Histogram((1.0, INF), (1.0, 2.0), None), Histogram((1.0, INF), (1.0, 1.0), 0.5)])
    assert both == Histogram((1.0, INF), (2.0, 3.0), None)
    assert both.mean is None


def test_buckets_in_any_order_and_a_missing_last_one() -> None:
    assert histogram([(2.0, 5.0), (1.0, 3.0)], 1.0, 6.0) == Histogram((1.0, 2.0, INF), (3.0, 5.0, 6.0), 1.0)
    with pytest.raises(ValueError, match="no \\+Inf bucket"):
        histogram([(1.0, 3.0)], 1.0, None)
    with pytest.raises(ValueError, match="twice"):
        histogram([(1.0, 3.0), (1.0, 3.0)], 1.0, 4.0)


def test_merge_of_nothing() -> None:
    assert merge([]) is None


# -- intervals and readings ------------------------------------------------------------------------


def test_an_interval_can_not_be_empty() -> None:
    with pytest.raises(ValueError, match="empty"):
        Interval(1.0, 0.0)
    with pytest.raises(ValueError, match="empty"):
        Interval(math.nan, 1.0)


def test_a_reading_ages() -> None:
    reading = Known(3.0, 100.0)
    assert aged(reading, 110.0, 20.0) is reading
    old = aged(reading, 121.0, 20.0)
    assert isinstance(old, Unknown)
    assert (old.reason, old.at) == (Reason.STALE, 100.0)


# -- units -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250ms", 0.25),
        ("2s", 2.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("7d", 604800.0),
        ("1.5s", 1.5),
        (0, 0.0),
    ],
)
def test_durations(text: object, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", 5, "5 parsecs", "-5s", "5s later", None, True, "s", [], "1e3s"])
def test_not_a_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(text)


@given(st.integers(1, 10**7))
def test_a_duration_reads_back(ms: int) -> None:
    assert seconds(duration_text(ms / 1000)) == pytest.approx(ms / 1000, rel=1e-5)


@pytest.mark.parametrize(("text", "value"), [("95%", 0.95), (0.5, 0.5), ("0%", 0.0), (1, 1.0)])
def test_shares(text: object, value: float) -> None:
    assert share(text) == value


@pytest.mark.parametrize("text", ["95", "101%", 1.01, -0.1, "x%", None, True, math.nan])
def test_not_a_share(text: object) -> None:
    with pytest.raises(ValueError, match=r"share|percentage"):
        share(text)
