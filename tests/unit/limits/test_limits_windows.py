"""Windows for laws, made from gateways' reports and engines' pages."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from controlplane.policy.limits.kv_ceiling import Lengths, kv_ceiling, sums
from controlplane.policy.limits.law import Window
from controlplane.policy.limits.windows import Growth, Page, Part, Sight, from_gateways, from_scrapes, skipped
from controlplane.signals.histogram import Histogram
from controlplane.signals.reading import Known, Quality, Reason, Unknown, known
from controlplane.signals.samples import ReplicaWindow
from controlplane.signals.snapshot import Quantiles

NOW = 1_800_000_010.0
SIGHT = Sight(NOW - 1.0, restarts=2, page_at=NOW - 5.0)
LENGTHS = Lengths(20.0, 100.0, 100.0 * 600)


def page(at: float = NOW - 5.0, **changes: object) -> Page:
    values = {"running": 30.0, "waiting": 2.0, "kv_usage": 0.6, "preemptions": 0.0}
    readings = {name: Known(value, at) for name, value in values.items()}
    base = {"at": at, "restarts": 2, "kv_tokens": 440_000.0, "max_num_seqs": 256, **readings, **changes}
    return Page(**base)


def seen(in_flight: int, most: int = 0, **changes: object) -> ReplicaWindow:
    return ReplicaWindow(in_flight=in_flight, max_in_flight=max(in_flight, most), **changes)


def first(count: float, p90: float) -> Quantiles:
    return Quantiles(count, p90 / 2, p90 / 2, p90, p90, p90)


def heard_from(*told: Part, sight: Sight = SIGHT, given: Page | None = None) -> tuple[Window, Sight]:
    gateways = {gateway for gateway, _, _ in told} | set(sight.in_flight)
    return from_gateways(sight, told, given or page(), None, LENGTHS, heard=gateways, now=NOW)


def test_several_gateways_are_added_up() -> None:
    window, after = heard_from(
        (
            "a",
            NOW - 0.7,
            seen(
                20,
                24,
                first_token=first(10, 0.2),
                gaps=300,
                gap_seconds=9.0,
                mean_in_flight=22.0,
                reserved_tokens=20_000,
                max_reserved_tokens=25_000,
                paced=12,
                slow=3,
                late=2,
                whole_tokens=50,
            ),
        ),
        (
            "b",
            NOW - 0.2,
            seen(
                10,
                11,
                reserved_tokens=5000,
                max_reserved_tokens=7000,
                first_token=first(30, 0.6),
                gaps=100,
                gap_seconds=5.0,
            ),
        ),
    )
    assert (window.start, window.end) == (NOW - 1.0, NOW)
    assert (window.in_flight, window.max_in_flight, window.mean_in_flight) == (30.0, 35.0, 32.0)
    assert (window.reserved_tokens, window.max_reserved_tokens) == (25_000.0, 32_000.0)
    assert (window.paced, window.slow, window.late, window.tokens) == (12.0, 3.0, 2.0, 450.0)
    assert known(window.step_gap) == pytest.approx(14.0 / 400)
    tokens = known(window.first_token)
    assert tokens is not None
    assert (tokens.count, tokens.p90) == (40.0, pytest.approx(0.5))  # by their numbers
    assert window.kv_ceiling == kv_ceiling(440_000.0, LENGTHS)
    assert window.max_num_seqs == 256
    assert after == Sight(NOW, 2, NOW - 5.0, {"a": 20, "b": 10})


def test_a_gateway_that_tells_nothing_this_time_still_has_what_it_had() -> None:
    sight = Sight(NOW - 1.0, 2, NOW - 5.0, {"a": 20, "b": 10, "gone": 99})
    told = (("a", NOW, seen(15, 18)),)
    window, after = from_gateways(sight, told, page(), None, LENGTHS, heard={"a", "b"}, now=NOW)
    assert (window.in_flight, window.max_in_flight) == (25.0, 28.0)
    assert after.in_flight == {"a": 15, "b": 10}


def test_nothing_happened_is_no_news_and_not_a_loss() -> None:
    window, _ = heard_from(("a", NOW, None))
    assert (window.in_flight, window.max_in_flight) == (0.0, 0.0)
    for reading in (window.first_token, window.step_gap):
        assert isinstance(reading, Unknown)
        assert reading.reason is Reason.NO_TRAFFIC


def test_old_windows_of_a_gateway_that_was_out_of_reach_tell_nothing_of_now() -> None:
    old = seen(90, 95, first_token=first(50, 9.0), gaps=10, gap_seconds=90.0)
    window, after = heard_from(("a", NOW - 60.0, old), ("a", NOW, seen(5, 6, gaps=100, gap_seconds=2.0)))
    assert (window.in_flight, window.max_in_flight) == (5.0, 6.0)
    assert known(window.step_gap) == pytest.approx(0.02)
    assert isinstance(window.first_token, Unknown)
    assert after.in_flight == {"a": 5}


def test_what_comes_past_all_gateways_takes_room_too() -> None:
    """A new page shows 32 inside where the gateways had 12 at the most; until the next page that stands."""
    told = ("a", NOW, seen(10, 12))
    window, after = heard_from(told, given=page(NOW - 0.5))
    assert (window.in_flight, window.max_in_flight, after.others) == (30.0, 32.0, 20.0)
    again, _ = from_gateways(after, (told,), page(NOW - 0.5), None, LENGTHS, heard={"a"}, now=NOW + 1)
    assert again.max_in_flight == 32.0
    fewer = page(NOW + 1.5, running=Known(11.0, NOW + 1.5), waiting=Known(0.0, NOW + 1.5))
    less, _ = from_gateways(after, (told,), fewer, None, LENGTHS, heard={"a"}, now=NOW + 2)
    assert less.max_in_flight == 12.0


def test_gauges_are_news_once_also_of_a_page_that_comes_late() -> None:
    told = ("a", NOW, seen(10))
    for at in (NOW - 0.5, NOW - 2.0):  # within the window, and before its start
        window, after = heard_from(told, given=page(at))
        assert isinstance(window.kv_usage, Known)
        assert isinstance(window.running, Known)
        assert window.start < window.kv_usage.at == window.running.at <= window.end
        again, _ = from_gateways(after, (told,), page(at), None, LENGTHS, heard={"a"}, now=NOW + 1)
        assert isinstance(again.kv_usage, Known)
        assert again.kv_usage.at <= again.start


def test_what_is_unknown_stays_unknown() -> None:
    stale = Unknown(Reason.STALE, NOW - 40)
    window, _ = heard_from(("a", NOW, seen(3)), given=page(kv_usage=stale, running=stale, kv_tokens=None))
    assert window.kv_usage is stale
    assert window.kv_ceiling is None
    assert window.in_flight == 3.0


def test_a_restart_is_told_once() -> None:
    window, after = heard_from(("a", NOW, None), given=page(NOW, restarts=3))
    assert window.restarted
    again, _ = from_gateways(after, (), page(NOW, restarts=3), None, LENGTHS, heard=(), now=NOW + 1)
    assert not again.restarted


def test_scrapes_alone_give_a_window_for_each_page() -> None:
    window, after = from_scrapes(SIGHT, page(NOW - 0.2), GROWN, LENGTHS, NOW)
    assert (window.in_flight, window.max_in_flight, window.mean_in_flight) == (32.0, 32.0, 32.0)
    assert (window.paced, window.slow, window.late, window.tokens) == (400.0, 10.0, 2.0, 400.0)
    assert known(window.running) == 30.0
    assert known(window.step_gap) == pytest.approx(0.03)
    tokens = known(window.first_token)
    assert tokens is not None
    assert (tokens.count, tokens.p90) == (10.0, pytest.approx(0.375))
    assert after.page_at == NOW - 0.2


@pytest.mark.parametrize(
    ("growth", "reason"),
    [
        (None, Reason.STALE),
        (Growth(None, None), Reason.ABSENT),
        (Growth(*[Histogram((math.inf,), (0.0,), 0.0)] * 2), Reason.NO_TRAFFIC),
    ],
)
def test_scrapes_alone_that_tell_no_latency(growth: Growth | None, reason: Reason) -> None:
    window, _ = from_scrapes(SIGHT, page(NOW - 0.2), growth, LENGTHS, NOW)
    for reading in (window.first_token, window.step_gap):
        assert isinstance(reading, Unknown)
        assert reading.reason is reason


SECONDS = Histogram((0.1, 0.25, 0.5, math.inf), (0.0, 8.0, 10.0, 10.0), 2.0)
GAPS = Histogram((0.025, 0.05, math.inf), (100.0, 390.0, 400.0), 12.0)
GROWN = Growth(SECONDS, GAPS, GAPS, 0.25, 0.05, 400.0)


def test_of_answers_that_come_whole_the_engines_page_tells() -> None:
    """Gateways see them end, and nothing before."""
    told = ("a", NOW, seen(20, 24, paced=6, slow=1, whole_tokens=300))
    window, _ = from_gateways(SIGHT, (told,), page(NOW - 0.2), GROWN, LENGTHS, heard={"a"}, now=NOW)
    assert known(window.step_gap) == pytest.approx(0.03)
    tokens = known(window.first_token)
    assert tokens is not None
    assert (tokens.count, window.late) == (10.0, 2.0)
    assert (window.in_flight, window.paced, window.slow, window.tokens) == (20.0 + 8, 6.0, 1.0, 300.0)


@pytest.mark.parametrize("streams", [{"gaps": 10, "gap_seconds": 0.2}, {"first_token": first(1, 0.3)}])
def test_gateways_that_see_streams_are_believed_and_not_a_page_of_five_seconds(
    streams: dict[str, Any],
) -> None:
    told = ("a", NOW, seen(20, 24, late=0, **streams))
    window, _ = from_gateways(SIGHT, (told,), page(NOW - 0.2), GROWN, LENGTHS, heard={"a"}, now=NOW)
    assert known(window.step_gap) == (0.02 if "gaps" in streams else None)
    assert window.late == 0.0


def test_time_that_is_not_looked_at_is_in_no_window() -> None:
    assert skipped(SIGHT, page(NOW - 0.2), NOW) == Sight(NOW, 2, NOW - 0.2)


def test_readings_that_are_only_a_lower_bound_keep_saying_so() -> None:
    least = Known(0.9, NOW - 2.0, Quality.LOWER_BOUND)
    window, _ = heard_from(("a", NOW, seen(1)), given=page(NOW - 2.0, kv_usage=least))
    assert isinstance(window.kv_usage, Known)
    assert window.kv_usage.quality is Quality.LOWER_BOUND


def test_too_few_lengths_tell_no_ceiling() -> None:
    few = replace(LENGTHS, requests=19.9)
    window, _ = from_gateways(SIGHT, (), page(), None, few, heard=(), now=NOW)
    assert (window.kv_ceiling, window.request_tokens) == (None, None)
    asked = few.with_asked(30, 90_000)
    window, _ = from_gateways(SIGHT, (), page(), None, asked, heard=(), now=NOW)
    assert window.request_tokens == 3000.0


# Lengths from histograms alone


def spread(values: list[float], bounds: tuple[float, ...]) -> Histogram:
    counts = tuple(float(sum(value <= bound for value in values)) for bound in bounds)
    return Histogram(bounds, counts, sum(values))


EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, math.inf)


@pytest.mark.parametrize("outputs", [[float(n) for n in range(1, 1000, 7)], [30.0] * 50 + [900.0] * 5])
def test_lengths_from_two_histograms_give_nearly_the_ceiling_of_the_pairs(outputs: list[float]) -> None:
    prompts = [500.0] * len(outputs)
    exact = Lengths()
    for prompt, output in zip(prompts, outputs, strict=True):
        exact = exact.add(prompt, output)
    found = sums(spread(prompts, EDGES), spread(outputs, EDGES))
    assert found is not None
    known_ceiling, guessed = kv_ceiling(440_000, exact), kv_ceiling(440_000, Lengths().plus(*found))
    assert guessed == pytest.approx(known_ceiling, rel=0.1)


def test_lengths_of_nothing_or_without_a_sum_are_none() -> None:
    nothing, some = spread([], EDGES), spread([5.0], EDGES)
    assert sums(nothing, nothing) is None
    assert sums(some, Histogram(some.bounds, some.counts, None)) is None
    assert sums(some, spread([5000.0], EDGES)) is not None  # above the last finite edge
