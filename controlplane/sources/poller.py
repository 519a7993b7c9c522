"""Polls the page of every target once an interval, in `rounds`, and has it read."""

import asyncio
import math
import os
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from controlplane.signals.histogram import Histogram
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Target
from controlplane.sources.answer import light
from controlplane.sources.exposition import UnfamiliarError
from controlplane.sources.fetch import METRICS, Answer, Errand, Failed, FailureKind, Fetch
from controlplane.sources.rounds import AT_ONCE, Rounds
from controlplane.sources.settings import ScrapeSettings


class PageReader(Protocol):
    """Reads the answers of one target, one at a time, and remembers its pages."""

    def __call__(
        self, answer: Answer, at: float, seconds: float, *, quickly: bool = False
    ) -> Scrape | ScrapeFailure:
        """What an answer says that arrived at Unix time `at` after `seconds`.

        UnfamiliarError where it is to be read `quickly` and cannot be.
        """
        ...


CONCURRENT_SCRAPES = 512
"""Most scrapes under way at once; each may hold a whole body in memory and one open file."""

_LIGHT_BYTES = 256 * 1024  # pages up to this size are read in the event loop, where only their numbers moved
_KEPT_ROUNDS = 4  # results kept, in rounds of all targets, while nobody takes them
_ACCEPT = {"auto": (METRICS, "gzip"), "ollama": ("application/json", "identity")}
_SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)


@dataclass
class PollCounts:
    """What the poller did since its start.

    `results` counts ended scrapes, by "ok" or the kind of failure; `dropped` results that nobody took in
    time.
    """

    results: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    total_seconds: float = 0.0
    _seconds: list[int] = field(default_factory=lambda: [0] * len(_SECONDS_BOUNDS))

    def ended(self, result: str, seconds: float) -> None:
        self.results[result] = self.results.get(result, 0) + 1
        self.total_seconds += seconds
        self._seconds[bisect_left(_SECONDS_BOUNDS, seconds)] += 1

    @property
    def seconds(self) -> Histogram:
        """Durations of ended scrapes."""
        below, cumulative = 0.0, []
        for inside in self._seconds:
            below += inside
            cumulative.append(below)
        return Histogram(_SECONDS_BOUNDS, tuple(cumulative), self.total_seconds)


@dataclass(eq=False)
class _Polled:
    """One target under poll."""

    target: Target
    errand: Errand
    read: PageReader


class Poller:
    """Polls all targets with one client. Everything happens on the running event loop.

    `fetch` asks (see `fetch.Client.get`), `reader_for` makes what reads a target's answers. `monotonic`
    is the clock of `poll_due`'s `now`; `wall` (Unix seconds) only stamps results.
    """

    def __init__(
        self,
        settings: ScrapeSettings,
        fetch: Fetch,
        reader_for: Callable[[Target], PageReader],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.counts = PollCounts()
        self._rounds: Rounds[_Polled] = Rounds(settings.interval, self._scrape, most=CONCURRENT_SCRAPES)
        self._fetch = fetch
        self._reader_for = reader_for
        self._monotonic = monotonic
        self._wall = wall
        self._errands = {
            engine: Errand(accept, settings.timeout, settings.max_body, encoding, settings.auth, settings.tls)
            for engine, (accept, encoding) in _ACCEPT.items()
        }
        self._polled: dict[str, _Polled] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slow-pages")
        self._results: list[Scrape | ScrapeFailure] = []

    @property
    def missed_turns(self) -> int:
        """Scrapes that did not begin, since the start."""
        return self._rounds.missed_turns

    def set_targets(self, targets: tuple[Target, ...], now: float) -> None:
        """Poll these from now on. What a target's reader remembers is kept where the target is the same.

        The scrape of a target that left is given up.
        """
        old = self._polled
        self._polled = {}
        for target in targets:
            polled = old.get(target.name)
            if polled is None or polled.target != target:
                polled = _Polled(target, self._errands[target.engine], self._reader_for(target))
            self._polled[target.name] = polled
        self._rounds.set(self._polled, now)

    def poll_due(self, now: float) -> None:
        """Start the scrapes that are due at monotonic time `now`; see `Rounds.start_due`."""
        self._rounds.start_due(now)

    def take(self) -> tuple[Scrape | ScrapeFailure, ...]:
        """All results since the last call, in the order of their arrival."""
        results, self._results = tuple(self._results), []
        return results

    async def close(self) -> None:
        """Give up all scrapes under way."""
        await self._rounds.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _scrape(self, polled: _Polled) -> None:
        result = await self._result(polled)
        self._results.append(result)
        excess = len(self._results) - max(_KEPT_ROUNDS * len(self._polled), AT_ONCE)
        if excess > 0:
            del self._results[:excess]
            self.counts.dropped += excess

    async def _result(self, polled: _Polled) -> Scrape | ScrapeFailure:
        started = self._monotonic()
        answer = await self._fetch(polled.target.url, polled.errand)
        seconds, at = self._monotonic() - started, self._wall()
        if isinstance(answer, Failed):
            self.counts.ended(answer.kind, seconds)
            return _failure(polled.target, at, answer.detail)
        # What a target prints must not hold up the others: only what is quick is read in the event loop.
        page = light(answer.body, _LIGHT_BYTES)
        read = None
        if page is not None:
            answer = msgspec.structs.replace(answer, body=page)
            read = _read(polled, answer, at, seconds, quickly=True)
        if read is None:
            slowly = partial(_read, polled, answer, at, seconds, quickly=False)
            read = await asyncio.get_running_loop().run_in_executor(self._thread, slowly)
        assert read is not None
        result, kind = read
        self.counts.ended(kind, seconds)
        return result


def _failure(target: Target, at: float, detail: str) -> ScrapeFailure:
    return ScrapeFailure(target.name, at, Reason.SCRAPE_FAILED, detail)


def _read(
    polled: _Polled, answer: Answer, at: float, seconds: float, *, quickly: bool
) -> tuple[Scrape | ScrapeFailure, str] | None:
    """What an answer says, and how that counts; None where it cannot be read quickly."""
    try:
        result = polled.read(answer, at, seconds, quickly=quickly)
        return result, "ok" if isinstance(result, Scrape) else FailureKind.CONTENT
    except UnfamiliarError:
        return None
    except Exception as error:  # one odd page must not cost the others
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        detail = f"cannot be read: {type(error).__name__} at {place}"
        return _failure(polled.target, at, detail), FailureKind.OWN_FAULT
