"""A fleet seen through the Prometheus query API instead of our own scrapes.

A *round* asks, at one common time of evaluation: when was each target last scraped; was it up; and one query
a signal for all engines. The answers are put together into pages (`fleet_pages`) and read by the dialects
like scraped ones. What a round finds is news only where Prometheus has scraped since the round before; a
round without news costs one query.

Times. A page is as old as its scrape, told by the samples' own time stamps: a Prometheus that answers but no
longer scrapes brings no news, and what was known becomes stale by its age. The first query names no time, so
the server's clock sets the time of evaluation of all; where that clock is more than CLOCK_TOLERANCE_SECONDS
off, times are brought to our clock and the difference is told.

Failures. A server that does not answer, or not as a query API, or no query for a signal at all, is away: the
next round waits (doubling, with jitter). A query that fails alone (422: too much to load; too slow) waits
alone, and its signals are unknown meanwhile. A query that is wrong (400) is not asked again by this source:
new settings make a new one. While the server is away no target is said to fail: it is Prometheus that cannot
be seen. Each trouble is told once when it begins and once when it is over.

Nothing is concluded from silence. An answer with warnings is partial: its pages are marked, and a target that
is not in it may still be there. An empty answer takes no target away, because that is also what a Prometheus
says that has just started; a target leaves when others are there and it has been missing for FORGET_SECONDS.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import msgspec

from controlplane.signals.backoff import backoff_seconds
from controlplane.signals.decision import Event, Severity
from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.samples import Scrape, ScrapeFailure, Target
from controlplane.sources.catalog import Catalog
from controlplane.sources.fleet_round import Heard, Questioner
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.query_answer import Retry
from controlplane.sources.query_client import QueryClient

FORGET_SECONDS: Final = 60.0
"""A target leaves after it has been missing from whole answers for this long."""


class Round(msgspec.Struct, frozen=True):
    """What one round brought: the whole new list of targets (None: as before), news, what is to be told."""

    targets: tuple[Target, ...] | None = None
    scrapes: tuple[Scrape | ScrapeFailure, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass
class RoundCounts:
    """What was counted since the start.

    `results` are rounds by "ok" or the reason of the failure, `skipped` those that did not begin because the
    one before had not ended, `dropped_samples` the samples of engines that are NaN or infinite.
    """

    results: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    dropped_samples: int = 0


class PrometheusSource:
    """Asks one server about one fleet. `poll` and the rest belong to the event loop, queries to a thread.

    `failure` says why the server cannot be seen just now. `monotonic` (seconds) is for waiting, `wall` (Unix
    seconds) stamps what is told, `luck` gives random numbers from 0 to 1; `client` asks (None: over HTTP).
    """

    def __init__(
        self,
        settings: PrometheusSettings,
        catalog: Catalog,
        *,
        client: QueryClient | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self.counts = RoundCounts()
        self.targets: tuple[Target, ...] = ()
        self.failure: Unknown | None = None
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._luck = luck
        self._client = client or QueryClient(settings, clock=wall, monotonic=monotonic)
        self._questioner = Questioner(settings, catalog, self._client, monotonic)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prometheus")
        self._running: asyncio.Future[Heard] | None = None
        self._server_wait = self._new_wait()
        self._query_waits: dict[str, _Wait] = {}
        self._server_troubles = _Troubles()
        self._other_troubles = _Troubles()
        self._read: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}
        self._clock_ahead_seconds = 0.0
        self._notes: tuple[str, ...] | None = None  # the warnings of partial answers

    async def poll(self) -> Round:
        """One round, unless the one before is still under way or the server is being given time.

        To be called every polling interval. A server that drips the head of an answer cannot be cut off: its
        round is given up, and further ones are skipped until that connection ends.
        """
        if self._running is not None and not self._running.done():
            self.counts.skipped += 1
            return Round()
        now = self._monotonic()
        if now < self._server_wait.until:
            return Round()
        waiting = {
            subject: wait.failure.reason
            for subject, wait in self._query_waits.items()
            if wait.failure is not None and now < wait.until
        }
        self._running = asyncio.get_running_loop().run_in_executor(
            self._thread, self._questioner.ask, dict(self._read), waiting, self._clock_ahead_seconds
        )
        try:
            # Twice the timeout is what an answer may take that stops in its middle.
            async with asyncio.timeout(2 * self._settings.timeout + 10):
                heard = await asyncio.shield(self._running)
        except TimeoutError:
            failure = Unknown(Reason.UNAVAILABLE, self._wall(), "a round does not end")
            heard = Heard(failure)
        return self._conclude(heard, self._monotonic(), self._wall())

    def close(self) -> None:
        """Ask no more. A round under way ends by its timeout."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _conclude(self, heard: Heard, now: float, at: float) -> Round:
        for subject, (failure, retry) in heard.failed.items():
            wait = self._query_waits.setdefault(subject, self._new_wait())
            wait.failed(failure, retry, now, self._luck())
        for subject in heard.answered:
            self._query_waits.pop(subject, None)
        self.failure = heard.failure
        result = "ok" if heard.failure is None else heard.failure.reason.value
        self.counts.results[result] = self.counts.results.get(result, 0) + 1
        if heard.failure is not None:
            self._missing_since.clear()
            if heard.failure.reason is Reason.NO_DATA:  # it is there, and need not be spared
                self._server_wait = self._new_wait()
            else:
                self._server_wait.failed(heard.failure, heard.retry, now, self._luck())
            never = "; it is not asked again until the settings change" if heard.retry is Retry.NO else ""
            sentence = f"Prometheus at {self._settings.url}: {heard.failure.detail}{never}"
            standing = {(f"prometheus-{result}", self._settings.url): sentence}
            return Round(events=self._server_troubles.tell(standing, at))
        self.counts.dropped_samples += heard.dropped_samples
        self._server_wait = self._new_wait()
        self._clock_ahead_seconds = heard.clock_ahead_seconds
        if heard.partial or heard.answered:  # a round without news says nothing about most answers
            self._notes = heard.notes if heard.partial else None
        names = {target.name for target in heard.targets}
        self._read = {name: seen for name, seen in self._read.items() if name in names} | heard.read
        targets = self._joined(heard, now)
        changed, self.targets = targets != self.targets, targets
        events = self._server_troubles.tell({}, at) + self._other_troubles.tell(self._oddities(heard), at)
        return Round(targets if changed else None, tuple(heard.scrapes), events)

    def _new_wait(self) -> "_Wait":
        return _Wait(self._settings.backoff_first, self._settings.backoff_limit)

    def _joined(self, heard: Heard, now: float) -> tuple[Target, ...]:
        """The targets that are there, and those that may be."""
        there = {target.name: target for target in heard.targets}
        missing = [target for target in self.targets if target.name not in there]
        since = {target.name: self._missing_since.get(target.name, now) for target in missing}
        if heard.partial:  # says nothing about who is missing, nor for how long
            since = dict.fromkeys(since, now)
        self._missing_since = since
        kept = [target for target in missing if now - since[target.name] < FORGET_SECONDS]
        return tuple(sorted((*there.values(), *kept), key=lambda target: target.name))

    def _oddities(self, heard: Heard) -> dict[tuple[str, str], str]:
        url, ahead = self._settings.url, heard.clock_ahead_seconds
        odd = {
            ("query-failing", subject): f"the query for {subject} fails: {wait.failure.detail}; it is unknown"
            for subject, wait in self._query_waits.items()
            # Once unavailable is more likely the server than the query; the next round will tell.
            if wait.failure is not None
            and (wait.failures > 1 or wait.failure.reason is not Reason.UNAVAILABLE)
        }
        for name in heard.doubled:
            odd["doubled-target", name] = f"{name} is the instance of several targets: the freshest counts"
        if heard.left_out:
            watched = len(heard.targets)
            found = f"{url} has {watched + heard.left_out} targets, only {watched} are watched"
            odd["too-many-targets", url] = found
        if ahead:
            side = "ahead of" if ahead > 0 else "behind"
            odd["clock-difference", url] = f"the clock of {url} is {abs(ahead):.0f} s {side} ours"
        if self._notes is not None:
            notes = "; ".join(self._notes)
            odd["partial-answers", url] = f"answers of {url} are partial, so they are lower bounds: {notes}"
        return odd


