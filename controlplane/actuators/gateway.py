"""Steers our gateways: each is told the whole level of the fleet, again and again.

A message says all that holds: replicas with their limits and readings, mode, share, and until when. It
follows from the last tick and not from the messages before, so nothing is lost with one that does not arrive,
and a decision on a limit, a boundary or a rotation is carried out by the first message that was made after
it. What a gateway has taken it says in its answer.

A gateway that does not answer is tried again, less and less often, and told as lost once, and once as back.
One that was out of touch is first asked how it stands: which share it still holds, which limits it goes by.

One that refuses us because it follows another term names that term. Whoever holds the lead may then go on
with a higher one; by itself the actuator never does: an ex-leader is refused in just the same way.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from controlplane.actuators.call import Call, CallFailedError, Send
from controlplane.actuators.pace import Backoff
from controlplane.signals.control import ControlMessage, GatewayState, Grant, Judged, ReplicaOrder
from controlplane.signals.decision import (
    SET_BOUNDARY,
    SET_LIMIT,
    SET_ROTATION,
    Decision,
    Event,
    Mode,
    Severity,
)

TERM_SECONDS = 10.0
"""How long a message holds where no share says otherwise."""

_TIMEOUT_SECONDS = 2.0
_MOST_BYTES = 64 << 20
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 15.0
_LOST_AFTER_FAILURES = 2  # one answer that does not come says nothing yet
_ALL_TAKEN_SECONDS = 5.0  # for the gateways that are not lost to take a message


T = TypeVar("T")


class Link(NamedTuple):
    """How one gateway is reached: the URL of its control address, and what opens it.

    `headers` are read anew for each message; what it raises is told like a failure.
    """

    url: str
    send: Send
    headers: Callable[[], Mapping[str, str]]


class Shares(Protocol):
    """The leader's side of the shares (`policy.shares.Shares`)."""

    def join(self, gateway: str, standing: float) -> None: ...

    def leave(self, gateway: str) -> None: ...

    def weigh(self, weights: Mapping[str, float]) -> None: ...

    def number(self) -> int: ...

    def renew(
        self, gateway: str, now: float, shown: Grant | None = None, *, all_joined: bool = True
    ) -> Grant: ...


class Level(msgspec.Struct, frozen=True):
    """What all gateways are to be told after a tick.

    `mode` None leaves theirs to their configuration, and `keeps_mode` what they were told last. `demand` (by
    gateway, in tokens a second) moves their shares; None leaves them as they are.
    """

    orders: tuple[ReplicaOrder, ...] = ()
    mode: Mode | None = None
    keeps_mode: bool = False
    demand: Mapping[str, float] | None = None
    boundary_tokens: int | None = None


class NoGatewayError(Exception):
    """Nobody has taken it; the text says why."""


