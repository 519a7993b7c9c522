"""One kind of object behind one selector, as the API server has it: listed once, watched from then on.

    list ──> watch ── ends, is cut, falls silent ──> watch on from the last version
      ^        │
      └── 410 ─┘   the server no longer knows what came after our version (504: it does not know it yet)

A list is made at the start and then, never else. A watch that says nothing for SILENT_SECONDS may be
dead without knowing it, so it is opened anew, which costs one request. While the server cannot be reached the
last state stands, and `trouble` says why.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

import aiohttp
import msgspec

from controlplane.signals.backoff import backoff_seconds
from controlplane.sources.kubernetes_api import Answered, Ask, KubernetesApi, UnreachableError
from controlplane.sources.kubernetes_pods import Metadata

SILENT_SECONDS = 75.0
"""A server that sends bookmarks does so about every minute."""

_PAGE = 500
_LIST_SECONDS = 30.0
_LIST_BYTES = 64 << 20
_OPEN_SECONDS = 15.0
_WATCH_SECONDS = (240, 360)  # how long the server shall keep a watch open, spread
_EVENT_BYTES = 4 << 20  # an object in etcd has at most 1.5 MiB
_MOST_OBJECTS = 50_000
_SHORT_SECONDS = 2.0  # a watch that ends sooner has failed, whatever it told
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 30.0
_LONGEST_RETRY_AFTER_SECONDS = 120.0
_TROUBLE_AFTER_FAILURES = 2  # a connection that breaks and is made again at once is no trouble
_OK, _GONE, _TOO_MANY, _TIMED_OUT = 200, 410, 429, 504

T = TypeVar("T")


class _Only(msgspec.Struct):
    metadata: Metadata


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: tuple[msgspec.Raw, ...] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


class _ExpiredError(Exception):
    """Our version is too old: everything must be listed anew."""


class _RefusedError(Exception):
    """The server does not do it now; the text is a sentence. `asked_seconds`: so long it wants to be left
    alone."""

    def __init__(self, sentence: str, asked_seconds: float = 0.0) -> None:
        super().__init__(sentence)
        self.asked_seconds = asked_seconds


class Mirror(Generic[T]):
    """What is there now, by "namespace/name" (a node: "/name"). Call `run`; cancel it to stop.

    `synced` once everything has been listed, `tried` once that has been tried. `trouble` is a sentence while
    the server cannot be asked, else empty. `revision` counts changes, `unread` objects that could not be read
    and are left out. `doubtful`: a list was empty, which is more often a fault than the truth.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: Callable[[], Awaitable[str]],
        read: Callable[[bytes | msgspec.Raw], T],
        *,
        selector: str = "",
        luck: Callable[[], float] = random.random,
    ) -> None:
        """`path` is awaited for the path of the collection; `read` raises msgspec.DecodeError."""
        self.items: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.tried = asyncio.Event()
        self.trouble = ""
        self.doubtful = False
        self.revision = 0
        self.unread = 0
        self.lists = 0
        self._api, self._path, self._read, self._luck = api, path, read, luck
        self._query = (("labelSelector", selector),) if selector else ()
        self._version = ""
        self._where = ""
        self._failures = 0  # in a row, until a watch holds
        self._held = False

    async def run(self) -> None:
        """Follow the server until cancelled."""
        while True:
            self._held = False
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except _ExpiredError:
                self._version = ""
                why, asked = "", 0.0
            except _RefusedError as error:
                why, asked = str(error), error.asked_seconds
            except UnreachableError as error:
                why, asked = str(error), 0.0
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                why, asked = f"{self._where}: does not answer like an API server ({error})", 0.0
            except Exception as error:  # ours, and no reason to follow nobody any more
                why, asked = f"{self._where}: {type(error).__name__}: {error}", 0.0
            else:
                if self._held:
                    continue  # it has ended in good order, or in silence
                why, asked = f"{self._where}: a watch ends as soon as it is opened", 0.0
            self.tried.set()
            await asyncio.sleep(self._failed(why, asked))

    # -- asking ------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        where, token = await self._path(), ""
        found: dict[str, T] = {}
        self._where = where
        self.lists += 1
        while True:
            query = (*self._query, ("limit", str(_PAGE)), *((("continue", token),) if token else ()))
            ask = Ask(
                method="GET", path=where, query=query, timeout_seconds=_LIST_SECONDS, most_bytes=_LIST_BYTES
            )
            answered = await self._api.send(ask)
            if answered.status != _OK:
                raise _refusal(where, answered)
            page = _lists.decode(answered.body)
            found |= dict(self._readable(page.items or ()))
            token = page.metadata.continue_
            if len(found) > _MOST_OBJECTS:
                raise _RefusedError(f"{where}: over {_MOST_OBJECTS} objects fit the selector")
            if not token:
                break
        self.items, self.doubtful = found, not found
        self.revision += 1
        self.trouble = ""
        self._version = page.metadata.resource_version
        self.synced.set()
        self.tried.set()

    async def _watch(self) -> None:
        """Take in what the server tells until it ends the watch or says nothing more."""
        shortest, longest = _WATCH_SECONDS
        seconds = round(shortest + self._luck() * (longest - shortest))
        ask = Ask(
            method="GET",
            path=self._where,
            query=(
                *self._query,
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("resourceVersion", self._version),
                ("timeoutSeconds", str(seconds)),
            ),
            timeout_seconds=_OPEN_SECONDS,
        )
        async with self._api.open(ask) as response:
            if response.status != _OK:
                body = await response.content.read(1 << 16)
                raise _refusal(self._where, Answered(response.status, response.headers, body))
            holds = asyncio.get_running_loop().call_later(_SHORT_SECONDS, self._holds)
            try:
                async for line in _lines(response):
                    self._take(line)
                    self.trouble = ""
            finally:
                holds.cancel()

    def _take(self, line: bytes) -> None:
        event = _events.decode(line)
        if event.type == "BOOKMARK":
            self._version = _bookmarks.decode(event.object).metadata.resource_version
            return
        if event.type == "ERROR":
            status = _statuses.decode(event.object)
            if _is_no_version(status.code, status.message):
                raise _ExpiredError
            raise _RefusedError(
                f"{self._where}: the watch ended with code {status.code}: {status.message[:200]}"
            )
        metadata = _metadata.decode(event.object).metadata
        key = f"{metadata.namespace}/{metadata.name}"
        if event.type == "DELETED":
            self.items.pop(key, None)
        else:
            self.items.update(self._readable((event.object,)))
        self.doubtful = False
        self.revision += 1
        self._version = metadata.resource_version

    def _readable(self, objects: tuple[msgspec.Raw, ...]) -> Iterator[tuple[str, T]]:
        for raw in objects:
            try:
                metadata = _metadata.decode(raw).metadata
                yield f"{metadata.namespace}/{metadata.name}", self._read(raw)
            except msgspec.DecodeError:
                self.unread += 1

    # -- how it goes -------------------------------------------------------------------------------------

    def _holds(self) -> None:
        """The watch has lasted: what failed before is over."""
        self._held, self.trouble, self._failures = True, "", 0

    def _failed(self, why: str, asked_seconds: float) -> float:
        """How long to wait before the next try."""
        self._failures += 1
        if why and (self._failures >= _TROUBLE_AFTER_FAILURES or not self.synced.is_set()):
            self.trouble = why
        wait = backoff_seconds(
            self._failures,
            self._luck(),
            first_seconds=_FIRST_WAIT_SECONDS,
            limit_seconds=_LONGEST_WAIT_SECONDS,
        )
        return max(wait, min(asked_seconds, _LONGEST_RETRY_AFTER_SECONDS))


