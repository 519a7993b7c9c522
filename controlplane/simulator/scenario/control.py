"""Who controls the gateway of a run: the daemon, or the gateway itself while the daemon is away.

Both are production code: `policy.tick` on scrapes and on the windows that admission reported, `policy.steer`
for what the gateway is to be told, `gateway.admission.steering` for what it makes of that. The two ends of
the wire are left out; a message arrives in the moment in which it is sent.
"""

from collections.abc import Mapping, Sequence

import msgspec

from controlplane.gateway.admission.steering import Judgement, Steering, of_our_clock, readings
from controlplane.policy import steer
from controlplane.policy.limits.law import UNLIMITED
from controlplane.policy.limits.laws import KEPT
from controlplane.policy.limits.none import NoLimit
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.signals.control import ControlMessage, ReplicaOrder
from controlplane.signals.decision import Standing
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.directory import Directory
from controlplane.simulator.scenario.faults import PrometheusAway, ScrapeFault
from controlplane.simulator.scenario.gateway import Gateway
from controlplane.simulator.scenario.gpus import Gpus
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.replica import Replica
from controlplane.simulator.scenario.watch import Watch

_HOLDS_SECONDS = 10.0  # how long a message holds; longer where ticks are far apart


class Control:
    """Tells the `gateway` of a run what to do, once a round. `watch` is the daemon's.

    Laws that production cannot run (those of the round trip) are run by whoever owns this, and their limits
    are set with `set_limits`; `has_law` says that the limits come from `policy.tick`.
    """

    def __init__(
        self, scenario: Scenario, replicas: tuple[Replica, ...], gateway: Gateway, gpus: Gpus | None = None
    ) -> None:
        policy = scenario.policy
        self.has_law = isinstance(policy.law, KEPT) and policy.gauges == "scrapes"
        self.interval = policy.interval if self.has_law and policy.controls else scenario.scrape.interval
        self._gateway = gateway
        self._settings = _settings(scenario, replicas, has_law=self.has_law)
        self._replicas = replicas
        self._scrapes = scenario.scrape
        self._hears = policy.controls and policy.sees == "gateway"
        self._mode = scenario.admission_settings.mode
        self._overcommit = policy.overcommit
        self.watch = Watch(replicas, scenario.scrape, self._settings, gpus)
        self._own: Watch | None = None  # the gateway's, while it is alone
        self._directory = Directory(replicas, kv_budget=policy.kv_budget and policy.controls)
        self._steering = Steering(gateway.admission, self._directory, "simulated", self._mode, 1.0)
        self._standing = Standing.ENFORCE if self.has_law else Standing.OBSERVE
        self._standings = dict.fromkeys((replica.name for replica in replicas), self._standing)
        self.enforces = self.has_law and policy.controls and policy.enforce  # what is decided on GPUs, too
        self._term, self._version = 1, 0
        self._untold: list[OutcomeWindow] = []  # while the daemon is away
        self.is_away = False

    def look(self, now: float) -> Sequence[OutcomeWindow]:
        """One round: the daemon hears the gateway, ticks and tells it what to do. Returns the gateway's new
        windows."""
        unix = UNIX_START + now
        self._steering.look(now, unix)
        windows = tuple(self._gateway.windows(now, is_alone=self._steering.is_alone))
        if self._hears:
            self._untold += windows
        if not self.is_away:
            self.watch.look(now, self._untold)
            self._untold = []
            self._tell(now, unix)
        elif self._steering.is_alone:
            self._look_alone(now, windows)
        return windows

    def set_limits(self, limits: Mapping[str, float], now: float) -> None:
        """What a law that only the simulator can run has come to."""
        self._steering.set_own_limits(limits, dict.fromkeys(limits, self._overcommit), now)

    def limit(self, name: str) -> float:
        """The limit of a replica that is in force."""
        return self._gateway.admission.limit(name) or UNLIMITED

    def goes(self, now: float) -> None:
        """The daemon is gone."""
        self.is_away = True

    def comes(self, now: float) -> None:
        """It is back, with what its journal has kept."""
        self.is_away = False
        self._term, self._version = self._term + 1, 0

    def begin(self, fault: ScrapeFault) -> None:
        self.watch.faults.append(fault)

    def end(self, fault: ScrapeFault) -> None:
        self.watch.faults.remove(fault)

    def _tell(self, now: float, unix: float) -> None:
        snapshot = self.watch.snapshot
        assert snapshot is not None
        self._own = None
        self._version += 1
        message = ControlMessage(
            term=self._term,
            version=self._version,
            sent_at=unix,
            expires_at=unix + max(_HOLDS_SECONDS, 3 * self.interval),
            replicas=self._orders(snapshot),
            mode=self._mode,
            boundary_tokens=steer.boundary_tokens(snapshot, self._standing, None),
        )
        taken = self._steering.take(message, now, unix)
        assert taken is Judgement.TAKEN, f"at {now} s the gateway finds the daemon's message {taken}"

    def _orders(self, snapshot: FleetSnapshot) -> tuple[ReplicaOrder, ...]:
        """Limits are told to a gateway that only observes, too; who is out is not."""
        out = self._standings if self.enforces else ()
        orders = steer.orders(snapshot, self._settings, self._standings, {}, out)
        if self.enforces:
            return orders
        return tuple(
            msgspec.structs.replace(order, rotation="in") if order.rotation == "quarantined" else order
            for order in orders
        )

    def _look_alone(self, now: float, windows: Sequence[OutcomeWindow]) -> None:
        """The gateway finds and scrapes engines by itself, and runs the same law on its own windows."""
        if self._own is None:
            self._own = Watch(self._replicas, self._scrapes, self._settings.model_copy(update={"pair": None}))
        own = self._own
        own.faults = [fault for fault in self.watch.faults if not isinstance(fault, PrometheusAway)]
        own.look(now, self._gateway.admission.whole_view(windows))
        assert own.snapshot is not None
        found = steer.orders(own.snapshot, self._settings, self._standings, {})
        orders = [of_our_clock(order, -UNIX_START) for order in found]
        self._directory.obey(orders, now)
        self._steering.look_at_replicas(now)
        self._gateway.set_readings(readings(orders), now)
        limits = {order.name: order.limit for order in orders if order.limit is not None}
        overcommit = {order.name: order.overcommit for order in orders if order.overcommit is not None}
        self._steering.set_own_limits(limits, overcommit, now)


def _settings(scenario: Scenario, replicas: Sequence[Replica], *, has_law: bool) -> PolicySettings:
    """The daemon's policy."""
    policy, scrapes = scenario.policy, scenario.scrape
    law = policy.for_slo(scenario.slo)
    kept = law if has_law and isinstance(law, KEPT) else NoLimit()
    return PolicySettings(
        pools={
            pool: PoolPolicy.model_construct(
                slo=scenario.slo,
                limits=kept,
                scale=policy.scale,
                kv_overcommit=policy.overcommit,
                max_num_seqs=policy.max_num_seqs,
            )
            for pool in dict.fromkeys(replica.pool for replica in replicas)
        },
        pair=scenario.admission.pools,
        boundary=policy.boundary,
        poll_interval=f"{scrapes.interval}s",
        stale_after=f"{max(20.0, 3 * scrapes.interval)}s",
    )
