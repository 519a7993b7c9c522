"""The law of `gateway/store.lua` in a few lines of Python, and a fleet of gateways around it."""

from dataclasses import dataclass, field
from typing import Any

from controlplane.gateway.admission.fairness import VirtualTokenCounters
from controlplane.gateway.admission.quota import Quotas
from controlplane.gateway.admission.settings import TenantSettings
from controlplane.gateway.admission.sync import Heard, Pull, Push, Sync

LEASE = 2.0


@dataclass
class ModelStore:
    """Times are seconds. `tenants` by name: counter, level, at, and sequences by gateway."""

    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    gateways: dict[str, tuple[int, float]] = field(default_factory=dict)
    revision: int = 0

    def exchange(self, push: Push, gateway: str, now: float, most: int = 500) -> Pull:
        known = self.gateways.get(gateway)
        carried_out = known is not None and known[0] == push.number
        is_new = (
            known is None
            or push.since > self.revision
            or not (carried_out or known[0] == push.acknowledged)
            or (self.revision > 0 and not self.tenants)
        )
        self.gateways[gateway] = push.number, now + LEASE
        for told in () if carried_out else push.tenants:
            tenant = self.tenants.setdefault(told.tenant, {"sequences": {}})
            counter = tenant.get("counter")
            if counter is None:
                tenant["counter"] = told.counter
            else:
                tenant["counter"] = max(counter + told.ahead, -1e300 if told.floor is None else told.floor)
            if told.capacity is not None:
                if "level" in tenant:
                    refilled = tenant["level"] + max(0.0, now - tenant["at"]) * told.rate
                    tenant["level"] = min(told.capacity, min(told.capacity, refilled) - told.taken)
                else:
                    tenant["level"] = told.level
                tenant["at"] = now
            if told.sequences is not None:
                tenant["sequences"][gateway] = told.sequences
            self.revision += 1
            self.changes[told.tenant] = self.revision
        since = 0 if is_new else push.since
        changed = sorted((at, name) for name, at in self.changes.items() if at > since)[:most]
        has_more = len(changed) == most
        return Pull(
            is_new=is_new,
            revision=changed[-1][0] if has_more else self.revision,
            has_more=has_more,
            living=tuple(n for n, (_, until) in self.gateways.items() if until > now and n != gateway),
            tenants=tuple(self._heard(name, gateway, now) for _, name in changed),
        )

    def _heard(self, name: str, gateway: str, now: float) -> Heard:
        tenant = self.tenants[name]
        others = ((g, count) for g, count in tenant["sequences"].items() if count and g != gateway)
        level = tenant.get("level")
        age_ms = 0.0 if level is None else 1000 * max(0.0, now - tenant["at"])
        return Heard(name, tenant["counter"], level, age_ms, tuple(sorted(others)))


class Gateway:
    """One gateway's copy."""

    def __init__(self, name: str, settings: TenantSettings, *, part: float = 1.0) -> None:
        self.counters = VirtualTokenCounters(lambda tenant: 1.0)
        self.quotas = Quotas(lambda tenant: settings, part=part)
        self.sync = Sync(name, self.counters, self.quotas)

    def exchange(self, store: ModelStore, now: float, *, answer_is_lost: bool = False) -> None:
        pull = store.exchange(self.sync.push(now), self.sync.gateway, now)
        if not answer_is_lost:
            self.sync.took(pull, now)
