"""From the last tick to what the gateways are to be told: `policy.steer`, modes, and the demand of each."""

from collections.abc import Mapping

from controlplane.actuators.gateway import Level
from controlplane.daemon.dispatch import standing, stays_out
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy import steer
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Mode, Standing
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.snapshot import FleetSnapshot

GATEWAY = "gateway"
_DEMAND_SECONDS = 10.0


def level(
    snapshot: FleetSnapshot,
    memory: Memory,
    policy: PolicySettings,
    settings: DaemonSettings,
    told: Mapping[str, float],
    *,
    told_boundary: int | None = None,
) -> Level:
    """What holds after a tick. `told` are the limits that the gateways were told last, and `told_boundary` is
    the boundary that they were.

    A gateway enforces as a whole. So it is told to where every pool is to be enforced; where some are not,
    its own configuration says, and only the limits of the others are told. A hold moves nothing: modes,
    limits, boundary and shares stay as they are, while replicas and readings, which are facts, go on.
    """
    standings = {name: standing(name, GATEWAY, snapshot, settings)[1] for name in snapshot.replicas}
    pools = [standing(name, GATEWAY, snapshot, settings)[1] for name in snapshot.pools]
    out = [name for name in snapshot.replicas if stays_out(name, GATEWAY, snapshot, settings)]
    held = snapshot.orders.hold is not None
    parted = snapshot.boundary
    parting = Standing.OBSERVE if parted is None else standing(parted.name, GATEWAY, snapshot, settings)[1]
    enforces = bool(pools) and Standing.OBSERVE not in pools
    return Level(
        orders=steer.orders(snapshot, policy, standings, told, out),
        mode=Mode.ENFORCE if enforces else None,
        keeps_mode=held,
        demand=None if held else demand(memory, snapshot.at),
        boundary_tokens=steer.boundary_tokens(snapshot, parting, told_boundary),
    )


def demand(memory: Memory, now: float) -> dict[str, float]:
    """Tokens that each gateway was offered of late, those of refused requests included at the mean size."""
    tokens: dict[str, float] = {}
    for pool in memory.pools.values():
        for window in reversed(pool.outcomes):
            if now - window.end > _DEMAND_SECONDS:
                break
            name = _process(window.gateway)
            tokens[name] = tokens.get(name, 0.0) + _offered_tokens(window)
    return tokens


def _offered_tokens(window: OutcomeWindow) -> float:
    ended = window.offered - sum(window.shed.values())
    return window.tokens * window.offered / ended if ended else float(window.offered)


def _process(gateway: str) -> str:
    """The gateway that a worker of it belongs to: workers are called NAME/NUMBER."""
    name, slash, number = gateway.rpartition("/")
    return name if slash and number.isdecimal() else gateway
