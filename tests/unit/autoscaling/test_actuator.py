"""The actuator that sends nothing: it has a mode, and the journal says that the count can be fetched."""

import asyncio

import fleet_fakes as fakes
from test_advice import scaled

from controlplane.actuators.autoscaler import Autoscaler
from controlplane.api.autoscaling import advice
from controlplane.daemon.dispatch import Dispatch
from controlplane.daemon.settings import DaemonSettings
from controlplane.signals.decision import SCALE, Decision, Mode, Standing

ENFORCE = DaemonSettings(modes={"autoscaler": {"chat": Mode.ENFORCE}})


def decision() -> Decision:
    return Decision("7-1", fakes.AT, SCALE, "chat", "4", "9", "demand", "why", (), Mode.OBSERVE)


async def test_its_mode_is_what_the_advice_goes_by() -> None:
    daemon = scaled(9, 4)
    assert daemon.seen is not None
    told: list[Decision] = []
    dispatch = Dispatch([Autoscaler(daemon.snapshot)], told.append)
    try:
        for settings, standing, value in (
            (DaemonSettings(), Standing.OBSERVE, 4.0),
            (ENFORCE, Standing.ENFORCE, 9.0),
        ):
            standings = dispatch.pool_standings(daemon.seen, settings)
            assert standings == {"chat": {"autoscaler": standing}}
            daemon.how = fakes.status(pool_standings=standings)
            assert advice(daemon, "chat").value == value
        (taken,) = dispatch.take((decision(),), daemon.seen, ENFORCE)
        assert taken.outcome == "pending"
        async with asyncio.timeout(60):
            while not told:  # noqa: ASYNC110 - a turn of the loop
                await asyncio.sleep(0)
        assert (told[0].mode, told[0].outcome) == (Mode.ENFORCE, "done")
    finally:
        await dispatch.close()


def test_pools_that_are_not_scaled_are_not_its_business() -> None:
    assert not Autoscaler(fakes.fleet).takes("chat", "chat")
    assert not Autoscaler(lambda: None).takes("chat", "chat")
    assert Autoscaler(scaled(1, 1).snapshot).takes("chat", "chat")
    assert not Autoscaler(scaled(1, 1).snapshot, frozenset({"chat"})).takes("chat", "chat"), "another's"
