"""Tells limits to a gateway by HTTP: a signed POST, and a GET that must show the new value.

The body is a `Message` as JSON, signed as Standard Webhooks 1.0 has it (standardwebhooks.com):

    webhook-id           the same for the same decision and value: the key by which a repetition is known
    webhook-timestamp    Unix seconds at which it was sent
    webhook-signature    v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))

Any 2xx takes it. A message that was under way for long may arrive after a newer one: of two on one target,
the one with the higher `sequence` counts. The GET is signed the same way, over an empty body.

A gateway may forget what it took, and a limit that stands still brings no other message. So one that has
arrived is asked for again every few seconds, and POSTed again where it does not show, or nobody can ask.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec
from standardwebhooks import Webhook as _Signer

from controlplane.actuators.call import Call, CallFailedError, Reply, Send
from controlplane.actuators.limit import Newest, UnfinishedError, limit_of
from controlplane.actuators.pace import LOOK_AGAIN_SECONDS, Backoff, step
from controlplane.actuators.settings import WebhookSettings
from controlplane.signals.decision import SET_LIMIT, Decision
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.signals.units import duration_text

_MOST_BYTES = 64 << 10
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.05, 0.4  # from one look at a value that does not show to the next
_SECRET_BYTES = range(24, 65)
_NOT_FOUND = 404
_BUSY = frozenset({429, 503})

_log = logging.getLogger(__name__)


class SecretUnfitError(Exception):
    """The secret cannot sign; the text says what one looks like, and nothing of this one."""


class Message(msgspec.Struct, frozen=True):
    """The body of a POST. `value` is to be in force now; `wanted` is where it is going, in steps.

    Times are Unix seconds. `old`, `reason` and `sentence` are those of the decision, for people and logs.
    """

    action: str
    target: str
    pool: str | None
    value: int
    wanted: int
    sequence: int
    old: str
    reason: str
    sentence: str
    decision: str
    decided_at: float
    format: int = 1


class _Shown(msgspec.Struct, frozen=True):
    value: int


class _Held(msgspec.Struct, frozen=True):
    """A value that the gateway has taken, and when (seconds of the steady clock)."""

    value: int
    since: float = -math.inf


class _Done(msgspec.Struct, frozen=True):
    """The decision that arrived last, and when it was last known to stand (seconds of the steady clock)."""

    decision: str = ""
    at: float = -math.inf


class Webhook:
    """The actuator. `secret` reads the signing secret anew, `snapshot` gives the newest view of the fleet."""

    name = "webhook"
    actions = frozenset({SET_LIMIT})
    repeat_seconds = 0.0

    def __init__(
        self,
        settings: WebhookSettings,
        send: Send,
        secret: Callable[[], str],
        snapshot: Callable[[], FleetSnapshot | None],
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._send, self._secret, self._snapshot = settings, send, secret, snapshot
        self._wall, self._steady, self._luck = wall, steady, luck
        self._newest = Newest()
        self._held: dict[str, _Held] = {}  # by target
        self._done: dict[str, _Done] = {}  # by target
        self._backoff = Backoff()
        self._sequence = 0

    def takes(self, target: str, pool: str | None) -> bool:
        """Every pool where none is named."""
        return self._settings.pools is None or pool in self._settings.pools

    def is_undone(self, decision: Decision) -> bool:
        """Whether it was not seen to stand lately."""
        return self._steady() - self._done.get(decision.target, _Done()).at >= LOOK_AGAIN_SECONDS

    async def apply(self, decision: Decision) -> None:
        """Raises Refused-, Unfinished-, CallFailed- or SecretUnfitError, and what `secret` raises."""
        wanted = limit_of(decision)
        pool = self._pool(decision.target)
        self._newest.take(decision)
        away = self._backoff.sentence(self._steady())
        if away:
            raise CallFailedError(away)
        signer = _signer(self._secret())
        try:
            value = await self._move(decision, pool, wanted, signer)
        except CallFailedError as error:
            self._backoff = self._backoff.failed(
                str(error),
                self._steady(),
                self._luck(),
                first_seconds=self._settings.backoff_first,
                limit_seconds=self._settings.backoff_limit,
                asked_seconds=error.asked_seconds,
            )
            raise CallFailedError(str(error), self._backoff.until - self._steady()) from None
        self._backoff = Backoff()
        if value != wanted:
            raise UnfinishedError(
                f"{decision.target} is at {value} on its way to {wanted}: "
                f"a limit moves {self._settings.max_change:.0%} a second at most"
            )
        self._done[decision.target] = _Done(decision.id, self._steady())

    def _pool(self, target: str) -> str | None:
        """The pool of a replica, None where it is not known. Forgets replicas that have left."""
        seen = self._snapshot()
        replicas = seen.replicas if seen is not None else {}
        self._held = {name: held for name, held in self._held.items() if name in replicas or name == target}
        self._done = {name: done for name, done in self._done.items() if name in replicas or name == target}
        return replicas[target].pool if target in replicas else None

    async def _move(self, decision: Decision, pool: str | None, wanted: int, signer: _Signer) -> int:
        """Bring the limit as near to `wanted` as may be now, and return how near that is."""
        target = decision.target
        is_repeat = self._done.pop(target, _Done()).decision == decision.id
        if is_repeat and self._settings.read_back is not None:
            self._held.pop(target, None)  # not known until it is seen
        held = self._held.get(target)
        if held is None and self._settings.read_back is not None:
            shown = await self._read(target, signer)
            held = None if shown is None else _Held(shown)
            if is_repeat and held is not None and shown == wanted:
                self._held[target] = held
                return wanted
            if is_repeat:
                has = "no limit" if shown is None else f"a limit of {shown}"
                _log.warning(
                    "%s: %s has %s, not the %d it was set to: set again", self.name, target, has, wanted
                )
        now = self._steady()
        value = wanted
        if held is not None:
            value = step(held.value, wanted, now - held.since, self._settings.max_change)
            if value == held.value != wanted:
                return value  # too early for a step
        if self._settings.read_back is not None:
            self._held.pop(target, None)  # not known until it is answered: if it fails, it is read anew
        await self._post(decision, pool, value, wanted, signer)
        await self._confirm(target, value, signer)
        self._held[target] = held if held is not None and held.value == value else _Held(value, now)
        return value

    async def _post(
        self, decision: Decision, pool: str | None, value: int, wanted: int, signer: _Signer
    ) -> None:
        message = Message(
            action=decision.action,
            target=decision.target,
            pool=pool,
            value=value,
            wanted=wanted,
            sequence=self._next_sequence(),
            old=decision.old,
            reason=decision.reason,
            sentence=decision.sentence,
            decision=decision.id,
            decided_at=decision.at,
        )
        which = f"{decision.at!r} {decision.id} {decision.target} {value}"
        key = f"msg_{hashlib.sha256(which.encode()).hexdigest()[:32]}"
        reply = await self._call("POST", self._settings.url, key, msgspec.json.encode(message), signer)
        if not 200 <= reply.status < 300:
            raise _refusal(self._settings.url, reply)

    async def _confirm(self, target: str, value: int, signer: _Signer) -> None:
        """Return once the gateway shows the value, or cannot be asked. Raises CallFailedError."""
        if self._settings.read_back is None:
            return
        deadline, wait = self._steady() + self._settings.verify_within, _LOOK_SECONDS
        while (shown := await self._read(target, signer)) != value:
            if self._steady() + wait > deadline:
                url = _shown_url(self._settings.read_back)
                what = "no limit" if shown is None else f"a limit of {shown}"
                within = duration_text(self._settings.verify_within)
                raise CallFailedError(f"{url}: shows {what} for {target} {within} after {value} was taken")
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_LOOK_SECONDS)

    async def _read(self, target: str, signer: _Signer) -> int | None:
        """The limit that the gateway shows; None where it knows of none."""
        assert self._settings.read_back is not None
        url = self._settings.read_back.replace("{target}", quote(target, safe=""))
        reply = await self._call("GET", url, f"read_{self._next_sequence()}", b"", signer)
        if reply.status == _NOT_FOUND:
            return None
        if reply.status != 200:
            raise _refusal(url, reply)
        try:
            return msgspec.json.decode(reply.body, type=_Shown).value
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise CallFailedError(f'{_shown_url(url)}: does not answer like {{"value": 58}}') from None

    async def _call(self, method: str, url: str, key: str, body: bytes, signer: _Signer) -> Reply:
        sent_at = int(self._wall())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": key,
            "webhook-timestamp": str(sent_at),
            "webhook-signature": signer.sign(key, datetime.fromtimestamp(sent_at, UTC), body.decode()),
        }
        return await self._send(Call(method, url, self._settings.timeout, _MOST_BYTES, headers, body))

    def _next_sequence(self) -> int:
        """Higher than every one before, also than those of the process before this one, clocks permitting."""
        self._sequence = max(self._sequence + 1, int(self._wall() * 1e6))
        return self._sequence


def _signer(secret: str) -> _Signer:
    """Raises SecretUnfitError for what others would read differently, or what is too short to protect."""
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in _SECRET_BYTES:
        raise SecretUnfitError(
            f"the webhook's secret is not base64 of {_SECRET_BYTES.start} to {_SECRET_BYTES.stop - 1} bytes: "
            'make one with echo "whsec_$(openssl rand -base64 32)"'
        )
    return _Signer(key)


def _refusal(url: str, reply: Reply) -> CallFailedError:
    why = ": redirects are not followed" if 300 <= reply.status < 400 else ""
    asked = reply.retry_after_seconds if reply.status in _BUSY else 0.0
    return CallFailedError(f"{_shown_url(url)}: HTTP status {reply.status}{why}", asked)


def _shown_url(url: str) -> str:
    """Without its query, where a token may stand."""
    return url.partition("?")[0]
