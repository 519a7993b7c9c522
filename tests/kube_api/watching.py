"""One watch: which changes it shows, in which words, and how it is spoilt."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from aiohttp import web

from kube_api.errors import ApiError, expired
from kube_api.resources import Resource
from kube_api.selectors import Test
from kube_api.store import Change, Object, Store


class Watch:
    """A connection that changes are sent down. `muted` ones stay open and say nothing any more."""

    def __init__(self, resource: Resource, namespace: str, tests: Iterable[Test], query: str) -> None:
        self.resource, self.namespace, self.query = resource, namespace, query
        self.muted = False
        self.slow_seconds = 0.0
        self.transport: asyncio.Transport | None = None
        self._tests = tuple(tests)
        self._queue: asyncio.Queue[tuple[int, Object]] = asyncio.Queue()

    def take(self, change: Change) -> None:
        """Show a change, if it is one for whoever looks through the selectors."""
        if change.resource is not self.resource:
            return
        before, after = self._sees(change.old), self._sees(change.new)
        if after is not None:
            self._put(change.version, "MODIFIED" if before is not None else "ADDED", after)
        elif before is not None:  # out of sight is gone: the last state that was in sight, at this version
            shown = {**before, "metadata": {**before["metadata"], "resourceVersion": str(change.version)}}
            self._put(change.version, "DELETED", shown)

    def show(self, objects: Iterable[Object]) -> None:
        """Begin with what is there."""
        for obj in objects:
            if self._sees(obj) is not None:
                self._put(int(obj["metadata"]["resourceVersion"]), "ADDED", obj)

    def bookmark(self, version: int) -> None:
        shown = {
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version,
            "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        }
        self._put(version, "BOOKMARK", shown)

    def fail(self, error: ApiError) -> None:
        """Say that the watch cannot go on."""
        self._put(-1, "ERROR", error.status())

    async def send(
        self, response: web.StreamResponse, store: Store, seconds: float, bookmark_seconds: float
    ) -> None:
        """Send until `seconds` are over or the watch has failed. A bookmark_seconds of 0 sends none."""
        loop = asyncio.get_running_loop()
        ends, marks = loop.time() + seconds, loop.time() + bookmark_seconds
        while True:
            now = loop.time()
            if now >= ends:
                return
            until = min(ends, marks) if bookmark_seconds else ends
            try:
                async with asyncio.timeout(until - now):
                    version, event = await self._queue.get()
            except TimeoutError:
                if bookmark_seconds and loop.time() >= marks:
                    marks = loop.time() + bookmark_seconds
                    self.bookmark(store.version)
                continue
            if self.slow_seconds:
                await asyncio.sleep(self.slow_seconds)
            if self.muted:
                continue
            await response.write(msgspec.json.encode(event) + b"\n")
            if version < 0:
                return

    def _sees(self, obj: Object | None) -> Object | None:
        if obj is None or (self.namespace and obj["metadata"].get("namespace") != self.namespace):
            return None
        return obj if all(test(obj) for test in self._tests) else None

    def _put(self, version: int, kind: str, obj: Any) -> None:
        self._queue.put_nowait((version, {"type": kind, "object": obj}))


def replay(store: Store, since: int) -> Iterator[Change]:
    """The changes after version `since`. Raises ApiError where they are no longer, or not yet, known."""
    if since < store.compacted:
        raise expired(f"too old resource version: {since} ({store.compacted})")
    if since > store.version:
        message = f"Too large resource version: {since}, current: {store.version}"
        causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        raise ApiError(504, "Timeout", message, details={"causes": causes, "retryAfterSeconds": 1})
    return (change for change in store.changes if change.version > since)