_lists = msgspec.json.Decoder(_List)
_events = msgspec.json.Decoder(_Event)
_statuses = msgspec.json.Decoder(_Status)
_bookmarks = msgspec.json.Decoder(_Bookmark)
_metadata = msgspec.json.Decoder(_Only)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole lines until the answer ends or falls silent for SILENT_SECONDS; what is cut off is dropped."""
    rest = b""
    while True:
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                piece = await response.content.readany()
        except TimeoutError:
            return
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > _EVENT_BYTES:
            raise ValueError(f"an event of over {_EVENT_BYTES} bytes")
        for line in whole:
            if line:
                yield line


def _is_no_version(code: int, message: str) -> bool:
    """Whether the server knows nothing of our version: any more, or, put back from a backup, yet."""
    return code == _GONE or (code == _TIMED_OUT and "too large resource version" in message.lower())


def _refusal(where: str, answered: Answered) -> Exception:
    try:
        message = _statuses.decode(answered.body).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = ""
    if _is_no_version(answered.status, message):
        return _ExpiredError()
    asked = answered.headers.get("Retry-After", "")
    seconds = float(asked) if asked.isdecimal() and answered.status == _TOO_MANY else 0.0
    return _RefusedError(f"{where}: HTTP status {answered.status} {message[:300]}".rstrip(), seconds)
