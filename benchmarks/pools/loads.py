"""The requests that the pools are tried with: published traces where they are, and always our own mixes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.simulator.mixes import mix
from controlplane.simulator.trace import TraceRow, faster, read_trace, spread, window
from controlplane.simulator.workload import open_arrivals

TRACES = Path(__file__).parents[3] / "shared" / "reference" / "traces"
_AZURE = ("azure2023_code.csv", "azure2023_conv.csv")
_MOONCAKE, _MOONCAKE_STEP_SECONDS = "mooncake_fast25_conversation.csv", 3.0
_REASONING = "servegen_deepseek_r1_reason.csv"


Tokens = NDArray[np.float64]


class Load(NamedTuple):
    """Requests of a `source`, in order of time from second 0, and a rate to try them at on a small fleet."""

    name: str
    source: str
    rows: Sequence[TraceRow]
    rate: float

    @property
    def own_rate(self) -> float:
        return len(self.rows) / self.rows[-1].at

    def at(self, rate: float, seconds: float) -> list[TraceRow]:
        """The first `seconds` at so many requests a second; gaps shrink alike, so bursts stay bursts. Raises
        ValueError where there are fewer."""
        rows = faster(list(self.rows), rate / self.own_rate)
        if rows[-1].at < seconds:
            raise ValueError(f"{self.name} lasts {rows[-1].at:.0f} s at {rate:g} req/s, not {seconds:g} s")
        return window(rows, 0.0, seconds)

    def sizes(self) -> tuple[Tokens, Tokens]:
        """Prompts and outputs."""
        table = np.array(self.rows, dtype=np.float64)
        return table[:, 1], table[:, 2]


def traces() -> list[Load]:
    """The published traces; empty where they are not at hand."""
    if not TRACES.is_dir():
        return []
    azure = sorted(row for name in _AZURE for row in read_trace(TRACES / name))
    mooncake = spread(read_trace(TRACES / _MOONCAKE), _MOONCAKE_STEP_SECONDS, np.random.default_rng(1))
    start = mooncake[0].at
    mooncake = [row._replace(at=row.at - start) for row in mooncake]
    return [
        Load("azure", "Azure 2023, code and conversation", azure, 100.0),
        Load("mooncake", "Mooncake FAST'25, conversation", mooncake, 8.0),
        Load("reasoning", "ServeGen deepseek-r1", read_trace(TRACES / _REASONING), 60.0),
    ]


def own(seconds: float = 7200.0) -> list[Load]:
    """Our mixes, of Poisson streams."""
    return [
        Load(
            "own azure-like",
            "mixes azure-code and azure-conv",
            _mixed(["azure-code", "azure-conv"], seconds),
            100.0,
        ),
        Load("own reasoning", "mix r1-reasoning", _mixed(["r1-reasoning"], seconds), 60.0),
    ]


def _mixed(names: Sequence[str], seconds: float) -> list[TraceRow]:
    rows = []
    for number, name in enumerate(names):
        sources = mix(name).build_steady(mix(name).rate)
        for place, source in enumerate(sources):
            rng = np.random.default_rng([7, number, place])
            rows += [TraceRow(*arrival) for arrival in open_arrivals(source, rng, seconds)]
    return sorted(rows)


def renewed(rows: Sequence[TraceRow], cv: float, seed: int) -> list[TraceRow]:
    """The same requests in the same time with independent gaps of coefficient of variation `cv` (0: even)."""
    rng = np.random.default_rng(seed)
    count = len(rows)
    gaps = np.ones(count) if cv == 0 else rng.standard_gamma(cv**-2, count) * cv**2
    times = np.cumsum(gaps)
    times *= rows[-1].at / times[-1]
    return [row._replace(at=at) for row, at in zip(rows, times.tolist(), strict=True)]
