"""Quotas: tokens a minute and sequences in flight, by tenant.

A token bucket that holds one minute's worth and is refilled evenly:

    level  =  min(tokens_per_minute, level + tokens_per_minute / 60 * seconds)
    let in where level >= what the request is expected to use (or the bucket is full); level -= that
    at its end  level += what was expected - what was used

A request larger than the bucket is let in when the bucket is full and leaves it below zero. Sequences count
from the offer to the end, queued ones included: the limit protects the queue as well.

`levels` and `adopt` carry the state to and from a store that several gateways share.
"""

from collections.abc import Callable, Mapping

import msgspec

from controlplane.gateway.admission.refusal import RefusalReason
from controlplane.gateway.admission.settings import TenantSettings


class Level(msgspec.Struct, frozen=True):
    """A tenant's bucket at time `at`, and its sequences in flight: here, and at other gateways."""

    tokens: float
    at: float
    sequences: int
    elsewhere: int = 0


class Denied(msgspec.Struct, frozen=True):
    """Over quota; `seconds` until this request would be let in, if nothing else comes."""

    reason: RefusalReason
    seconds: float


class _Bucket:
    __slots__ = ("at", "capacity", "elsewhere", "rate", "sequences", "sequences_limit", "tokens")

    def __init__(self, settings: TenantSettings, now: float) -> None:
        per_minute = settings.tokens_per_minute
        self.capacity = None if per_minute is None else float(per_minute)
        self.rate = (per_minute or 0) / 60.0
        self.tokens = self.capacity or 0.0
        self.at = now
        self.sequences_limit = settings.sequences
        self.sequences = 0
        self.elsewhere = 0

    def refill(self, now: float) -> None:
        if self.capacity is not None and now > self.at:
            self.tokens = min(self.capacity, self.tokens + (now - self.at) * self.rate)
            self.at = now


class Quotas:
    """The quotas of all tenants. `settings` gives a tenant's; None of its limits means none."""

    MOST_BUCKETS = 10_000

    def __init__(self, settings: Callable[[str], TenantSettings]) -> None:
        self._settings = settings
        self._buckets: dict[str, _Bucket] = {}

    def take(self, tenant: str, tokens: int, sequences: int, now: float) -> Denied | None:
        """A request that is expected to use so much comes in, unless that is over the tenant's quota."""
        bucket = self._bucket(tenant, now)
        if bucket is None:
            return None
        limit = bucket.sequences_limit
        busy = bucket.sequences + bucket.elsewhere
        # A request of more sequences than the limit may run alone: else it could never.
        if limit is not None and busy + sequences > limit and busy:
            return Denied(RefusalReason.TENANT_IN_FLIGHT_LIMIT, 1.0)
        if bucket.capacity is not None:
            bucket.refill(now)
            missing = min(tokens, bucket.capacity) - bucket.tokens
            if missing > 0:
                return Denied(RefusalReason.TENANT_TOKEN_QUOTA, missing / bucket.rate)
            bucket.tokens -= tokens
        bucket.sequences += sequences
        return None

    def settle(self, tenant: str, taken_tokens: int, used_tokens: int, sequences: int, now: float) -> None:
        """A request that was let in has ended."""
        bucket = self._buckets.get(tenant)
        if bucket is None:
            return
        bucket.sequences = max(0, bucket.sequences - sequences)
        if bucket.capacity is not None:
            bucket.refill(now)
            bucket.tokens = min(bucket.capacity, bucket.tokens + taken_tokens - used_tokens)

    def levels(self, now: float) -> dict[str, Level]:
        """The state of all tenants that have a quota and have been here."""
        levels = {}
        for tenant, bucket in self._buckets.items():
            bucket.refill(now)
            levels[tenant] = Level(bucket.tokens, bucket.at, bucket.sequences, bucket.elsewhere)
        return levels

    def adopt(self, levels: Mapping[str, Level], now: float) -> None:
        """Take over the buckets of a shared store; sequences in flight here stay what they are."""
        for tenant, level in levels.items():
            bucket = self._bucket(tenant, level.at)
            if bucket is not None:
                bucket.tokens, bucket.at = level.tokens, level.at
                bucket.elsewhere = level.elsewhere
                bucket.refill(now)

    def _bucket(self, tenant: str, now: float) -> _Bucket | None:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            settings = self._settings(tenant)
            if settings.tokens_per_minute is None and settings.sequences is None:
                return None
            if len(self._buckets) >= self.MOST_BUCKETS:
                self._forget(now)
            bucket = self._buckets[tenant] = _Bucket(settings, now)
        return bucket

    def _forget(self, now: float) -> None:
        """Buckets that are as good as new need not be kept."""
        for tenant, bucket in list(self._buckets.items()):
            bucket.refill(now)
            if not bucket.sequences and bucket.tokens >= (bucket.capacity or 0.0):
                del self._buckets[tenant]
