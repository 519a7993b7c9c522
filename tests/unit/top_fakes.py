"""What `controlplane top` is given to show, and an API for it to ask."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import fleet_fakes as fakes
from fleet_fakes import AT, FakeDaemon

from controlplane.api import answers
from controlplane.api.server import ApiServer
from controlplane.api.settings import ApiSettings
from controlplane.signals.decision import Orders
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.signals.status import Status
from controlplane.terminal.view import View


def view(seen: FleetSnapshot, orders: Orders | None = None, how: Status | None = None) -> View:
    shown = answers.fleet_of(seen, orders or Orders(), how or fakes.status(), AT)
    return View(
        "http://127.0.0.1:9090",
        AT,
        shown,
        [answers.replica_of(one, how or fakes.status(), AT) for one in seen.replicas.values()],
        len(seen.replicas),
    )


@contextmanager
def served(daemon: FakeDaemon) -> Iterator[str]:
    """The API of `daemon` in a thread with a loop of its own, as another process would have it."""
    server = ApiServer(daemon, ApiSettings(listen="127.0.0.1:0"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