class _Wait:
    """Back-off of the server or of one query, on the monotonic clock."""

    def __init__(self, first_seconds: float, limit_seconds: float) -> None:
        self._first = first_seconds
        self._limit = limit_seconds
        self.failures = 0
        self.until = -math.inf
        self.failure: Unknown | None = None

    def failed(self, failure: Unknown, retry: Retry, now: float, luck: float) -> None:
        """Wait after a failure. `luck` from 0 to 1 spreads those who wait for the same server."""
        self.failures += 1
        self.failure = failure
        wait = backoff_seconds(self.failures, luck, first_seconds=self._first, limit_seconds=self._limit)
        self.until = now + wait if retry is Retry.BACKOFF else math.inf


class _Troubles:
    """What is wrong just now, by (kind, target); told when it begins and when it is over."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def tell(self, standing: Mapping[tuple[str, str], str], at: float) -> tuple[Event, ...]:
        """The events of a change to `standing`, which has a sentence for each trouble."""
        events = [
            Event(
                at,
                f"{kind}-over",
                target,
                Severity.INFO,
                f"{target}: {kind} is over after {at - since:.0f} s",
            )
            for (kind, target), since in self._since.items()
            if (kind, target) not in standing
        ]
        for (kind, target), sentence in standing.items():
            if (kind, target) not in self._since:
                events.append(Event(at, kind, target, Severity.WARNING, sentence))
        self._since = {key: self._since.get(key, at) for key in standing}
        return tuple(events)
