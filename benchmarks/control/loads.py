"""The requests that the laws are tried with: published traces, or siblings of our own where those are not at
hand.

1x is the load at which the token goodput of an uncontrolled engine peaks, over five seeds; the bench looks
for it anew and tells where it is not there any more. Objectives lie on the bucket edges of engines. A seed of
a trace is a fifth of it (the whole fifths in turn) and the blocks that are drawn from that.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.reading import parse_scenario
from controlplane.simulator.trace import read_trace

TRACES = Path(__file__).parents[3] / "shared" / "reference" / "traces"
_PARTS = 5
_BLOCK_SECONDS = 300.0  # of trace time: bursts of minutes stay whole, and a fifth of each trace holds two


class Load(NamedTuple):
    """What clients send: a `source` as a scenario has it, at `rate` requests a second for 1x.

    A run lasts `seconds`, of which `warmup` are not measured: long enough for some hundred requests at 0.8x,
    and for the longest answers but few. `trace` is the file that a trace is in; its batches of arrivals are
    spread over `spread_seconds`.
    """

    name: str
    source: str
    ttft: str
    rate: float
    seconds: float
    warmup: float
    trace: str | None = None
    spread_seconds: float = 0.0

    def scenario(self, times: float, seed: int, seconds: float, warmup: float) -> Scenario:
        """One engine under `times` this load."""
        text = _SCENARIO.format(
            title=self.name,
            seconds=seconds,
            warmup=warmup,
            seed=seed,
            ttft=self.ttft,
            times=times,
            source=self.source if self.trace is None else self._window(seed),
            rate=self.rate,
        )
        return parse_scenario(text, self.name, TRACES)

    def _window(self, seed: int) -> str:
        assert self.trace is not None
        first, last = _bounds(TRACES / self.trace)
        part = (last - first) / _PARTS
        start = first + (seed - 1) % _PARTS * part
        return (
            f"trace: {{file: {self.trace}, window: [{start}s, {start + part}s], "
            f"resample: {_BLOCK_SECONDS}s, spread: {self.spread_seconds}s}}"
        )


_SCENARIO = """\
title: {title}
duration: {seconds}s
warmup: {warmup}s
seed: {seed}
fleet: [{{engine: h100-8b}}]
slo: {{ttft: {ttft}, tpot: 50ms}}
workload:
  times: {times}
  sources:
    - name: clients
      {source}
      rate: {rate}
"""

_LONG = """\
prompt: {kind: lognormal, median: 6900, sigma: 1.05, largest: 120000}
      output: {kind: lognormal, median: 330, sigma: 0.5, largest: 2000}"""

_PUBLISHED = (
    Load("azure-conv", "", "1s", 16.0, 300.0, 60.0, "azure2023_conv.csv"),
    Load("azure-code", "", "2500ms", 3.4, 900.0, 60.0, "azure2023_code.csv"),
    Load("r1", "", "2500ms", 5.3, 600.0, 120.0, "servegen_deepseek_r1_reason.csv"),
    Load("m-small", "", "1s", 90.0, 180.0, 60.0, "servegen_m_small.csv"),
    Load("mooncake", "", "10s", 0.74, 900.0, 120.0, "mooncake_fast25_conversation.csv", 3.0),
)
_OWN = (
    Load("own-conv", "mix: azure-conv", "1s", 17.5, 300.0, 60.0),
    Load("own-code", "mix: azure-code", "2500ms", 11.4, 300.0, 60.0),
    Load("own-r1", "mix: r1-reasoning", "2500ms", 8.5, 600.0, 120.0),
    Load("own-small", "mix: m-small", "1s", 151.0, 180.0, 60.0),
    Load("own-long", _LONG, "10s", 1.2, 900.0, 120.0),
)


def loads() -> tuple[Load, ...]:
    """The published traces where they are, else our own mixes."""
    return _PUBLISHED if TRACES.is_dir() else _OWN


@cache
def _bounds(path: Path) -> tuple[float, float]:
    rows = read_trace(path)
    return rows[0].at, rows[-1].at
