"""What the daemon has the gateways told after a tick: by modes, orders and demand."""

from pathlib import Path

import pytest
from daemon_fakes import NOON, settings
from fleet_fakes import fleet, replica

from controlplane.daemon.settings import DaemonSettings
from controlplane.daemon.steering import demand, level
from controlplane.policy.memory import Memory, PoolMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Hold, Mode, Orders, Override
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.snapshot import PoolBoundary

ENFORCE, OBSERVE = Mode.ENFORCE, Mode.OBSERVE
HELD = Orders(Hold(NOON, "ann", "racks"))
NONE = Orders()


def outcomes(gateway: str, end: float, tokens: int, *, offered: int = 10, shed: int = 0) -> OutcomeWindow:
    counts = dict.fromkeys(("finished", "good", "failed", "gave_up", "good_tokens", "in_flight"), 0)
    refused = {"queue_full": shed} if shed else {}
    return OutcomeWindow(
        gateway, "chat", end - 1, end, offered=offered, shed=refused, tokens=tokens, **counts
    )


@pytest.fixture
def modes(tmp_path: Path):
    def made(**by_pool: Mode) -> DaemonSettings:
        return settings(
            tmp_path / "j", modes={"gateway": {k.replace("any", "*"): v for k, v in by_pool.items()}}
        )

    return made


def told(
    given: DaemonSettings,
    orders: Orders = NONE,
    last: dict[str, float] | None = None,
    last_boundary: int | None = None,
):
    boundary = PoolBoundary("chat", "batch", 8192, "settled", "no better one", NOON, in_force=4096)
    seen = fleet(replica("a:1", "chat"), replica("b:1", "batch"), orders=orders, boundary=boundary)
    return level(seen, Memory(), PolicySettings(), given, last or {}, told_boundary=last_boundary)


def limits(*args: object, **more: object) -> dict[str, float | None]:
    return {order.name: order.limit for order in told(*args, **more).orders}


def test_by_default_nothing_is_touched(modes) -> None:
    assert limits(modes()) == {"a:1": None, "b:1": None}
    assert told(modes()).mode is None


def test_where_all_is_to_be_enforced_the_gateways_enforce(modes) -> None:
    assert limits(modes(any=ENFORCE)) == {"a:1": 137.0, "b:1": 137.0}
    assert told(modes(any=ENFORCE)).mode is ENFORCE


def test_where_a_pool_only_observes_it_is_told_no_limit_and_the_mode_is_the_gateways_own(modes) -> None:
    given = modes(any=ENFORCE, batch=OBSERVE)
    assert limits(given) == {"a:1": 137.0, "b:1": None}
    assert told(given).mode is None


def test_a_hold_keeps_limits_modes_and_shares_and_facts_go_on(modes) -> None:
    held = told(modes(any=ENFORCE), HELD, {"a:1": 99.0})
    assert [(order.name, order.limit) for order in held.orders] == [("a:1", 99.0), ("b:1", None)]
    assert held.keeps_mode
    assert held.demand is None
    assert held.orders[0].kv_tokens == 440_000


def test_an_override_to_observe_keeps_what_was_told_last(modes) -> None:
    override = Override("replica", "a:1", "mode", OBSERVE, "ann", "test", NOON)
    given = told(modes(any=ENFORCE), Orders(None, (override,)), {"a:1": 99.0})
    assert [(order.name, order.limit) for order in given.orders] == [("a:1", 99.0), ("b:1", 137.0)]
    assert given.mode is ENFORCE, "one replica in the hands of a person stops no gateway from enforcing"


def test_an_override_to_enforce_wins_over_the_settings(modes) -> None:
    override = Override("pool", "chat", "mode", ENFORCE, "ann", "test", NOON)
    assert limits(modes(), Orders(None, (override,))) == {"a:1": 137.0, "b:1": None}


def test_the_boundary_is_told_where_both_pools_are_enforced_and_kept_where_one_is_held(modes) -> None:
    everywhere = modes(any=ENFORCE)
    assert told(modes()).boundary_tokens is None
    assert told(modes(any=ENFORCE, batch=OBSERVE)).boundary_tokens is None
    assert told(everywhere).boundary_tokens == 8192
    assert told(everywhere, HELD, None, 6144).boundary_tokens == 6144
    assert told(everywhere, HELD).boundary_tokens == 4096, "nothing was told yet: as the gateways have it"
    override = Override("pool", "batch", "mode", OBSERVE, "ann", "test", NOON)
    assert told(everywhere, Orders(None, (override,)), None, 6144).boundary_tokens == 6144


def test_demand_is_of_the_last_seconds_with_what_was_refused_and_by_process() -> None:
    windows = (
        outcomes("gw", NOON - 30, 9999),
        outcomes("gw", NOON - 2, 1000),
        outcomes("gw", NOON - 1, 1000, offered=20, shed=10),  # half of it
        outcomes("other/0", NOON - 1, 300),
        outcomes("other/1", NOON, 400),
        outcomes("not/a-worker", NOON, 5),
    )
    memory = Memory(pools={"chat": PoolMemory(outcomes=windows)})
    assert demand(memory, NOON) == {"gw": 3000.0, "other": 700.0, "not/a-worker": 5.0}


def test_demand_of_a_gateway_that_refuses_everything_is_not_nothing() -> None:
    windows = (outcomes("gw", NOON, 0, offered=40, shed=40),)
    assert demand(Memory(pools={"chat": PoolMemory(outcomes=windows)}), NOON) == {"gw": 40.0}
