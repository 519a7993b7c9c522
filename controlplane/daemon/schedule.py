"""What the daemon does again and again: jobs at fixed intervals, each at most once at a time.

APScheduler runs the jobs. It plans by the system clock, which may be set while we run; two things here
keep that harmless. Our trigger goes on to the next turn after now however far the clock jumped ahead,
where the package's own would first count through every turn in between; and a job whose next turn lies
further away than its interval, because the clock went back, is due at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_SUBMITTED,
    JobExecutionEvent,
    JobSubmissionEvent,
)
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

_WATCH_SECONDS = 1.0  # how often we look whether the clock went back


@dataclass
class Runs:
    """How one job goes: turns that ran, that came too late, that found the turn before still running."""

    interval_seconds: float
    done: int = 0
    failed: int = 0
    late: int = 0
    overrun: int = 0
    last: float | None = None  # monotonic time of the last turn

    @property
    def misfires(self) -> int:
        return self.late + self.overrun


class Schedule:
    """The jobs of the daemon. Add them, then start; both in the event loop that is to run them."""

    def __init__(
        self,
        on_failure: Callable[[str, BaseException], None],
        on_success: Callable[[str], None],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_failure` and `on_success` are called with the job's name after each run."""
        self.runs: dict[str, Runs] = {}
        self._on_failure, self._on_success, self._steady = on_failure, on_success, steady
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )
        self._scheduler.add_listener(self._turn, EVENT_JOB_SUBMITTED | EVENT_JOB_MAX_INSTANCES)
        self._scheduler.add_listener(self._ran, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        self._watch: asyncio.TimerHandle | None = None

    def every(self, interval_seconds: float, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run `job` at once and then once an interval, in place of an earlier job of that name."""
        self.runs[name] = Runs(interval_seconds)
        self._scheduler.add_job(
            job,
            Every(interval_seconds),
            id=name,
            name=name,
            replace_existing=True,
            next_run_time=datetime.now(UTC),
        )

    def start(self) -> None:
        self._scheduler.start()
        self._look_at_clock()

    def stop(self) -> None:
        """No turn begins after this; one that runs is cancelled."""
        if self._watch is not None:
            self._watch.cancel()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _look_at_clock(self) -> None:
        now = datetime.now(UTC)
        for job in self._scheduler.get_jobs():
            interval = timedelta(seconds=self.runs[job.id].interval_seconds + _WATCH_SECONDS)
            if job.next_run_time is not None and job.next_run_time - now > interval:
                job.modify(next_run_time=now)
        self._watch = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._look_at_clock)

    def _turn(self, event: JobSubmissionEvent) -> None:
        runs, now = self.runs[event.job_id], self._steady()
        if event.code == EVENT_JOB_MAX_INSTANCES:
            runs.overrun += 1
        if runs.last is not None:
            # By the steady clock, because a jump of the other is no delay of ours.
            runs.late += max(0, round((now - runs.last) / runs.interval_seconds) - 1)
        runs.last = now

    def _ran(self, event: JobExecutionEvent) -> None:
        runs = self.runs[event.job_id]
        if event.exception is not None:
            runs.failed += 1
            self._on_failure(event.job_id, event.exception)
        else:
            runs.done += 1
            self._on_success(event.job_id)


class Every(BaseTrigger):  # type: ignore[misc]  # the package has no types
    """The next turn of an interval that lies after now; those that passed are left out."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = timedelta(seconds=interval_seconds)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        if previous is None:
            return now
        return previous + self._interval * (max(now - previous, timedelta()) // self._interval + 1)
