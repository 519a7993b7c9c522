"""One simulated vLLM server without its network: engine, counters, faults, GPUs."""

import asyncio
import time
from typing import Any

import msgspec

from controlplane.simulator.engine import Engine
from controlplane.simulator.http import dcgm, faults
from controlplane.simulator.http.dcgm import GpuFacts, Gpus
from controlplane.simulator.http.drive import Drive
from controlplane.simulator.http.errors import bad_request
from controlplane.simulator.http.faults import Faults
from controlplane.simulator.http.http_metrics import HttpMetrics, without_http
from controlplane.simulator.metrics_page import Replica as Known
from controlplane.simulator.metrics_page import render
from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw


class Spec(msgspec.Struct, frozen=True):
    """What the replicas of a fleet have in common. `law` is what steps take when nothing is broken."""

    model: str
    law: StepLaw
    settings: EngineSettings
    gpus: GpuFacts
    seed: int
    node: str


class Replica:
    """Replica number `index` of a fleet. Belongs to the event loop that is running when it is made."""

    def __init__(self, spec: Spec, index: int) -> None:
        self.spec = spec
        self.faults = Faults()
        self.is_up = False
        self._gpus = Gpus(spec.gpus, spec.law, index * spec.gpus.gpus, time.monotonic())
        self._frozen: dict[bytes, bytes] = {}
        self._begin()

    def start(self) -> None:
        """A new process: counters at zero, and of the faults only those of the hardware and of warming up."""
        self.gpus()
        self._begin()
        self.is_up = True
        old = self.faults
        self._apply(Faults(thermal_factor=old.thermal_factor, xid=old.xid, warming_up=old.warming_up))

    def stop(self) -> None:
        """The process is gone, with all requests in it."""
        self.gpus()
        self.drive.stop()
        self.is_up = False

    def break_as(self, change: dict[str, Any]) -> None:
        """Switch faults on or off. Raises ApiError where one is unknown or out of range."""
        new = self.faults.changed(change)
        mine = [str(number) for number in self._gpus.numbers]
        if strange := set(new.xid).difference(mine):
            raise bad_request(
                f"xid: GPU {min(strange)!r} is not under this replica, which has {', '.join(mine)}"
            )
        if new.gauges_frozen and not self.faults.gauges_frozen:
            self._frozen = faults.gauges(self._engine_page())
        self.gpus()
        self._apply(new)

    def metrics(self) -> bytes:
        """The page of /metrics, as the faults leave it."""
        page = self._engine_page()
        if self.faults.scrape == "nan":
            page = faults.with_gauges(page, {})
        elif self.faults.gauges_frozen:
            page = faults.with_gauges(page, self._frozen)
        return without_http(page) + self.http.page()

    def gpus(self) -> Gpus:
        """Its GPUs as they are now."""
        counters = self.drive.engine.counters if self.is_up else None
        self._gpus.follow(counters, time.monotonic())
        return self._gpus

    def dcgm_page(self) -> bytes:
        """What the exporter on its node says of its GPUs."""
        return dcgm.page([self.gpus()], self.spec.node)

    def _begin(self) -> None:
        engine = Engine(self.spec.law, self.spec.settings, progress=True)
        self.drive = Drive(engine, asyncio.get_running_loop())
        self.http = HttpMetrics()
        self.known = Known(self.spec.model, time.time(), self.spec.settings)

    def _apply(self, new: Faults) -> None:
        law = self.spec.law.slowed(new.slow_factor * new.thermal_factor)

        def change(engine: Engine) -> None:
            engine.set_law(law)
            if new.wedged or new.warming_up:
                engine.wedge()
            else:
                engine.unwedge()

        self.drive.change(change)
        self.faults = new
        self._gpus.faults = new

    def _engine_page(self) -> bytes:
        return render(self.known, self.drive.engine.counters)
