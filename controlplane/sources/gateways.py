"""Outcome windows from gateways: how the requests that reached them ended.

    GET {url}/control/v1/outcomes?after=<Unix seconds>    Authorization: Bearer <token>
    200, a JSON list of `signals.samples.OutcomeWindow`: all windows that end after that time

A window is told once, whatever a gateway repeats: it is known by gateway, pool and start. Windows that
cannot be true are left out one by one; each kind of trouble is told when it begins and when it ends.

A gateway keeps what nobody reads for an hour. After we were away that may be more than we take at once, and
it never gets less by waiting: then only the newest of it is asked for.
"""

import asyncio
import math

import msgspec

from controlplane.signals.decision import Event, Severity
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow
from controlplane.signals.size_class import SizeClass
from controlplane.sources.fetch import Errand, Failed, FailureKind, Fetch
from controlplane.sources.secrets import Credentials
from controlplane.sources.settings import GatewaySettings

REMEMBERED_SECONDS = 3600.0
"""Windows that ended longer ago than this before the newest are not taken any more."""

PATIENCE_SECONDS = 0.5
"""So long a read waits for all answers, well under the second after which the next one comes."""

_LONG_ENOUGH_SECONDS = 60.0  # of windows, where all are too much at once; halved until it is little enough
_CLOCK_TOLERANCE_SECONDS = 60.0
_BEHIND_SECONDS = 15.0  # windows last a second, and one that has just ended is among those that are read
_TIMEOUT_SECONDS = 4.0
_MOST_SIZE_CLASSES = 64
_MOST_OF_A_SIZE = 1e15
_MAX_BODY_BYTES = 8 * 1024 * 1024


class Gateways:
    """Reads all gateways. `after` (Unix seconds) is the end of the newest window that is already known."""

    def __init__(self, settings: tuple[GatewaySettings, ...], fetch: Fetch, *, after: float = 0.0) -> None:
        self._gateways = tuple(_Gateway(each, fetch, after) for each in settings)
        self._asked: dict[_Gateway, asyncio.Task[tuple[list[OutcomeWindow], list[Event]]]] = {}
        self._patience_seconds: float | None = None  # at first all are heard, or known to be away

    async def read(self, at: float) -> tuple[tuple[OutcomeWindow, ...], tuple[Event, ...]]:
        """New windows and what is to be told, at Unix time `at`. One read at a time.

        From the second read on, who takes long is heard with a later one: one that is gone must not slow down
        the others.
        """
        for gateway in self._gateways:
            if gateway not in self._asked:
                self._asked[gateway] = asyncio.create_task(gateway.read(at))
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=self._patience_seconds)
        self._patience_seconds = PATIENCE_SECONDS
        ended = [gateway for gateway in self._gateways if self._asked[gateway].done()]
        answers = [self._asked.pop(gateway).result() for gateway in ended]
        windows = [window for new, _ in answers for window in new]
        return tuple(windows), tuple(event for _, events in answers for event in events)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)


