"""The clients of all sources in virtual time: they send, lose patience, hang up and try again.

Driven like an engine: `advance` says what the clients do up to a time, and whoever carries it out tells them
what became of their requests.
"""

import heapq
from collections.abc import Iterator, Sequence
from math import inf
from typing import Literal, TypeAlias

import msgspec
from numpy.random import Generator

from controlplane.simulator.request import Request
from controlplane.simulator.workload import (
    Arrival,
    ClosedLoop,
    Offer,
    Patience,
    Retry,
    Source,
    open_arrivals,
    sizes,
)

_RETRY_RESERVE = 10.0


class Send(msgspec.Struct, frozen=True, gc=False):
    """A client sends try number `tried` of an offer."""

    at: float
    request: Request
    offer: Offer
    tried: int


class HangUp(msgspec.Struct, frozen=True, gc=False):
    """A client ends the connection of a request that it waited for in vain."""

    at: float
    request_id: str


Action: TypeAlias = Send | HangUp
Ending: TypeAlias = Literal["refused", "failed", "gave up"]


class Tally(msgspec.Struct):
    """What became of the offers of one source: `offered` of them in `tries` tries.

    Every offer ends as one of finished, refused, failed or gave_up (hung up, no further try), or is still
    under way.
    """

    offered: int = 0
    tries: int = 0
    finished: int = 0
    refused: int = 0
    failed: int = 0
    gave_up: int = 0

    def end(self, how: Ending) -> None:
        """An offer ended without an answer."""
        if how == "refused":
            self.refused += 1
        elif how == "failed":
            self.failed += 1
        else:
            self.gave_up += 1


class _Client:
    """The state of one source: its stream, its lengths, what is left of its retry budget."""

    def __init__(self, source: Source, rng: Generator, until: float) -> None:
        self.source = source
        self.stream: Iterator[Arrival] = iter(())
        self.budget = _RETRY_RESERVE
        self.tally = Tally()
        stream, lengths, self.rng = rng.spawn(3)
        if isinstance(source.arrives, ClosedLoop):
            self.sizes = sizes(source, lengths)
        else:
            self.stream = open_arrivals(source, stream, until)


class _Try:
    """One request under way."""

    __slots__ = ("client", "has_token", "id", "offer", "tried")

    def __init__(self, client: _Client, offer: Offer, tried: int, request_id: str) -> None:
        self.id = request_id
        self.client = client
        self.offer = offer
        self.tried = tried
        self.has_token = False


