"""The local API that breaks a replica on purpose and mends it: /sim, and the GPUs' page."""

import asyncio
from ipaddress import ip_address
from typing import Any, Protocol

import msgspec
from aiohttp import web

from controlplane.simulator.http import dcgm
from controlplane.simulator.http.ask import read
from controlplane.simulator.http.errors import ApiError, bad_request
from controlplane.simulator.http.faults import Interruption
from controlplane.simulator.http.replica import Replica


class Network(Protocol):
    """What can be done to a replica's connections."""

    def drop_connections(self, spare: asyncio.Transport | None) -> None:
        """Reset all but one in the midst of whatever they carry."""

    def restart(self, seconds: float) -> None:
        """Be gone, come back after so long."""


class Control:
    """Answers for one replica, to this machine only."""

    def __init__(self, replica: Replica, network: Network) -> None:
        self._replica = replica
        self._network = network

    def add_to(self, app: web.Application) -> None:
        """Add its routes to an application."""
        app.router.add_get("/sim", self._state)
        app.router.add_post("/sim/faults", self._break)
        app.router.add_get("/dcgm/metrics", self._dcgm)

    async def _break(self, request: web.Request) -> web.StreamResponse:
        """Switch faults: those of `Faults` last until they are changed, an `Interruption` is done once."""
        _check_local(request)
        change = read(await request.read(), dict[str, Any])
        once = {name: change.pop(name) for name in Interruption.__struct_fields__ if name in change}
        try:
            interruption = msgspec.convert(once, Interruption)
        except msgspec.ValidationError as error:
            raise bad_request(str(error)) from None
        self._replica.break_as(change)
        if interruption.restart_seconds is not None:
            self._network.restart(interruption.restart_seconds)
        elif interruption.drop_connections:
            self._network.drop_connections(spare=request.transport)
        return self._answer()

    async def _state(self, request: web.Request) -> web.StreamResponse:
        _check_local(request)
        return self._answer()

    async def _dcgm(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._replica.dcgm_page(), headers={"Content-Type": dcgm.CONTENT_TYPE})

    def _answer(self) -> web.Response:
        """What is broken, and how well the simulation keeps up with the clock."""
        drive = self._replica.drive
        state = {
            "model": self._replica.spec.model,
            "up_seconds": drive.now(),
            "requests": drive.engine.in_system,
            "lateness": drive.lateness(),
            "faults": self._replica.faults,
        }
        return web.Response(body=msgspec.json.encode(state), content_type="application/json")


def _check_local(request: web.Request) -> None:
    if request.remote is None or not ip_address(request.remote).is_loopback:
        raise ApiError(403, "Forbidden", f"only this machine may switch faults, not {request.remote}")
