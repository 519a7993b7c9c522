"""Leadership of the daemon: by itself, or by a coordination Lease of the cluster.

The `kubernetes` client's own election (`kubernetes.aio`, 37.0.2) is not used, because it was tried: it cannot
create a Lease (its own validation refuses what it sends), it leads on beside another leader for as long as a
request of it hangs, which may be minutes, it writes the local time as if it were UTC, and it counts no terms.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import Any, Protocol

import msgspec

from controlplane.policy import election
from controlplane.policy.election import Election, Lease
from controlplane.signals import marks
from controlplane.sources.kubernetes_api import Answered, Ask, KubernetesApi, UnreachableError
from controlplane.sources.kubernetes_settings import LeaseSettings

TERM = "controlplane.llm/term"
"""The annotation of the Lease that holds the term of its last holder."""
KEPT = "controlplane.llm/kept"
"""The annotation of the Lease that holds what its leader leaves to the next one."""
KEPT_BYTES = 128 * 1024
"""Most of it; all annotations of an object have 256 KiB."""

_STEPS = 6  # tries within the duration of a lease
_MERGE = "application/merge-patch+json"
_USUAL_SECONDS = 15.0  # of a lease that does not say how long it lasts
_LONGEST_SECONDS = 600.0  # a lease of others that claims to last longer is not believed
_CREATED, _OK, _NOT_FOUND, _CONFLICT = 201, 200, 404, 409

log = logging.getLogger(__name__)


class LeadLostError(Exception):
    """Another may lead by now."""


class Leader(Protocol):
    """Whether we lead."""

    @property
    def term(self) -> int | None:
        """Our term; None while another leads, or nobody does."""
        ...

    @property
    def follows(self) -> str:
        """Who leads in our place, empty where nobody is known to."""
        ...

    @property
    def trouble(self) -> str:
        """A sentence where the lease cannot be read or written, else empty."""
        ...

    @property
    def kept(self) -> str:
        """What the leader, ourselves or another, leaves to the next one, as last seen."""
        ...

    def keep(self, text: str) -> None:
        """Leave that to the next leader, from the next renewal on, which is made at once.

        Raises ValueError where it is too long.
        """
        ...

    async def stands(self) -> None:
        """Return once all that we gave to `keep` stands with the lease. Raises LeadLostError."""
        ...

    def outrank(self, term: int) -> None:
        """Somebody refuses our term and follows this one: lead with a higher one, if we still lead."""
        ...

    def seconds_left(self) -> float:
        """How long we may surely act, 0 where we may not."""
        ...

    async def close(self) -> None:
        """Lead no longer."""
        ...


class Alone:
    """There is no other daemon."""

    trouble = follows = kept = ""

    def __init__(self, term: int) -> None:
        self.term: int | None = term

    def keep(self, text: str) -> None:
        pass  # there is no next one

    async def stands(self) -> None:
        pass

    def outrank(self, term: int) -> None:
        pass  # without a lease nobody can tell us from an ex-leader

    def seconds_left(self) -> float:
        return inf

    async def close(self) -> None:
        pass


def steady() -> float:
    """Seconds that also go on while the machine sleeps, where it tells."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class ByLease:
    """One of several candidates; `run` takes and keeps the lease. `me` must be unique to this process."""

    def __init__(
        self,
        api: KubernetesApi,
        settings: LeaseSettings,
        me: str,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self.trouble = ""
        self._api, self._settings, self._me = api, settings, me
        self._wall, self._steady, self._luck = wall, steady, luck
        self._state = Election()
        self._task: asyncio.Task[None] | None = None
        self._keep = ""
        self._outrank = 0  # the highest term that somebody follows in place of ours
        self._raises = 0  # of the term, since the lease was taken
        self._hurry = asyncio.Event()
        self._stepped = asyncio.Event()  # a new one for each step

    @property
    def term(self) -> int | None:
        return self._state.term if self._state.leads(self._steady()) else None

    @property
    def follows(self) -> str:
        lease = self._state.lease
        return "" if lease is None or lease.holder == self._me else lease.holder

    @property
    def kept(self) -> str:
        return "" if self._state.lease is None else self._state.lease.kept

    def keep(self, text: str) -> None:
        if len(text.encode()) > KEPT_BYTES:
            raise ValueError(f"{len(text.encode())} bytes are more than a lease can hold ({KEPT_BYTES})")
        if text != self._keep:
            self._keep = text
            self._hurry.set()

    async def stands(self) -> None:
        while self.term is not None:
            if self.kept == self._keep:
                return
            await self._stepped.wait()
        raise LeadLostError("another daemon may lead by now")

    def outrank(self, term: int) -> None:
        if term > self._outrank:
            self._outrank = term
            self._hurry.set()

    def seconds_left(self) -> float:
        return max(0.0, self._state.acts_until - self._steady()) if self._state.term is not None else 0.0

    def open(self) -> None:
        self._task = asyncio.create_task(self.run(), name="leader")

    async def run(self) -> None:
        """Follow and lead until cancelled."""
        pause = self._settings.duration / _STEPS
        while True:
            self._hurry.clear()  # what is to be kept from here on needs another step
            try:
                await self._step()
                self.trouble = ""
            except (UnreachableError, _RefusedError) as error:
                self.trouble = str(error)
            except Exception as error:  # ours, and no reason to give up for ever
                self.trouble = f"{type(error).__name__}: {error}"
            self._stepped.set()
            self._stepped = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * (0.9 + self._luck() / 5)):
                    await self._hurry.wait()

    async def close(self) -> None:
        """Let go of the lease, so that another need not wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        lease, leads = self._state.lease, self.term is not None
        self._state = Election()
        if leads and lease is not None:
            try:
                if await self._let_go(lease) is None:
                    there = await self._get()  # the step that was cut short may have been carried out
                    if there is not None and there.holder == self._me:
                        await self._let_go(there)
            except (UnreachableError, _RefusedError) as error:
                log.warning("the lease is left to end by itself: %s", error)

    # -- inside ------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        """Renew the lease where we hold it; else look at it, and take it where that is right."""
        lease = self._state.lease
        if self.term is not None and lease is not None and await self._renew(lease):
            return
        there = await self._get()
        now = self._steady()
        self._state = election.saw(self._state, there, self._me, now)
        if self.term is not None and there is not None:
            await self._renew(there)  # somebody else wrote on it; we still hold it
        elif election.may_take(self._state, self._me, now):
            await self._take(there)

    async def _renew(self, lease: Lease) -> bool:
        sent_at = self._steady()
        notes = {KEPT: self._keep} if self._keep and self._keep != lease.kept else {}
        term = election.outranking(lease.term, self._outrank)
        raises = term != lease.term and self._raises < election.MOST_RAISES
        if raises:
            notes[TERM] = str(term)
        metadata = {"annotations": notes} if notes else {}
        renewed = await self._patch(lease, {"metadata": metadata, "spec": {"renewTime": self._now_text()}})
        if renewed is not None:
            self._raises += raises
            self._state = election.holds(renewed, sent_at)
        return renewed is not None

    async def _take(self, there: Lease | None) -> None:
        term, now, sent_at = election.next_term(self._state, self._wall()), self._now_text(), self._steady()
        changes = 0 if there is None else there.changes + (there.holder != self._me)
        change = {
            "metadata": {"annotations": {TERM: str(term)}},
            "spec": {
                "holderIdentity": self._me,
                "leaseDurationSeconds": math.ceil(self._settings.duration),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": changes,
            },
        }
        taken = await (self._create(change) if there is None else self._patch(there, change))
        if taken is not None and taken.holder == self._me:
            self._keep = taken.kept  # what we had to leave when we led before may be out of date
            self._outrank = self._raises = 0
            self._state = election.holds(taken, sent_at)

    async def _let_go(self, lease: Lease) -> Lease | None:
        return await self._patch(lease, {"spec": {"holderIdentity": "", "renewTime": self._now_text()}})

    async def _get(self) -> Lease | None:
        answered = await self._send("GET", f"{await self._collection()}/{self._settings.name}")
        return None if answered.status == _NOT_FOUND else _lease(answered)

    async def _create(self, body: dict[str, Any]) -> Lease | None:
        """None where somebody was faster."""
        metadata = {"name": self._settings.name, **body["metadata"]}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body, "metadata": metadata}
        answered = await self._send("POST", await self._collection(), lease)
        return None if answered.status == _CONFLICT else _lease(answered)

    async def _patch(self, there: Lease, body: dict[str, Any]) -> Lease | None:
        """Change the lease, if it is still as it was `there`; None where it is not."""
        metadata = {"resourceVersion": there.version, **body.get("metadata", {})}
        path = f"{await self._collection()}/{self._settings.name}"
        answered = await self._send("PATCH", path, {**body, "metadata": metadata})
        if answered.status in (_CONFLICT, _NOT_FOUND):
            return None
        return _lease(answered)

    async def _send(self, method: str, path: str, body: Any = None) -> Answered:
        ask = Ask(
            method=method,
            path=path,
            query=(("fieldManager", marks.MANAGER),) if body is not None else (),
            body=body,
            content_type=_MERGE if method == "PATCH" else "application/json",
            timeout_seconds=self._settings.duration / (_STEPS / 2),
        )
        return await self._api.send(ask)

    async def _collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{await self._api.namespace()}/leases"

    def _now_text(self) -> str:
        """metav1.MicroTime: six digits always, or the server refuses it."""
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _RefusedError(Exception):
    """The server does not do it; the text is a sentence."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


_objects = msgspec.json.Decoder(_Object)


class _Message(msgspec.Struct, frozen=True):
    message: str = ""


_messages = msgspec.json.Decoder(_Message)


def _lease(answered: Answered) -> Lease:
    try:
        if answered.status not in (_OK, _CREATED):
            why = _messages.decode(answered.body).message[:300]
            raise _RefusedError(f"the lease: HTTP status {answered.status} {why}".rstrip())
        there = _objects.decode(answered.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _RefusedError(
            f"the lease: an answer that is no lease (HTTP status {answered.status})"
        ) from None
    term = there.metadata.annotations.get(TERM, "0")
    spec = there.spec
    return Lease(
        holder=spec.holder_identity or "",
        term=int(term) if term.isdecimal() and len(term) < 19 else 0,
        duration_seconds=min(float(spec.lease_duration_seconds or _USUAL_SECONDS), _LONGEST_SECONDS),
        renewed=spec.renew_time or "",
        version=there.metadata.resource_version,
        changes=spec.lease_transitions or 0,
        kept=there.metadata.annotations.get(KEPT, ""),
    )
