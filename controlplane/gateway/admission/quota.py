"""Quotas: tokens a minute and sequences in flight, by tenant.

A token bucket that holds one minute's worth and is refilled evenly:

    level  =  min(tokens_per_minute, level + tokens_per_minute / 60 * seconds)
    let in where level >= what the request is expected to use (or the bucket is full); level -= that
    at its end  level += what was expected - what was used

A request larger than the bucket is let in when the bucket is full and leaves it below zero. Sequences count
from the offer to the end, queued ones included: the limit protects the queue as well.

Buckets may be shared by several gateways (`sync.py`): each takes from its own copy at once, tells what it
took (`tell`) and takes over the common level (`adopt`). A gateway that hears of nobody (`leave`) goes by its
own part of each quota: all of it, or as one of several workers its part.
"""

from collections.abc import Callable, Iterator
from math import ceil

import msgspec

from controlplane.gateway.admission.refusal import RefusalReason
from controlplane.gateway.admission.settings import TenantSettings


class Level(msgspec.Struct, frozen=True):
    """A tenant's bucket, and its sequences in flight: here, and at other gateways."""

    tokens: float
    sequences: int
    elsewhere: int = 0


class Taking(msgspec.Struct, frozen=True):
    """What is told of a bucket: `taken` since it was last told, and its `level` now. None: no such quota.

    `rate` is in tokens a second. `sequences` are all that this gateway has in flight.
    """

    capacity: float | None = None
    rate: float = 0.0
    level: float = 0.0
    taken: float = 0.0
    sequences: int | None = None


class Denied(msgspec.Struct, frozen=True):
    """Over quota; `seconds` until this request would be let in, if nothing else comes."""

    reason: RefusalReason
    seconds: float


class _Bucket:
    __slots__ = (
        "at",
        "capacity",
        "elsewhere",
        "rate",
        "sequences",
        "sequences_limit",
        "taken",
        "tokens",
        "told_sequences",
    )

    def __init__(self, settings: TenantSettings, part: float, now: float) -> None:
        self.size(settings, part)
        self.tokens = self.capacity or 0.0
        self.taken = 0.0  # and not told yet
        self.at = now
        self.sequences = 0
        self.told_sequences = 0
        self.elsewhere = 0

    def size(self, settings: TenantSettings, part: float) -> None:
        per_minute = settings.tokens_per_minute
        self.capacity = None if per_minute is None else max(1.0, per_minute * part)
        self.rate = (self.capacity or 0.0) / 60.0
        limit = settings.sequences
        self.sequences_limit = None if limit is None else max(1, ceil(limit * part - 1e-9))

    def refill(self, now: float) -> None:
        if self.capacity is not None and now > self.at:
            self.tokens = min(self.capacity, self.tokens + (now - self.at) * self.rate)
            self.at = now


class Quotas:
    """The quotas of all tenants. `settings` gives a tenant's; None of its limits means none.

    `part` (0..1) of each is ours while we hear of no other gateway.
    """

    MOST_BUCKETS = 10_000

    def __init__(self, settings: Callable[[str], TenantSettings], *, part: float = 1.0) -> None:
        self._settings = settings
        self._own_part = part
        self._part = part  # 1 while all of them are shared
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
            bucket.taken += tokens
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
            bucket.taken += used_tokens - taken_tokens

    def levels(self, now: float) -> dict[str, Level]:
        """The state of all tenants that have a quota and have been here."""
        for bucket in self._buckets.values():
            bucket.refill(now)
        return {
            tenant: Level(bucket.tokens, bucket.sequences, bucket.elsewhere)
            for tenant, bucket in self._buckets.items()
        }

    # Shared with other gateways

    def forgive(self, now: float) -> None:
        """What was taken alone and has been refilled since is nobody's business any more."""
        for bucket in self._buckets.values():
            bucket.refill(now)
            if bucket.capacity is not None:
                bucket.taken = min(bucket.taken, bucket.capacity - bucket.tokens)

    def join(self, now: float) -> None:
        """Other gateways are heard of (again): the quotas are common."""
        self._part = 1.0
        for tenant, bucket in self._buckets.items():
            bucket.refill(now)
            owed = (bucket.capacity or 0.0) - bucket.tokens
            bucket.size(self._settings(tenant), 1.0)
            bucket.tokens = (bucket.capacity or 0.0) - owed

    def leave(self, now: float) -> None:
        """Nothing is heard of others: each quota is our own part of it, and nobody else runs anything."""
        self._part = self._own_part
        for tenant, bucket in self._buckets.items():
            bucket.refill(now)
            bucket.size(self._settings(tenant), self._own_part)
            bucket.tokens *= self._own_part
            bucket.elsewhere = 0

    def moved(self) -> Iterator[str]:
        """The tenants of whom there is something to tell."""
        for tenant, bucket in self._buckets.items():
            if bucket.taken or (bucket.sequences_limit and bucket.sequences != bucket.told_sequences):
                yield tenant

    def tell(self, tenant: str, now: float) -> Taking:
        """What happened to a tenant's bucket since this was last asked."""
        bucket = self._buckets.get(tenant)
        if bucket is None:
            return Taking()
        bucket.refill(now)
        taken, bucket.taken = bucket.taken, 0.0
        bucket.told_sequences = bucket.sequences
        sequences = None if bucket.sequences_limit is None else bucket.sequences
        return Taking(bucket.capacity, bucket.rate, bucket.tokens, taken, sequences)

    def retell(self) -> None:
        """What was told is lost: what is in flight is to be told again."""
        for bucket in self._buckets.values():
            bucket.told_sequences = 0

    def adopt(self, tenant: str, level: float, now: float) -> None:
        """The common level as of now, with everything that was told."""
        bucket = self._bucket(tenant, now)
        if bucket is not None and bucket.capacity is not None:
            bucket.tokens = min(bucket.capacity, level) - bucket.taken
            bucket.at = now

    def set_elsewhere(self, tenant: str, sequences: int, now: float) -> None:
        """So many sequences of a tenant are in flight at other gateways."""
        bucket = self._bucket(tenant, now)
        if bucket is not None:
            bucket.elsewhere = sequences

    def rate(self, tenant: str) -> float:
        """Tokens a second that a tenant's bucket gets."""
        return (self._settings(tenant).tokens_per_minute or 0) / 60.0

    def _bucket(self, tenant: str, now: float) -> _Bucket | None:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            settings = self._settings(tenant)
            if settings.tokens_per_minute is None and settings.sequences is None:
                return None
            if len(self._buckets) >= self.MOST_BUCKETS:
                self._forget(now)
            bucket = self._buckets[tenant] = _Bucket(settings, self._part, now)
        return bucket

    def _forget(self, now: float) -> None:
        """Buckets that are as good as new need not be kept."""
        for tenant, bucket in list(self._buckets.items()):
            bucket.refill(now)
            is_busy = bucket.sequences or bucket.elsewhere or bucket.told_sequences
            if not is_busy and bucket.tokens >= (bucket.capacity or 0.0):
                del self._buckets[tenant]
