"""The workload of a scenario: what its sources send is what its file says."""

from pathlib import Path

import numpy as np
import pytest

from controlplane.simulator.clients import Clients, Send
from controlplane.simulator.mixes import mix
from controlplane.simulator.scenario.reading import parse_scenario
from controlplane.simulator.scenario.streams import build_sources
from controlplane.simulator.workload import ClosedLoop, OpenLoop, Replay

HEAD = """\
title: t
duration: {duration}
warmup: 0
fleet: [{{engine: h100-8b}}]
workload:
  times: {times}
  sources:
    - {source}
"""


def sent(
    source: str, times: float = 1, *, duration: str = "200s", seed: int = 1, base: Path = Path()
) -> list[Send]:
    """All that the clients of one source send (nobody answers)."""
    text = HEAD.format(source=source, times=times, duration=duration)
    scenario = parse_scenario(text, "s.yaml", base)
    rng = np.random.default_rng(seed)
    sources = build_sources(scenario.workload, scenario.duration, rng)
    clients = Clients(sources, np.random.default_rng(seed), scenario.duration)
    return [action for action in clients.advance(scenario.duration) if isinstance(action, Send)]


def times_of(sends: list[Send]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([send.at for send in sends])


def test_a_mix_sends_at_the_rate_and_in_the_shares_that_are_given() -> None:
    sends = sent("{name: chat, mix: azure-conv, rate: 40}")
    assert len(sends) == pytest.approx(8000, rel=0.05)
    names = [send.offer.source.name for send in sends]
    for part in mix("azure-conv").sources:
        assert names.count(f"chat-{part.name}") / len(sends) == pytest.approx(part.share, abs=0.03)


def test_times_multiplies_every_rate_and_keeps_the_order_of_what_is_sent() -> None:
    once, twice = (sent("{name: chat, mix: m-small, rate: 20}", times) for times in (1, 2))
    assert len(twice) == pytest.approx(2 * len(once), rel=0.05)
    of = {send.offer.id: send for send in twice}
    assert all(of[send.offer.id].request.prompt_tokens == send.request.prompt_tokens for send in once)


def test_an_uneven_mix_varies_more_than_a_poisson_stream() -> None:
    def dispersion(source: str) -> float:
        counts, _ = np.histogram(times_of(sent(source, duration="1h")), bins=360)
        return float(counts.var() / counts.mean())

    assert dispersion("{name: c, mix: azure-conv, rate: 5}") == pytest.approx(1, abs=0.3)
    assert dispersion("{name: c, mix: azure-conv, rate: 5, uneven: true}") > 2


def test_rates_follow_their_curves() -> None:
    steps = times_of(sent("{name: c, mix: m-small, rate: {kind: steps, points: [[0s, 10], [100s, 50]]}}"))
    assert (steps < 100).sum() == pytest.approx(1000, rel=0.1)
    assert (steps >= 100).sum() == pytest.approx(5000, rel=0.1)
    lines = times_of(sent("{name: c, mix: m-small, rate: {kind: lines, points: [[0s, 0], [200s, 40]]}}"))
    assert (lines < 100).sum() == pytest.approx(1000, rel=0.1)
    assert (lines >= 100).sum() == pytest.approx(3000, rel=0.1)


def test_users_of_a_mix_are_shared_out_over_its_sources() -> None:
    text = HEAD.format(source="{name: p, mix: m-small, users: 50, think: 5s}", times=3, duration="60s")
    scenario = parse_scenario(text, "s.yaml", Path())
    sources = build_sources(scenario.workload, 60.0, np.random.default_rng(1))
    loops = [source.arrives for source in sources]
    assert all(isinstance(loop, ClosedLoop) for loop in loops)
    assert [loop.users for loop in loops if isinstance(loop, ClosedLoop)] == [30, 20]  # not times 3


def test_lengths_of_ones_own_come_with_gaps_of_ones_own() -> None:
    lengths = "prompt: {kind: fixed, tokens: 9}, output: {kind: fixed, tokens: 4}"
    source = f"{{name: c, {lengths}, rate: 10, gaps: {{kind: even}}}}"
    sends = sent(source)
    assert {(send.request.prompt_tokens, send.request.output_tokens) for send in sends} == {(9, 4)}
    assert np.diff(times_of(sends)) == pytest.approx(0.1)
    text = HEAD.format(source=source, times=1, duration="60s")
    built = build_sources(parse_scenario(text, "s.yaml", Path()).workload, 60.0, np.random.default_rng(1))
    assert isinstance(built[0].arrives, OpenLoop)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """1,000 requests, one a second, each with its number as its length."""
    rows = "".join(f"{i},{i + 1},{i + 2}\n" for i in range(1000))
    (tmp_path / "t.csv").write_text("t_s,input_tokens,output_tokens\n" + rows)
    return tmp_path


def test_a_trace_is_replayed_in_order_at_the_rate_that_is_asked_for(trace: Path) -> None:
    sends = sent("{name: c, trace: {file: t.csv}, rate: 4}", base=trace)
    assert [send.request.prompt_tokens for send in sends] == list(range(1, len(sends) + 1))
    assert np.diff(times_of(sends)) == pytest.approx(0.25, rel=0.01)
    text = HEAD.format(source="{name: c, trace: {file: t.csv}, rate: 4}", times=1, duration="200s")
    built = build_sources(parse_scenario(text, "s.yaml", trace).workload, 200.0, np.random.default_rng(1))
    assert isinstance(built[0].arrives, Replay)


def test_only_the_window_of_a_trace_is_used(trace: Path) -> None:
    sends = sent("{name: c, trace: {file: t.csv, window: [500s, 900s]}, rate: 2}", base=trace)
    assert [send.request.prompt_tokens for send in sends] == list(range(501, 901))
    assert times_of(sends)[-1] == pytest.approx(199.5)


def test_a_resampled_trace_is_made_of_blocks_by_seed_and_never_ends(trace: Path) -> None:
    source = "{name: c, trace: {file: t.csv, resample: 50s}, rate: 10}"
    one, other = (sent(source, 2, seed=seed, base=trace) for seed in (1, 2))
    assert len(one) == pytest.approx(4000, rel=0.02)  # four times what the trace holds
    lengths = np.array([send.request.prompt_tokens for send in one])
    breaks = np.flatnonzero(np.diff(lengths) != 1)
    assert len(breaks) == pytest.approx(4000 / 50, abs=3)
    assert [send.request.prompt_tokens for send in other] != lengths.tolist()
    assert sent(source, 2, seed=1, base=trace) == one


def test_batched_times_are_spread(trace: Path) -> None:
    rows = "".join(f"{i // 30 * 3},{i + 1},{i + 2}\n" for i in range(3000))
    (trace / "batched.csv").write_text("t_s,input_tokens,output_tokens\n" + rows)
    batched = sent("{name: c, trace: {file: batched.csv}, rate: 10}", base=trace)
    spread = sent("{name: c, trace: {file: batched.csv, spread: 3s}, rate: 10}", base=trace)
    assert len(set(times_of(batched).tolist())) == pytest.approx(len(batched) / 30, abs=2)
    assert len(set(times_of(spread).tolist())) == len(spread)
    assert times_of(spread).tolist() == sorted(times_of(spread).tolist())
