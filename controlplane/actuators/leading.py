"""Writes of a leader only: nothing is sent by whom the lead was taken from, however late it wakes up."""

from collections.abc import Callable

import msgspec

from controlplane.actuators.call import Call, CallFailedError, Reply, Send

READS = frozenset({"GET", "HEAD"})


def only_while_leading(send: Send, seconds_left: Callable[[], float]) -> Send:
    """`send`, which sends what writes only while `seconds_left` is over 0, and waits no longer than that."""

    async def guarded(call: Call) -> Reply:
        if call.method in READS:
            return await send(call)
        left = seconds_left()
        if left <= 0:
            raise CallFailedError(f"{call.url}: not sent, another daemon may lead by now")
        return await send(msgspec.structs.replace(call, timeout_seconds=min(call.timeout_seconds, left)))

    return guarded
