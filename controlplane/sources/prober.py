"""Asks engines whether they work: each for its health page once an interval, some on trial for one token.

The health page is asked for in `rounds`, half an interval apart from the metrics page. Only the replicas that
policy doubts are tried: at most one trial is under way at a replica and AT_ONCE in the fleet, and a replica
has AGAIN_SECONDS of rest between two. Trials go to the engine itself and past all gateways, so they count in
no tenant's account and no gateway's goodput.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from controlplane.signals.probe import Probe, ProbeKind, ProbeResult
from controlplane.signals.samples import Target
from controlplane.sources.fetch import Answer, Errand, Failed, FailureKind, Send
from controlplane.sources.rounds import Rounds
from controlplane.sources.settings import ScrapeSettings

AGAIN_SECONDS = 10.0
AT_ONCE = 64

_CONCURRENT_PAGES = 256
_MOST_BYTES = 64 * 1024  # of an answer, which nobody reads
_HEALTH_SECONDS = 2.0
_TRIAL_PATH = "/v1/completions"
_KEPT = 20_000  # probes, while nobody takes them
_FAILURES = {
    FailureKind.TIMEOUT: ProbeResult.TIMEOUT,
    FailureKind.CONNECTION: ProbeResult.REFUSED,
    FailureKind.NAME: ProbeResult.REFUSED,
    FailureKind.PROTOCOL: ProbeResult.ERROR,
    FailureKind.CUT: ProbeResult.ERROR,
}
"""What a failure says of the engine; of the others it is not the one to blame."""


class _Question(NamedTuple):
    """What is asked below an engine's address."""

    kind: ProbeKind
    method: str
    path: str
    errand: Errand
    body: bytes = b""


class Prober:
    """Probes all targets that are engines of their own. Everything happens on the running event loop.

    `trial_pools` are those whose engines may be asked for a token (None: all). `counts` are of ended probes
    since the start, by kind and result. `monotonic` is the clock of all `now`; `wall` (Unix seconds) only
    stamps results.
    """

    def __init__(
        self,
        settings: ScrapeSettings,
        send: Send,
        *,
        trial_pools: Collection[str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.counts: Counter[tuple[ProbeKind, ProbeResult]] = Counter()
        probe = settings.probe
        self._has_health, self._has_trials = probe.health_path is not None, probe.trial
        self._trial_pools = trial_pools
        self._send, self._monotonic, self._wall = send, monotonic, wall

        def errand(accept: str, seconds: float) -> Errand:
            return Errand(accept, seconds, _MOST_BYTES, auth=settings.auth, tls=settings.tls)

        page = errand("*/*", probe.timeout or min(_HEALTH_SECONDS, settings.timeout))
        self._health = _Question(ProbeKind.HEALTH, "GET", probe.health_path or "", page)
        trial = errand("application/json", probe.trial_timeout)
        self._trial = _Question(ProbeKind.TRIAL, "POST", _TRIAL_PATH, trial)
        self._rounds: Rounds[Target] = Rounds(
            settings.interval, self._ask_for_health, most=_CONCURRENT_PAGES, offset=0.5
        )
        self._targets: dict[str, Target] = {}
        self._doubted: dict[str, str] = {}
        self._tried: dict[str, asyncio.Task[None]] = {}  # trials under way, by replica
        self._rests_until: dict[str, float] = {}
        self._probes: list[Probe] = []

    @property
    def triable(self) -> frozenset[str]:
        """The replicas that can be asked for a token."""
        pools = self._trial_pools
        return frozenset(
            name
            for name, target in self._targets.items()
            if self._has_trials and (pools is None or target.pool in pools)
        )

    def set_targets(self, targets: tuple[Target, ...], now: float) -> None:
        """Probe these from now on. An engine that has only an API of its own is not probed."""
        old = self._targets
        self._targets = {
            one.name: old[one.name] if old.get(one.name) == one else one
            for one in targets
            if one.engine == "auto"
        }
        self._rounds.set(self._targets if self._has_health else {}, now)
        for name in [name for name in self._tried if self._targets.get(name) is not old.get(name)]:
            self._tried[name].cancel()
        self._rests_until = {name: at for name, at in self._rests_until.items() if name in self._targets}
        self._doubted = {name: model for name, model in self._doubted.items() if name in self._targets}

    def doubt(self, models: Mapping[str, str]) -> None:
        """Try these replicas with a token of that model (empty: of its only one), and no others, until told
        otherwise. What is under way goes on."""
        triable = self.triable
        self._doubted = {name: model for name, model in models.items() if name in triable}

    def probe_due(self, now: float) -> None:
        """Start what is due at monotonic time `now`; see `Rounds.start_due`."""
        self._rounds.start_due(now)
        for name, model in self._doubted.items():
            if len(self._tried) >= AT_ONCE:
                return
            if name not in self._tried and not now < self._rests_until.get(name, now) <= now + AGAIN_SECONDS:
                self._start(self._targets[name], model)

    def take(self) -> tuple[Probe, ...]:
        """All probes that have ended since the last call, in that order."""
        probes, self._probes = tuple(self._probes), []
        return probes

    async def close(self) -> None:
        """Give up all probes under way."""
        tasks = tuple(self._tried.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._rounds.close()

    def _start(self, target: Target, model: str) -> None:
        task = asyncio.get_running_loop().create_task(self._try(target, model))
        self._tried[target.name] = task
        task.add_done_callback(lambda _: self._tried.pop(target.name))

    async def _ask_for_health(self, target: Target) -> None:
        await self._ask(target, self._health)

    async def _try(self, target: Target, model: str) -> None:
        wish = {"prompt": "1", "max_tokens": 1, "temperature": 0} | ({"model": model} if model else {})
        await self._ask(target, self._trial._replace(body=msgspec.json.encode(wish)))
        self._rests_until[target.name] = self._monotonic() + AGAIN_SECONDS

    async def _ask(self, target: Target, question: _Question) -> None:
        kind, method, path, errand, body = question
        headers = {"Content-Type": "application/json"} if body else {}
        parts, started = urlsplit(target.url), self._monotonic()
        url = f"{parts.scheme}://{parts.netloc}{path}"
        result, detail = judge(await self._send(method, url, errand, headers, body))
        seconds = self._monotonic() - started
        self.counts[kind, result] += 1
        self._probes.append(Probe(target.name, self._wall(), seconds, kind, result, detail))
        del self._probes[:-_KEPT]


def judge(answer: Answer | Failed) -> tuple[ProbeResult, str]:
    """What an answer says of an engine, and what went wrong in words."""
    if isinstance(answer, Failed):
        return _FAILURES.get(answer.kind, ProbeResult.NO_VERDICT), answer.detail
    if answer.status == HTTPStatus.OK:
        return ProbeResult.OK, ""
    failed = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR and answer.status != HTTPStatus.NOT_IMPLEMENTED
    return ProbeResult.ERROR if failed else ProbeResult.NO_VERDICT, f"HTTP status {answer.status}"
