"""Fit constants of the step law: to a run that was measured request by request, or to a few closed loops."""

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.closed_loop import Point, Users, closed_loop
from benchmarks.nelder_mead import nelder_mead
from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Finished, Request
from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw


class Measured(NamedTuple):
    """One request of a run. Times in seconds; TTFT and e2e count from when the scheduler took it in."""

    queued_at: float
    prompt_tokens: int
    output_tokens: int
    ttft: float
    e2e: float


class Latencies(NamedTuple):
    """Seconds of all requests of a run, in their order."""

    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    e2e: NDArray[np.float64]

    def part(self, which: slice) -> "Latencies":
        return Latencies(self.ttft[which], self.tpot[which], self.e2e[which])


def latencies(run: Sequence[Measured]) -> Latencies:
    """What was measured."""
    return _latencies([(row.ttft, row.e2e, row.output_tokens) for row in run])


def simulate(run: Sequence[Measured], law: StepLaw, settings: EngineSettings) -> Latencies:
    """What the engine does with the same requests at the same times."""
    engine = Engine(law, settings)
    events = []
    for number, row in enumerate(run):
        events += engine.advance(row.queued_at)
        engine.submit(Request(str(number), row.prompt_tokens, row.output_tokens), row.queued_at)
    events += engine.advance(1e9)
    finished = {event.request_id: event for event in events if isinstance(event, Finished)}
    rows = [finished[str(number)] for number in range(len(run))]
    return _latencies([(f.first_token_at - f.queued_at, f.at - f.queued_at, f.output_tokens) for f in rows])


def fit(
    run: Sequence[Measured],
    first: int,
    law: StepLaw,
    settings: EngineSettings,
    *,
    free: Sequence[str],
    tries: int = 150,
) -> StepLaw:
    """The law that meets TPOT and e2e of the `first` requests best; only its constants in `free` may change.

    All requests arrive in the simulation, since later ones load the engine too, but no latency of a later one
    is used, and no TTFT at all. Error: mean squared relative error of TPOT and of e2e, request by request.
    """
    known = latencies(run).part(slice(first))

    def changed(point: Sequence[float]) -> StepLaw:
        # `host` may start at 0, so it moves by milliseconds; the others are factors.
        values = {
            name: max(value, 0.0) * 1e-3 if name == "host" else getattr(law, name) * max(value, 0.0)
            for name, value in zip(free, point, strict=True)
        }
        return msgspec.structs.replace(law, **values)

    def error(point: Sequence[float]) -> float:
        found = simulate(run, changed(point), settings).part(slice(first))
        return float(np.mean((found.tpot / known.tpot - 1) ** 2) + np.mean((found.e2e / known.e2e - 1) ** 2))

    start = [law.host * 1e3 + 1.0 if name == "host" else 1.0 for name in free]
    step = [1.0 if name == "host" else 0.1 for name in free]
    return changed(nelder_mead(error, start, step, tries))


def fit_loops(
    measured: Mapping[Users, Point], settings: EngineSettings, *, free: Sequence[str], tries: int = 100
) -> StepLaw:
    """The law that meets mean TTFT and token gap of closed loops best; the constants not in `free` are 0.

    Error: mean squared logarithm of simulated over measured. Throughput is not used.
    """
    alone = min(measured, key=lambda users: users.count)
    gap, ttft = measured[alone].gap_seconds, measured[alone].ttft_seconds
    prompt = float(np.mean(alone.prompt.draw(np.random.default_rng(1), 1000)))
    likely = {"weights": gap / 2, "host": gap / 2, "token": ttft / prompt, "sequence": gap / 50}
    nothing = StepLaw(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def law(point: Sequence[float]) -> StepLaw:
        values = {name: exp(value) for name, value in zip(free, point, strict=True)}
        return msgspec.structs.replace(nothing, **values)

    def error(point: Sequence[float]) -> float:
        total = 0.0
        for users, known in measured.items():
            found = closed_loop(law(point), settings, users)
            total += log(found.ttft_seconds / known.ttft_seconds) ** 2
            total += log(found.gap_seconds / known.gap_seconds) ** 2
        return total / (2 * len(measured))

    return law(nelder_mead(error, [log(likely[name]) for name in free], [0.5] * len(free), tries))


def _latencies(rows: list[tuple[float, float, int]]) -> Latencies:
    ttft, e2e, output = np.array(rows, float).T
    return Latencies(ttft, (e2e - ttft) / np.maximum(output - 1, 1), e2e)