class GatewayActuator:
    """The actuator. Made in the event loop that it acts in; times are Unix seconds of `now`.

    `told` are the limits that were told last, or that the gateways went by before, and `told_boundary` is the
    boundary (tokens) that was, None where none was. `term` is ours as leader, None before we lead: gateways
    refuse what comes from a lower one. `outranked_by` is the highest term, not under ours, that a gateway was
    found to follow since we lead with ours; None where there is none.
    """

    name = "gateway"
    actions = frozenset({SET_BOUNDARY, SET_LIMIT, SET_ROTATION})

    def __init__(
        self,
        links: Sequence[Link],
        shares: Shares | None = None,
        term: int | None = None,
        *,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self.told: dict[str, float] = {}
        self.told_boundary: int | None = None
        self.term: int | None = None
        self.outranked_by: int | None = None
        self._shares = shares
        self._now, self._steady, self._luck = now, steady, luck
        self._level: Level | None = None
        self._number = 0  # of levels so far
        self._peers: list[_Peer] = []
        self._progress = asyncio.Condition()
        self._events: list[Event] = []
        self.set_links(links)
        if shares is not None and term is not None:
            self.lead(shares, term)

    def lead(self, shares: Shares, term: int) -> None:
        """Steer from now on with this term. Each gateway is first asked how it stands: others led before."""
        self.term, self._shares = term, shares
        self.outranked_by = None
        self.told, self.told_boundary = {}, None
        for peer in self._peers:
            peer.forget()
        if self._peers:
            gateways = "1 gateway" if len(self._peers) == 1 else f"{len(self._peers)} gateways"
            sentence = f"the daemon leads {gateways} with term {term}"
            self._events.append(Event(self._now(), "leading", "daemon", Severity.INFO, sentence))

    def takes(self, target: str, pool: str | None) -> bool:
        return bool(self._peers)

    def set_links(self, links: Sequence[Link]) -> None:
        """Other gateways from now on."""
        kept = {peer.link.url: peer for peer in self._peers}
        self._peers = [self._peer(link, kept.pop(link.url, None)) for link in links]
        for gone in kept.values():
            gone.end()
            if gone.gateway is not None and self._shares is not None:
                self._shares.leave(gone.gateway)

    def set_level(self, level: Level) -> None:
        """What holds from now on. Messages go out once the caller has given way to the loop."""
        self._level = level
        self._number += 1
        self.told = {
            order.name: order.limit if order.limit is not None else self.told[order.name]
            for order in level.orders
            if order.limit is not None or order.name in self.told
        }
        self.told_boundary = level.boundary_tokens or self.told_boundary
        assert self._shares is not None, "nothing is told before we lead"
        assert self.term is not None
        if level.demand is not None:
            self._shares.weigh(level.demand)
        for peer in self._peers:
            peer.wake.set()

    def take_events(self) -> tuple[Event, ...]:
        """What happened to the gateways since the last call."""
        events, self._events = tuple(self._events), []
        return events

    async def apply(self, decision: Decision) -> None:
        """Return once all gateways that are not lost have taken a message that knows of the decision.

        Raises NoGatewayError.
        """
        wanted = self._number
        try:
            async with asyncio.timeout(_ALL_TAKEN_SECONDS), self._progress:
                await self._progress.wait_for(lambda: self._is_taken(wanted))
        except TimeoutError:
            late = ", ".join(peer.link.url for peer in self._peers if peer.is_waited_for(wanted))
            raise NoGatewayError(f"not taken within {_ALL_TAKEN_SECONDS:g} s by {late}") from None
        if all(peer.taken < wanted for peer in self._peers):
            why = "; ".join(peer.backoff.why for peer in self._peers)
            raise NoGatewayError(f"no gateway answers: {why}")

    async def close(self) -> None:
        """Stop telling. The gateways go on by themselves when the last message lapses."""
        for peer in self._peers:
            peer.end()
        await asyncio.gather(*(peer.task for peer in self._peers if peer.task), return_exceptions=True)

    # -- inside ------------------------------------------------------------------------------------------

    def _is_taken(self, number: int) -> bool:
        return not any(peer.is_waited_for(number) for peer in self._peers)

    def _peer(self, link: Link, known: "_Peer | None") -> "_Peer":
        if known is not None:
            known.link = link
            return known
        peer = _Peer(link)
        peer.task = asyncio.create_task(self._serve(peer), name=f"gateway {link.url}")
        return peer

    async def _serve(self, peer: "_Peer") -> None:
        while True:
            await peer.wake.wait()
            peer.wake.clear()
            if peer.backoff.sentence(self._steady()):
                continue
            try:
                if peer.state is None:
                    await self._ask(peer)
                    continue  # it is told with the next tick, which has heard what it did while it was alone
                await self._tell(peer, peer.state)
            except Exception as error:
                self._failed(peer, str(error) or type(error).__name__)
            else:
                self._answered(peer)
            async with self._progress:
                self._progress.notify_all()

    async def _tell(self, peer: "_Peer", state: GatewayState) -> None:
        """Bring one gateway up to date. Raises CallFailedError."""
        level, number = self._level, self._number
        assert level is not None
        message = self._message(peer, state, level)
        judged = await self._put(peer, message)
        if judged.judgement not in ("taken", "known"):
            peer.state = None
            if judged.judgement == "outdated" and judged.term >= message.term == self.term:
                self._outranked(peer, judged.term)
            theirs = f"it follows term {judged.term}, version {judged.version}"
            ours = f"our message of term {message.term}, version {message.version}"
            raise CallFailedError(f"{peer.link.url}: {ours} is {judged.judgement} to it: {theirs}")
        peer.taken = max(peer.taken, number)
        peer.shown = None
        if message.share is not None:
            peer.shown = Grant(
                state.gateway, message.share, message.expires_at, message.term, message.version
            )
        peer.mode = message.mode

    async def _ask(self, peer: "_Peer") -> None:
        """Learn how the gateway stands, and whether it is the one that it was."""
        url = f"{peer.link.url}/control/v1/state"
        state = await self._call(peer, "GET", url, b"", GatewayState)
        if peer.gateway not in (None, state.gateway):
            assert peer.gateway is not None
            assert self._shares is not None
            self._shares.leave(peer.gateway)  # another answers at its address: it is gone
            peer.has_joined = False
        peer.state, peer.gateway = state, state.gateway
        peer.mode, peer.shown = state.mode, state.granted
        self.told = {**state.limits, **self.told}

    def _message(self, peer: "_Peer", state: GatewayState, level: Level) -> ControlMessage:
        now = self._now()
        share, version, expires_at = self._share(peer, state, now)
        assert self.term is not None
        return ControlMessage(
            term=self.term,
            version=version,
            sent_at=now,
            expires_at=expires_at,
            replicas=level.orders,
            mode=peer.mode if level.keeps_mode else level.mode,
            share=share,
            boundary_tokens=level.boundary_tokens,
        )

    def _share(self, peer: "_Peer", state: GatewayState, now: float) -> tuple[float | None, int, float]:
        """What the gateway is granted, the number of the message that says so, and until when it holds.

        One that has all of every replica by its configuration shares with nobody and needs no grant.
        """
        assert self._shares is not None
        try:
            self._shares.join(state.gateway, state.standing_share)
        except ValueError as error:
            self._trouble(peer, f"{error}: it is granted none, so they may overfill their replicas")
            return None, self._shares.number(), now + TERM_SECONDS
        self._trouble(peer, "")
        peer.has_joined, peer.standing = True, state.standing_share
        all_joined = all(each.has_joined for each in self._peers)
        grant = self._shares.renew(state.gateway, now, peer.shown, all_joined=all_joined)
        if state.standing_share == 1.0:
            return None, grant.version, now + TERM_SECONDS
        return grant.share, grant.version, grant.expires_at

    async def _put(self, peer: "_Peer", message: ControlMessage) -> Judged:
        body = msgspec.json.encode(message)
        return await self._call(peer, "PUT", f"{peer.link.url}/control/v1/state", body, Judged)

    async def _call(self, peer: "_Peer", method: str, url: str, body: bytes, kind: type[T]) -> T:
        headers = {"Content-Type": "application/json", **peer.link.headers()}
        reply = await peer.link.send(Call(method, url, _TIMEOUT_SECONDS, _MOST_BYTES, headers, body))
        if reply.status not in (200, 409):
            raise CallFailedError(f"{url}: HTTP status {reply.status}")
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CallFailedError(f"{url}: does not answer like a gateway of ours ({error})") from None

    # -- telling -----------------------------------------------------------------------------------------

    def _failed(self, peer: "_Peer", why: str) -> None:
        peer.state = None  # whoever it is when it is back, and whatever it did meanwhile
        peer.backoff = peer.backoff.failed(
            why,
            self._steady(),
            self._luck(),
            first_seconds=_FIRST_WAIT_SECONDS,
            limit_seconds=_LONGEST_WAIT_SECONDS,
        )
        if peer.backoff.failures == _LOST_AFTER_FAILURES:
            sentence = f"{why}; it goes on by itself"
            if 0.0 < peer.standing < 1.0:
                sentence += (
                    f" and has {peer.standing:.0%} of every replica, which nobody else gets"
                    " until it is back or its link is taken away"
                )
            self._event("gateway-lost", peer, Severity.WARNING, sentence)

    def _answered(self, peer: "_Peer") -> None:
        if peer.backoff.failures >= _LOST_AFTER_FAILURES:
            self._event("gateway-back", peer, Severity.INFO, f"{peer.link.url}: it is steered again")
        peer.backoff = Backoff()

    def _trouble(self, peer: "_Peer", sentence: str) -> None:
        if sentence and sentence != peer.trouble:
            self._event("gateway-shares", peer, Severity.WARNING, sentence)
        peer.trouble = sentence

    def _outranked(self, peer: "_Peer", term: int) -> None:
        if self.outranked_by is None or term > self.outranked_by:
            self.outranked_by = term
            sentence = f"it follows term {term}, ours is {self.term}: another daemon has steered it"
            self._event("gateway-outranks", peer, Severity.WARNING, sentence)

    def _event(self, kind: str, peer: "_Peer", severity: Severity, sentence: str) -> None:
        self._events.append(Event(self._now(), kind, peer.link.url, severity, sentence))


class _Peer:
    """One gateway. `state` is None while we are not in touch; `taken` is the newest level that it has."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.wake = asyncio.Event()
        self.backoff = Backoff()
        self.state: GatewayState | None = None
        self.gateway: str | None = None
        self.mode: Mode | None = None
        self.shown: Grant | None = None
        self.taken = 0
        self.has_joined = False
        self.standing = 0.0  # its standing share; 0 before it has joined
        self.trouble = ""
        self.task: asyncio.Task[None] | None = None

    def is_waited_for(self, number: int) -> bool:
        """Whether it should still take that level: not if it is lost."""
        return self.taken < number and self.backoff.failures < _LOST_AFTER_FAILURES

    def forget(self) -> None:
        """Know nothing of how it stands."""
        self.state, self.shown, self.has_joined = None, None, False

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
