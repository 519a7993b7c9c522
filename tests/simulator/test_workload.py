"""Rate curves, arrival streams, lengths and traces."""

from math import inf
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.simulator.arrivals import EvenGaps, GammaGaps, Gaps, WeibullGaps, arrivals
from controlplane.simulator.lengths import Fixed, Lengths, Lognormal, Mixture, Part, Quantiles
from controlplane.simulator.rate import RateCurve
from controlplane.simulator.trace import TraceRow, faster, read_trace, spread, window

CURVES = {
    "constant": RateCurve.constant(3.0),
    "steps": RateCurve.steps(((0.0, 1.0), (10.0, 0.0), (20.0, 4.0))),
    "ramp": RateCurve(((5.0, 0.5), (25.0, 6.0))),
    "burst": RateCurve.burst(2.0, 10.0, 5.0, 8.0),
    "day": RateCurve.day(1.0, 5.0, period=50.0, peak=20.0),
}


def test_curves_have_the_rates_they_are_named_for() -> None:
    assert [CURVES["steps"].at(t) for t in (0.0, 9.9, 10.0, 20.0, 99.0)] == [1.0, 1.0, 0.0, 4.0, 4.0]
    assert [CURVES["ramp"].at(t) for t in (0.0, 15.0, 30.0)] == [0.5, 3.25, 6.0]
    assert [CURVES["burst"].at(t) for t in (9.9, 10.0, 14.9, 15.0)] == [2.0, 16.0, 16.0, 2.0]
    assert CURVES["day"].at(20.0) == pytest.approx(5.0, abs=0.05)
    assert CURVES["day"].at(45.0) == pytest.approx(1.0, abs=0.05)
    assert CURVES["ramp"].times(2.0).at(15.0) == 6.5
    assert CURVES["burst"].arrivals_until(20.0) == 2.0 * 15 + 16.0 * 5


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@given(time=st.floats(0.0, 100.0))
def test_when_is_the_inverse_of_arrivals_until(curve: RateCurve, time: float) -> None:
    expected = curve.arrivals_until(time)
    (back,) = curve.when(np.array([expected]))
    assert curve.arrivals_until(float(back)) == pytest.approx(expected, abs=1e-9)


