"""The ready mixes resemble the traces that they are named after, by the traces' published statistics."""

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from controlplane.simulator.mixes import mix, mixes
from controlplane.simulator.workload import OpenLoop, open_arrivals

TRACES = Path(__file__).parents[3] / "shared" / "reference" / "traces"

# Mean and p50, p90, p99 of prompt and output; CV of the gaps; variance over mean of counts in 10 and in 60 s.
PUBLISHED = {
    "azure-code": ((2048, 1469, 5188, 7436), (27.9, 13, 55, 251), 13.2, 71.7, 164.0),
    "azure-conv": ((1155, 1020, 2734, 4142), (211, 129, 424, 601), 1.09, 3.9, 16.1),
    "r1-reasoning": ((788, 278, 972, 15579), (770, 513, 1476, 3401), 1.36, 10.9, 52.0),
    "m-small": ((139, 54, 336, 1322), (46, 10, 161, 256), 1.38, 7.5, 21.1),
}
TRACE_FILES = {
    "azure-code": "azure2023_code.csv",
    "azure-conv": "azure2023_conv.csv",
    "r1-reasoning": "servegen_deepseek_r1_reason.csv",
    "m-small": "servegen_m_small.csv",
}
HOURS = 7200.0


def drawn(name: str, seed: int) -> NDArray[np.float64]:
    """Two hours of a mix: rows of time, prompt and output."""
    build, send = np.random.default_rng(seed).spawn(2)
    sources = mix(name).build(mix(name).rate, HOURS, build)
    rows = [
        row
        for source, rng in zip(sources, send.spawn(len(sources)), strict=True)
        for row in open_arrivals(source, rng, HOURS)
    ]
    return np.array(sorted(rows))


def sizes(column: NDArray[np.float64]) -> list[float]:
    return [float(column.mean()), *np.percentile(column, (50, 90, 99)).tolist()]


def burstiness(times: NDArray[np.float64], until: float) -> list[float]:
    gaps = np.diff(times)
    found = [float(gaps.std() / gaps.mean())]
    for width in (10, 60):
        whole = int(until // width)
        counts = np.bincount((times // width).astype(int), minlength=whole)[:whole]
        found.append(float(counts.var() / counts.mean()))
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_lengths_are_those_of_the_trace(name: str) -> None:
    prompt, output, *_ = PUBLISHED[name]
    rows = np.concatenate([drawn(name, seed) for seed in range(3)])
    assert sizes(rows[:, 1]) == pytest.approx(prompt, rel=0.15)
    assert sizes(rows[:, 2]) == pytest.approx(output, rel=0.15)


@pytest.mark.parametrize("name", PUBLISHED)
def test_arrivals_are_as_bursty_as_those_of_the_trace(name: str) -> None:
    """Median of five runs within a factor of 1.5: one hour of a trace differs as much from the next."""
    runs = [burstiness(drawn(name, seed)[:, 0], HOURS) for seed in range(5)]
    for found, expected in zip(np.median(runs, axis=0).tolist(), PUBLISHED[name][2:], strict=True):
        assert expected / 1.5 < found < expected * 1.5, (name, found, expected)


def test_prompts_and_answers_are_tied_as_in_the_traces() -> None:
    """Spearman: m-small 0.68, r1 -0.30, azure code -0.02; only through which client asks."""

    def spearman(name: str) -> float:
        rows = drawn(name, 1)
        ranks = [np.argsort(np.argsort(rows[:, i])) for i in (1, 2)]
        return float(np.corrcoef(*ranks)[0, 1])

    assert spearman("m-small") == pytest.approx(0.68, abs=0.15)
    assert spearman("r1-reasoning") == pytest.approx(-0.30, abs=0.15)
    assert spearman("azure-code") == pytest.approx(-0.02, abs=0.05)


@pytest.mark.parametrize("name", TRACE_FILES)
@pytest.mark.skipif(
    not TRACES.is_dir(), reason=f"no traces at {TRACES.parent}: the published figures are checked"
)
def test_the_published_figures_are_those_of_the_trace(name: str) -> None:
    with (TRACES / TRACE_FILES[name]).open() as file:
        rows = np.array([[float(cell) for cell in row] for row in list(csv.reader(file))[1:]])
    prompt, output, *bursts = PUBLISHED[name]
    assert sizes(rows[:, 1]) == pytest.approx(prompt, rel=0.01)
    assert sizes(rows[:, 2]) == pytest.approx(output, rel=0.015)
    assert burstiness(rows[:, 0], float(rows[-1, 0])) == pytest.approx(bursts, rel=0.03)


def test_a_steady_mix_has_the_same_lengths_and_a_constant_rate() -> None:
    sources = mix("azure-conv").build_steady(8.0)
    rates = [s.arrives.rate.at(1234.0) for s in sources if isinstance(s.arrives, OpenLoop)]
    assert sum(rates) == pytest.approx(8.0)
    assert [source.prompt for source in sources] == [source.prompt for source in mix("azure-conv").sources]


def test_shares_add_up_and_sources_are_named() -> None:
    for name, made in mixes().items():
        assert sum(source.share for source in made.sources) == pytest.approx(1.0), name
        assert made.like
    with pytest.raises(ValueError, match=r"'nothing'.*azure-code"):
        mix("nothing")