class _Gateway:
    """One gateway, as its `url` names it."""

    def __init__(self, settings: GatewaySettings, fetch: Fetch, after: float) -> None:
        self._url = settings.url
        self._fetch = fetch
        self._errand = Errand(
            "application/json",
            _TIMEOUT_SECONDS,
            _MAX_BODY_BYTES,
            auth=Credentials(bearer=settings.token),
            tls=settings.tls,
        )
        self._newest = after
        self._oldest = after  # windows that ended up to here are known, or too old to tell
        self._reach_seconds = math.inf  # how far back is asked at most
        self._seen: dict[tuple[str, str, float], float] = {}  # end by (gateway, pool, start)
        self._trouble = ""

    async def read(self, at: float) -> tuple[list[OutcomeWindow], list[Event]]:
        # A clock that was set back must not hide the windows that end before the newest we know.
        after = max(min(self._newest, at), at - self._reach_seconds)
        answer = await self._fetch(f"{self._url}/control/v1/outcomes?after={after!r}", self._errand)
        if isinstance(answer, Failed) and answer.kind is FailureKind.TOO_LARGE:
            self._reach_seconds = min((at - after) / 2, _LONG_ENOUGH_SECONDS)
            sentence = f"{answer.detail}: more windows than can be read at once, older ones are left out"
            return [], self._tell("gateway-windows-left-out", sentence, at)
        if isinstance(answer, Failed):
            if answer.kind is FailureKind.TIMEOUT:  # perhaps for the same reason
                self._reach_seconds = min(self._reach_seconds, _LONG_ENOUGH_SECONDS)
            return [], self._tell("gateway-unreachable", answer.detail, at)
        try:
            windows = msgspec.json.decode(answer.body, type=list[OutcomeWindow])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [], self._tell("gateway-unreadable", f"{self._url}: not outcome windows ({error})", at)
        flaws = [flaw for window in windows if (flaw := _flaw(window, at))]
        new = [window for window in windows if not _flaw(window, at) and self._is_new(window)]
        if flaws:
            count = f"{len(flaws)} of {len(windows)} outcome windows left out"
            return new, self._tell("gateway-windows-left-out", f"{self._url}: {count}: {flaws[0]}", at)
        behind = at - max((window.end for window in windows), default=at)
        if behind > _BEHIND_SECONDS:
            why = (
                f"its last window ended {behind:.0f} s ago: its clock is behind ours, so it counts as silent"
            )
            return new, self._tell("gateway-clock-behind", f"{self._url}: {why}", at)
        return new, self._tell("", f"{self._url}: outcomes are read again", at)

    def _is_new(self, window: OutcomeWindow) -> bool:
        key = (window.gateway, window.pool, window.start)
        if key in self._seen or window.end <= self._oldest:
            return False
        self._seen[key] = window.end
        if window.end > self._newest:
            self._newest = window.end
            self._reach_seconds = math.inf
            oldest = self._newest - REMEMBERED_SECONDS
            if oldest > self._oldest:
                self._oldest = oldest
                self._seen = {key: end for key, end in self._seen.items() if end > oldest}
        return True

    def _tell(self, trouble: str, sentence: str, at: float) -> list[Event]:
        """The event where the trouble (empty: none) is another than at the read before."""
        if trouble == self._trouble:
            return []
        self._trouble = trouble
        severity = Severity.WARNING if trouble else Severity.INFO
        return [Event(at, trouble or "gateway-recovered", self._url, severity, sentence)]


def _flaw(window: OutcomeWindow, at: float) -> str:
    """Why a window cannot be true; empty where it can."""
    if not (math.isfinite(window.start) and math.isfinite(window.end) and window.start < window.end):
        flaw = f"to {window.end} is no span of time"
    elif window.end > at + _CLOCK_TOLERANCE_SECONDS:
        flaw = f"ends {window.end - at:.0f} s in the future"
    else:
        flaw = _wrong_counts(window)
    return f"pool {window.pool[:100]!r} from {window.start} {flaw}" if flaw else ""


def _wrong_counts(window: OutcomeWindow) -> str:
    ended = {"finished": window.finished, "failed": window.failed, "gave_up": window.gave_up}
    ended |= {f"shed {reason[:50]!r}": count for reason, count in window.shed.items()}
    inside = {"good": window.good, "good_tokens": window.good_tokens, "in_flight": window.in_flight}
    for what, count in (ended | inside).items():
        if count < 0:
            return f"has {what} {count}"
    if window.offered != sum(ended.values()):
        return f"has {window.offered} offered requests and {sum(ended.values())} that ended"
    if window.good > window.finished:
        return f"has {window.good} good of {window.finished} finished requests"
    if window.good_tokens > window.tokens:
        return f"has {window.good_tokens} good of {window.tokens} tokens"
    for what in ("boundary_tokens", "longest_tokens"):
        tokens = getattr(window, what)
        if tokens is not None and not 1 <= tokens <= _MOST_OF_A_SIZE:
            return f"has {what} {tokens}"
    return _wrong_sizes(window.sizes) or _wrong_replicas(window.replicas)


def _wrong_replicas(replicas: dict[str, ReplicaWindow]) -> str:
    """What limit laws are told of must be numbers that can be."""
    for name, seen in replicas.items():
        values = [getattr(seen, field) for field in seen.__struct_fields__ if field != "first_token"]
        values += [] if seen.first_token is None else msgspec.structs.astuple(seen.first_token)
        if not all(value is None or (math.isfinite(value) and value >= 0) for value in values):
            return f"has numbers of replica {name[:100]!r} that cannot be"
    return ""


def _wrong_sizes(sizes: dict[int, SizeClass]) -> str:
    if len(sizes) > _MOST_SIZE_CLASSES:
        return f"has {len(sizes)} classes of sizes (at most {_MOST_SIZE_CLASSES})"
    for edge, size in sizes.items():
        values = (size.offered, size.served, size.sequence_seconds, size.token_seconds)
        if not all(0 <= value <= _MOST_OF_A_SIZE for value in values) or size.served > size.offered:
            return f"has sizes up to {edge} tokens that cannot be"
    return ""