def test_a_curve_that_ends_at_zero_ends_the_arrivals() -> None:
    curve = RateCurve.steps(((0.0, 5.0), (10.0, 0.0)))
    times = list(arrivals(curve, EvenGaps(), np.random.default_rng(1), inf))
    assert len(times) == 50
    assert times[-1] <= 10.0


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ((), "at least one point"),
        (((5.0, 1.0), (4.0, 1.0)), r"rise.*\[5.0, 4.0\]"),
        (((0.0, -1.0),), r"under 0.*-1.0"),
    ],
)
def test_impossible_curves_are_refused(points: tuple[tuple[float, float], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RateCurve(points)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("gaps", [GammaGaps(), GammaGaps(3.0), WeibullGaps(0.6), EvenGaps()], ids=repr)
def test_streams_follow_their_curve(curve: RateCurve, gaps: Gaps) -> None:
    """Mean counts in five windows over 200 runs, within four standard errors (at least 0.2)."""
    edges = np.linspace(0.0, 40.0, 6)
    rngs = np.random.default_rng(4).spawn(200)
    counts = np.array([np.histogram(list(arrivals(curve, gaps, rng, 40.0)), edges)[0] for rng in rngs])
    expected = np.diff([curve.arrivals_until(float(edge)) for edge in edges])
    error = 4 * counts.std(axis=0) / np.sqrt(200) + 0.2
    assert (np.abs(counts.mean(axis=0) - expected) <= error).all(), (counts.mean(axis=0), expected)


@pytest.mark.parametrize(
    ("gaps", "cv"),
    [(GammaGaps(1.0), 1.0), (GammaGaps(4.0), 4.0), (WeibullGaps(0.5), 5**0.5), (EvenGaps(), 0.0)],
)
def test_gaps_have_mean_one_and_their_variation(gaps: Gaps, cv: float) -> None:
    drawn = gaps.draw(np.random.default_rng(2), 200_000)
    assert drawn.mean() == pytest.approx(1.0, rel=0.05)
    assert drawn.std() == pytest.approx(cv, rel=0.05, abs=1e-12)


def test_a_wandering_rate_keeps_its_mean() -> None:
    curves = [RateCurve.wander(4.0, 0.5, 100.0, 5000.0, rng) for rng in np.random.default_rng(3).spawn(40)]
    means = [curve.arrivals_until(5000.0) / 5000.0 for curve in curves]
    assert np.mean(means) == pytest.approx(4.0, rel=0.05)
    heights = np.array([rate for curve in curves for _, rate in curve.points])
    assert heights.std() / heights.mean() == pytest.approx(0.5, rel=0.1)


def test_lengths_have_the_quantiles_they_are_given() -> None:
    rng = np.random.default_rng(7)
    table = Quantiles(((0.0, 2.0), (0.5, 100.0), (0.9, 1000.0), (1.0, 5000.0)))
    drawn = table.draw(rng, 100_000)
    assert np.percentile(drawn, (50, 90)) == pytest.approx((100, 1000), rel=0.05)
    assert drawn.min() >= 2
    assert drawn.max() <= 5000
    normal = Lognormal(median=300.0, sigma=0.8, largest=2000).draw(rng, 100_000)
    assert np.median(normal) == pytest.approx(300, rel=0.02)
    assert np.percentile(normal, 84.13) == pytest.approx(300 * np.exp(0.8), rel=0.03)
    assert normal.max() == 2000
    assert set(Fixed(7).draw(rng, 5).tolist()) == {7}


def test_a_mixture_is_bimodal_by_its_weights() -> None:
    mixture = Mixture((Part(3.0, Fixed(10)), Part(1.0, Lognormal(1000.0, 0.1, 5000))))
    drawn = mixture.draw(np.random.default_rng(8), 40_000)
    assert (drawn == 10).mean() == pytest.approx(0.75, abs=0.01)
    assert np.median(drawn[drawn != 10]) == pytest.approx(1000, rel=0.02)


def test_lengths_are_read_from_text() -> None:
    text = b'{"kind": "mixture", "parts": [{"weight": 1, "lengths": {"kind": "fixed", "tokens": 3}}]}'
    assert msgspec.json.decode(text, type=Lengths) == Mixture((Part(1.0, Fixed(3)),))
    with pytest.raises(msgspec.ValidationError, match="tokens"):
        msgspec.json.decode(b'{"kind": "fixed", "tokens": 0}', type=Lengths)


@pytest.mark.parametrize(
    "points", [((0.0, 1.0),), ((0.1, 1.0), (1.0, 2.0)), ((0.0, 5.0), (1.0, 2.0)), ((0.0, 0.0), (1.0, 2.0))]
)
def test_impossible_quantiles_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"quantile points|lengths lie between"):
        Quantiles(points)


def test_a_trace_is_read_cut_scaled_and_spread(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("t_s,input_tokens,output_tokens\n0.0,10,1\n6.0,30,3\n3.0,20,2\n9.0,40,4\n")
    rows = read_trace(path)
    assert [row.at for row in rows] == [0.0, 3.0, 6.0, 9.0]
    assert window(rows, 3.0, 9.0) == [TraceRow(0.0, 20, 2), TraceRow(3.0, 30, 3)]
    assert [row.at for row in faster(rows, 2.0)] == [0.0, 1.5, 3.0, 4.5]
    moved = spread(rows, 3.0, np.random.default_rng(1))
    assert all(0 <= after.at - before.at < 3 for before, after in zip(rows, moved, strict=True))
    assert moved == spread(rows, 3.0, np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"over 0 \(got 0\)"):
        faster(rows, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t,in,out\n1,2,3\n", r"trace.csv:1: the header must be"),
        ("", r"trace.csv:1: the header must be"),
        ("t_s,input_tokens,output_tokens\n1,2,3\n1,x,3\n", r"trace.csv:3: not a time.*1,x,3"),
        ("t_s,input_tokens,output_tokens\n1,2\n", r"trace.csv:2: not a time"),
        ("t_s,input_tokens,output_tokens\n1,0,3\n", r"trace.csv:2: out of range: 1,0,3"),
        ("t_s,input_tokens,output_tokens\nnan,1,3\n", r"trace.csv:2: out of range"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trace(path)