class Clients:
    """All clients of `sources`, whose new offers end at second `until`. The sources' names must differ.

    Every source has a generator of its own, made from `rng`, so that one source does not change another.
    """

    def __init__(self, sources: Sequence[Source], rng: Generator, until: float) -> None:
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise ValueError(f"two sources have the same name: {', '.join(sorted(names))}")
        self._until = until
        self._due: list[tuple[float, int, _Client | _Try, str]] = []
        self._pushed = 0
        self._tries: dict[str, _Try] = {}
        self._clients = [
            _Client(source, own, until) for source, own in zip(sources, rng.spawn(len(sources)), strict=True)
        ]
        self._arriving: dict[_Client, Arrival] = {}
        for client in self._clients:
            arrives = client.source.arrives
            if isinstance(arrives, ClosedLoop):
                for at in (client.rng.random(arrives.users) * arrives.start_seconds).tolist():
                    self._push(at, client, "offer")
            else:
                self._next_arrival(client)

    @property
    def tallies(self) -> dict[str, Tally]:
        """What became of the offers, by name of source."""
        return {client.source.name: client.tally for client in self._clients}

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self._tries)

    def next_event_time(self) -> float:
        """When the clients do something next unless they are told something before; infinity if never."""
        return self._due[0][0] if self._due else inf

    def advance(self, to: float) -> list[Action]:
        """What the clients do up to and including `to`, in order of time."""
        actions: list[Action] = []
        due = self._due
        while due and due[0][0] <= to:
            at, _, who, what = heapq.heappop(due)
            if isinstance(who, _Client):
                actions.append(self._offer(who, at))
            elif what == "retry":
                actions.append(self._send(who.client, who.offer, who.tried + 1, at))
            elif self._tries.get(who.id) is who and (what == "end" or not who.has_token):
                actions.append(HangUp(at, who.id))
                self._end(who, at, "gave up", 0.0)
        return actions

    def first_token(self, request_id: str) -> None:
        """The first token of a request arrived. Ids of requests that were hung up are ignored, here and
        below."""
        if request_id in self._tries:
            self._tries[request_id].has_token = True

    def finished(self, request_id: str, now: float) -> None:
        """The whole answer arrived."""
        attempt = self._tries.get(request_id)
        if attempt is not None:
            del self._tries[request_id]
            attempt.client.tally.finished += 1
            self._think(attempt.client, now)

    def refused(self, request_id: str, now: float, retry_after_seconds: float = 0.0) -> None:
        """The request was shed."""
        attempt = self._tries.get(request_id)
        if attempt is not None:
            self._end(attempt, now, "refused", retry_after_seconds)

    def failed(self, request_id: str, now: float) -> None:
        """The request broke: its engine died, or the connection."""
        attempt = self._tries.get(request_id)
        if attempt is not None:
            self._end(attempt, now, "failed", 0.0)

    def _offer(self, client: _Client, at: float) -> Send:
        """A new offer of `client`."""
        tally = client.tally
        tally.offered += 1
        if isinstance(client.source.arrives, ClosedLoop):
            prompt, output = next(client.sizes)
        else:
            _, prompt, output = self._arriving[client]
            self._next_arrival(client)
        retry = client.source.retry
        if retry is not None and retry.budget_ratio is not None:
            client.budget = min(client.budget + retry.budget_ratio, _RETRY_RESERVE)
        offer = Offer(f"{client.source.name}-{tally.offered}", at, client.source, prompt, output)
        return self._send(client, offer, 1, at)

    def _send(self, client: _Client, offer: Offer, tried: int, at: float) -> Send:
        client.tally.tries += 1
        request = offer.request(tried)
        attempt = _Try(client, offer, tried, request.id)
        self._tries[request.id] = attempt
        patience: Patience = client.source.patience
        if patience.first_token_seconds is not None:
            self._push(at + patience.first_token_seconds, attempt, "first token")
        if patience.end_seconds is not None:
            self._push(at + patience.end_seconds, attempt, "end")
        return Send(at, request, offer, tried)

    def _end(self, attempt: _Try, now: float, how: Ending, retry_after_seconds: float) -> None:
        """A try ended without an answer: another follows, or the offer ends so."""
        client = attempt.client
        del self._tries[attempt.id]
        retry: Retry | None = client.source.retry
        if retry is not None and attempt.tried < retry.tries and self._may_retry(client, retry):
            wait = max(retry.wait_seconds(attempt.tried, client.rng), retry_after_seconds)
            self._push(now + wait, attempt, "retry")
            return
        client.tally.end(how)
        self._think(client, now)

    def _may_retry(self, client: _Client, retry: Retry) -> bool:
        if retry.budget_ratio is None:
            return True
        if client.budget < 1:
            return False
        client.budget -= 1
        return True

    def _think(self, client: _Client, now: float) -> None:
        """A user of a closed loop has the outcome and thinks about the next request."""
        arrives = client.source.arrives
        if isinstance(arrives, ClosedLoop):
            at = now + arrives.think_seconds * client.rng.standard_exponential()
            if at < self._until:
                self._push(at, client, "offer")

    def _next_arrival(self, client: _Client) -> None:
        arrival = next(client.stream, None)
        if arrival is not None:
            self._arriving[client] = arrival
            self._push(arrival.at, client, "offer")

    def _push(self, at: float, who: _Client | _Try, what: str) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (at, self._pushed, who, what))
