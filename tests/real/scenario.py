"""One day in the life of a server, in three minutes: what is sent to it while the daemon watches.

Light load, load around the objective, overload with preemptions, clients that hang up, clients that wait
in vain, a server that dies under load, and the same server come back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .history import Objective
from .load import HangUp, Load, Outcome, Record, Report, parse_lengths, run_load
from .server import VllmServer, sample_sum, wait_until
from .watcher import Watcher
from .witness import Blind, note_blindness

POOL = "chat"
OBJECTIVE = Objective(ttft_seconds=2.5, tpot_seconds=0.01)
"""On edges of vLLM's buckets, and such that overload misses it in part: the first token of some requests
is late, and those that were preempted are slow."""

LOADS: Mapping[str, Mapping[str, Any]] = {
    "light": {"rate": 4, "clients": 32, "seconds": 20, "prompt": "16-96", "output": "1-96"},
    "mixed": {"clients": 24, "seconds": 28, "prompt": "16-200", "output": "lognormal:120:0.8:1-600"},
    "overload": {"clients": 40, "seconds": 25, "prompt": "64", "output": "400"},
    # Long before the end, or the answer might be whole before the engine hears that nobody wants it.
    "hang-ups": {
        "clients": 12,
        "seconds": 12,
        "output": "500",
        "hang_up": HangUp(after_tokens=20, share=0.5),
    },
    # The patient ones are more than it can serve, so that the others leave the queue without a token.
    "impatient": {
        "rate": 24,
        "clients": 48,
        "seconds": 12,
        "output": "400",
        "hang_up": HangUp(after_seconds=1.2, share=0.5),
    },
    # Of different lengths, or all would end, and the next ones begin, in the same moment.
    "restart": {"clients": 12, "seconds": 8, "prompt": "64", "output": "300-800"},
    "after": {"clients": 12, "seconds": 12, "prompt": "32", "output": "100-300"},
}
RESTARTED = "restart"
HOLDER = "a person"
FINISHED_BEFORE_THE_END = 4

_COUNTERS = {
    "finished": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "e2e_seconds": "vllm:e2e_request_latency_seconds_sum",
}


def counters(page: str) -> dict[str, float]:
    """The engine's counters as a plain parser reads them, and the answered requests of its HTTP server."""
    read = {name: sample_sum(page, metric) for name, metric in _COUNTERS.items()}
    return read | {"answered": sample_sum(page, "http_requests_total", method="POST", status="2xx")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One load, and the engine's counters around it, at rest.

    The newest page that the daemon had at `over_at` is one of rest too. A server that died has no counters
    `after` its phase; one that is new begins at nothing.
    """

    name: str
    report: Report
    begun: float
    over_at: float
    before: dict[str, float]
    after: dict[str, float] | None

    @property
    def records(self) -> list[Record]:
        """All requests of the phase."""
        return self.report.records

    def grew(self, counter: str) -> float:
        """Growth of one of the engine's counters over the phase."""
        assert self.after is not None
        return self.after[counter] - self.before[counter]

    @property
    def mean_offset_seconds(self) -> float | None:
        """How much longer requests took for their clients than for the engine; None where none finished."""
        took = [record.e2e_seconds for record in self.records if record.outcome is Outcome.OK]
        if self.after is None or not took:
            return None
        return (sum(took) - self.grew("e2e_seconds")) / len(took)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that happened, and all that the daemon said about it."""

    phases: list[Phase]
    killed_at: float
    """The server had been killed by then, and was alive `kill_began_at`."""
    kill_began_at: float
    blind: Blind
    looks: list[dict[str, Any]]
    events: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    journal: Path
    log: str
    exit_code: int | None

    @property
    def records(self) -> list[Record]:
        """All requests of the run."""
        return [record for phase in self.phases for record in phase.records]

    def phase(self, name: str) -> Phase:
        """The phase of that name."""
        return next(phase for phase in self.phases if phase.name == name)

    def phase_at(self, at: float) -> str:
        """The name of the phase that was under way, or had been last."""
        return [phase.name for phase in self.phases if phase.begun <= at or phase is self.phases[0]][-1]


async def play(server: VllmServer, directory: Path) -> Run:
    """Run it all against a server that is up. Every wait ends on a condition, or fails at a deadline."""
    blind: Blind = []
    looking_away = asyncio.create_task(note_blindness(blind))
    async with Watcher(
        directory,
        server.base_url,
        pool=POOL,
        ttft=OBJECTIVE.ttft_seconds,
        tpot=OBJECTIVE.tpot_seconds,
    ) as watcher:
        stage = _Stage(server, watcher)
        await stage.watched_at_rest()
        await stage.hold_and_release()
        for name in ("light", "mixed", "overload", "hang-ups", "impatient"):
            await stage.play(name)
        kill_began_at, killed_at = await stage.kill_under_load()
        await server.start()
        await stage.watched_at_rest()
        await stage.play("after")
        await stage.all_is_counted()
        events = (await watcher.ask("/api/v1/events?limit=1000"))["items"]
        decisions = (await watcher.ask("/api/v1/decisions?limit=1000"))["items"]
    looking_away.cancel()
    return Run(
        phases=stage.phases,
        blind=blind,
        killed_at=killed_at,
        kill_began_at=kill_began_at,
        looks=watcher.looks,
        events=events,
        decisions=decisions,
        journal=watcher.journal,
        log=watcher.log,
        exit_code=watcher.exit_code,
    )


class _Stage:
    def __init__(self, server: VllmServer, watcher: Watcher) -> None:
        self.phases: list[Phase] = []
        self._server, self._watcher = server, watcher
        self._counters: dict[str, float] = {}

    async def watched_at_rest(self) -> None:
        """Wait until nothing runs and the daemon has a page of that."""
        self._counters = counters(await self._server.settled_metrics())
        await self._watcher.page_after(time.time())

    async def hold_and_release(self) -> None:
        """Order a hold over the API, wait until ticks know of it, and take it back."""
        order = {"reason": "a look at the engine", "by": HOLDER}
        await self._watcher.ask("/api/v1/hold", method="POST", json=order)
        await wait_until(self._held)
        await self._watcher.ask("/api/v1/hold", method="DELETE", params={"by": HOLDER})

    async def _held(self) -> bool:
        return self._watcher.looks[-1]["orders"]["hold"] is not None

    async def play(self, name: str) -> None:
        """One load from rest to rest."""
        before, begun = self._counters, time.time()
        report = await run_load(self._load(name))
        await self.watched_at_rest()
        self.phases.append(
            Phase(
                name=name,
                report=report,
                begun=begun,
                over_at=time.time(),
                before=before,
                after=self._counters,
            )
        )

    async def kill_under_load(self) -> tuple[float, float]:
        """Kill every process of the server while answers are being written."""
        before, begun = self._counters, time.time()
        running = asyncio.create_task(run_load(self._load(RESTARTED)))

        async def some_finished() -> bool:
            now = counters(await self._server.metrics())
            return now["finished"] - before["finished"] >= FINISHED_BEFORE_THE_END

        await wait_until(some_finished)
        kill_began_at = time.time()
        await asyncio.to_thread(self._server.kill)
        killed_at = time.time()
        report = await running
        self.phases.append(
            Phase(
                name=RESTARTED,
                report=report,
                begun=begun,
                over_at=time.time(),
                before=before,
                after=None,
            )
        )
        return kill_began_at, killed_at

    async def all_is_counted(self) -> None:
        """Wait until the goodput cell is closed in which the last request ended: totals grow only then.

        That is told by their number, or, where some died uncounted with the server, by a whole cell's time.
        """
        finished = sum(record.outcome is Outcome.OK for phase in self.phases for record in phase.records)
        closed_by = time.time() + OBJECTIVE.cell_seconds + 1.0

        async def counted() -> bool:
            pool = self._watcher.looks[-1]["pools"][0]
            counted_up = pool["totals"]["finished"] == finished
            return counted_up or bool(pool["load"]["running"]["at"] > closed_by)

        await wait_until(counted, 3 * OBJECTIVE.cell_seconds)

    def _load(self, name: str) -> Load:
        options = dict(LOADS[name])
        for lengths in ("prompt", "output"):
            if lengths in options:
                options[lengths] = parse_lengths(options[lengths])
        return Load(base_url=self._server.base_url, seed=len(self.phases), **options)
