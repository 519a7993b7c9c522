"""The replicas as the gateway of a run knows them: from control messages, or alone from its own discovery."""

from collections.abc import Iterable, Sequence

from controlplane.gateway.admission.replica import ReplicaSpec, Rotation
from controlplane.signals.control import ReplicaOrder
from controlplane.simulator.scenario.replica import Replica


class Directory:
    """The roster of a run's gateway. Without `kv_budget` it does not know KV sizes."""

    def __init__(self, replicas: Sequence[Replica], *, kv_budget: bool) -> None:
        self._by_name = {replica.name: replica for replica in replicas}
        self._kv_budget = kv_budget
        self._orders: tuple[ReplicaOrder, ...] = ()

    def obey(self, orders: Iterable[ReplicaOrder], now: float) -> None:
        self._orders = tuple(orders)

    def specs(self, now: float) -> list[ReplicaSpec]:
        return [self._spec(order) for order in self._orders]

    def _spec(self, order: ReplicaOrder) -> ReplicaSpec:
        return ReplicaSpec(
            name=order.name,
            pool=order.pool,
            rotation=Rotation(order.rotation),
            kv_tokens=order.kv_tokens if self._kv_budget else None,
            # As a gateway reads it from `/v1/models`.
            max_model_len=self._by_name[order.name].settings.max_model_len,
            ready_since=order.ready_since,
        )
