"""The gateway of a run: the production admission, told in virtual time what a real gateway would tell it.

Its times are seconds of the run. Tokens that stream are told once a second, and the rest at the end, not one
by one: an engine gives every decoding sequence a token a step, so the steps say how many there are.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import inf
from typing import NamedTuple
from zlib import crc32

import msgspec
from numpy.random import Generator

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.body_edit import JsonObject
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.output_quantile import OutputKey, OutputQuantiles
from controlplane.gateway.admission.output_size import OutputCeiling, OutputSettings, output_size
from controlplane.gateway.admission.replica import ReplicaReading
from controlplane.gateway.admission.request import Fault, Request, ServiceClass
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused, Verdict
from controlplane.signals.decision import Mode
from controlplane.signals.samples import OutcomeWindow
from controlplane.simulator.request import Finished
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.live import Live
from controlplane.simulator.workload import Source

_OUTPUT = OutputSettings()
_CEILING = OutputCeiling()
_DRAWS = 4096


class _Kind(NamedTuple):
    """What the gateway knows of all requests of one source: `outputs` are those whose answers are alike, a
    tenant's, and of these the ones of an application with a system prompt of its own."""

    service_class: ServiceClass
    prefix: int | None
    outputs: OutputKey


class Gateway:
    """`poll_at` is when `poll` has to be called at the latest."""

    def __init__(self, settings: AdmissionSettings, rng: Generator) -> None:
        self.admission = Admission(settings, gateway="simulated", now=0.0)
        self.poll_at = inf
        self._outputs = OutputQuantiles()
        self._kinds: dict[str, _Kind] = {}  # by name of source
        self._draws = _draws(rng)

    def offer(self, live: Live, now: float) -> Verdict:
        """A client sent a request."""
        verdict = self.admission.offer(self._request(live), now, next(self._draws))
        if isinstance(verdict, Queued):
            self.poll_at = min(self.poll_at, self.admission.next_poll_at(now))
        return verdict

    def poll(self, now: float) -> list[Admitted | Refused]:
        """What becomes of those that wait."""
        verdicts = self.admission.poll(now)
        self.poll_at = max(now, self.admission.next_poll_at(now))
        return verdicts

    def tokens(self, streams: Iterable[Live], steps: int, now: float) -> None:
        """The engine of these has made so many steps by now; the last token of each is not told yet."""
        tell = self.admission.tokens
        for live in streams:
            ticket = live.ticket
            assert ticket is not None
            there = 1 + steps - live.first_step
            if there >= live.request.output_tokens:
                there = live.request.output_tokens - 1
            tell(ticket, there - ticket.output_tokens, now)

    def finished(self, live: Live, event: Finished, now: float) -> None:
        ticket = live.ticket
        assert ticket is not None
        if live.source.stream:
            self.admission.tokens(ticket, event.output_tokens - ticket.output_tokens, now)
        usage = Usage(event.prompt_tokens, event.output_tokens)
        self.admission.finished(ticket, now, usage, cached_tokens=event.cached_tokens)
        self._outputs.learn(self._kind(live.source).outputs, event.output_tokens)

    def failed(self, live: Live, fault: Fault, now: float) -> Admitted | Queued | None:
        """The engine did not serve it; what is to be done instead, None for nothing."""
        assert live.ticket is not None
        verdict = self.admission.failed(live.ticket, now, fault, may_retry=live.first_token_at < 0)
        self.poll_at = min(self.poll_at, max(now, self.admission.next_poll_at(now)))
        return verdict

    def set_readings(self, readings: Iterable[ReplicaReading], now: float) -> None:
        self.admission.set_readings(readings, now)

    def windows(self, now: float, *, is_alone: bool) -> Iterator[OutcomeWindow]:
        """What it has to report to the daemon, in Unix time."""
        for window in self.admission.windows(now):
            start, end = window.start + UNIX_START, window.end + UNIX_START
            yield msgspec.structs.replace(window, start=start, end=end, is_alone=is_alone)

    def check(self, now: float, queued: int) -> None:
        """Assert, right after a poll, that it knows of all the `queued`, and that nobody waits in vain: where
        all of them would fit into what a replica has left of its budget, its slots must be taken."""
        status = self.admission.status(now)
        if status.mode is Mode.OBSERVE:  # what is queued runs already
            return
        assert status.queued_requests == queued, (
            f"{status.queued_requests} are queued, not {queued}, at {now} s"
        )
        if not queued or status.claims:
            return
        for name, replica in status.replicas.items():
            left = inf
            if replica.budget_tokens is not None:
                left = replica.budget_tokens - replica.reserved_tokens - replica.foreign_tokens
            free = replica.limit - replica.sequences - replica.foreign_sequences
            works = replica.rotation == "in" and replica.breaker == "closed"
            assert not (works and free >= 1 and left >= status.queued_tokens), (
                f"{queued} requests wait at {now} s while {name} has {free} slots free"
            )

    def _request(self, live: Live) -> Request:
        """What a gateway with the model's own tokenizer makes of a request."""
        source, request = live.source, live.request
        kind, limit = self._kind(source), source.max_tokens
        learned = self._outputs.learned_tokens(kind.outputs)
        return Request(
            tenant=source.tenant,
            prompt_tokens=request.prompt_tokens,
            output_tokens=_likely_output(limit, learned),
            most_output_tokens=limit,
            service_class=kind.service_class,
            prompt_exact=True,
            prefix=kind.prefix,
            streams=source.stream,
        )

    def _kind(self, source: Source) -> _Kind:
        kind = self._kinds.get(source.name)
        if kind is None:
            kind = self._kinds[source.name] = _kind_of(source)
        return kind


@lru_cache(maxsize=1024)
def _likely_output(limit: int | None, learned: int | None) -> int:
    """What a gateway reserves for the answer."""
    body: JsonObject = {} if limit is None else {"max_completion_tokens": limit}
    return output_size(Endpoint.CHAT, body, _OUTPUT, _CEILING, learned).tokens


def _kind_of(source: Source) -> _Kind:
    is_shared = source.shared_prefix_tokens > 0
    return _Kind(
        ServiceClass(source.service_class),
        crc32(source.name.encode()) if is_shared else None,
        OutputKey(source.tenant, Endpoint.CHAT, source.name if is_shared else ""),
    )


def _draws(rng: Generator) -> Iterator[float]:
    while True:
        yield from rng.random(_DRAWS).tolist()
