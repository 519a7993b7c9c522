"""One object of a Kubernetes cluster, changed only where it still reads as when we thought of the change.

A change is one PATCH that carries the `resourceVersion` it is meant for: all of it is done or nothing is, and
what somebody else wrote meanwhile is never written over. It is then thought of anew, a few times.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from controlplane.actuators.call import Call, CallFailedError, Reply, Send
from controlplane.actuators.limit import RefusedError
from controlplane.signals.marks import MANAGER

Object: TypeAlias = dict[str, Any]
Edit: TypeAlias = Callable[[Object], Object | None]
"""From an object as it is to a merge patch; None where nothing is to be done. May raise RefusedError."""

_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_TIMEOUT_SECONDS = 4.0
_MOST_BYTES = 2 << 20
_TRIES = 4  # somebody else is faster three times in a row: then the next tick may try again
_CONFLICT, _NOT_FOUND, _TOO_MANY = 409, 404, 429
_NEVER = frozenset({405, 415})  # the same again would be answered the same way
_FORBIDDEN = frozenset({400, 401, 403, 422})
"""By a right that is missing or a policy of the cluster (as a webhook words it): a person may mend that."""

_FORBIDDEN_SECONDS = 60.0


class GoneError(RefusedError):
    """The object that is meant is there no more."""


async def change(
    send: Send, path: str, edit: Edit, subresource: str = "", *, uid: str = "", strategic: bool = False
) -> bool:
    """Bring the object at `path` to what `edit` asks for; False where it was so already.

    Where a `uid` is given, another object of that name is not touched. The change goes to `subresource` of it
    ("/status"). A `strategic` patch merges lists of built-in types by their keys, as conditions by their
    type. Raises GoneError, RefusedError where it can never be done, CallFailedError where another try may
    help.
    """
    for _ in range(_TRIES):
        seen = await _call(send, "GET", path)
        found = parsed(seen, path)
        if uid and found.get("metadata", {}).get("uid") != uid:
            raise GoneError(f"{path}: another one has its name by now")
        patch = edit(found)
        if patch is None:
            return False
        version = found.get("metadata", {}).get("resourceVersion", "")
        metadata = {**patch.get("metadata", {}), "resourceVersion": version}
        body = msgspec.json.encode({**patch, "metadata": metadata})
        where = f"{path}{subresource}?fieldManager={MANAGER}"
        reply = await _call(send, "PATCH", where, body, _STRATEGIC_PATCH if strategic else _MERGE_PATCH)
        if reply.status == _NOT_FOUND and subresource:
            await read(send, path)  # which tells whether it is the object that is gone
            raise RefusedError(f"{path}: it has no {subresource}")
        if reply.status != _CONFLICT:
            parsed(reply, path)
            return True
    raise CallFailedError(f"{path}: somebody else changed it {_TRIES} times while we did")


async def read(send: Send, path: str) -> Object:
    """The object at `path`. Raises GoneError, RefusedError and CallFailedError."""
    return parsed(await _call(send, "GET", path), path)


async def _call(send: Send, method: str, path: str, body: bytes = b"", kind: str = "") -> Reply:
    headers = {"Content-Type": kind} if body else {}
    return await send(Call(method, path, _TIMEOUT_SECONDS, _MOST_BYTES, headers, body))


def parsed(reply: Reply, path: str) -> Object:
    """The object in an answer. Raises GoneError, RefusedError and CallFailedError."""
    if 200 <= reply.status < 300:
        try:
            return msgspec.json.decode(reply.body, type=dict[str, Any])
        except msgspec.DecodeError:
            raise CallFailedError(f"{path}: the answer is no object") from None
    why = said(reply)
    if reply.status == _NOT_FOUND:
        raise GoneError(f"{path}: there is no such object")
    refused = f"{path}: the API server refuses it ({reply.status}): {why}"
    if reply.status in _NEVER:
        raise RefusedError(refused)
    if reply.status in _FORBIDDEN:
        raise CallFailedError(refused, _FORBIDDEN_SECONDS)
    asked = reply.retry_after_seconds if reply.status == _TOO_MANY else 0.0
    raise CallFailedError(f"{path}: the API server answers {reply.status}: {why}", asked)


class _Status(msgspec.Struct, frozen=True):
    message: str = ""


def said(reply: Reply) -> str:
    """What the API server says of an answer that is no success, for people."""
    try:
        message = msgspec.json.decode(reply.body, type=_Status).message
    except msgspec.DecodeError:
        message = ""
    return " ".join(message.split())[:300] or "it does not say why"
