"""Refusals: status, reason code, when to come back, and a body that every OpenAI client understands.

    cause                         status  Retry-After
    tenant_token_quota            429     when the tenant's own budget allows this request
    tenant_in_flight_limit        429     one second and some
    queue_full                    429     when as much is ahead of a newcomer as it may wait for
    kv_reservation_full           429     the same, where KV memory is what all wait for
    queue_wait_expired            503     the same
    breaker_open                  503     the next trial
    no_ready_replica              503     some seconds
    replica_starting_from_zero    503     when it is expected to be ready
    upstream_overloaded           as is   the engine's own word, else ours
    unknown_model                 404     absent
    everything else (bad request) 400     absent

Clients that are refused together must not come back together: each gets a whole number of seconds drawn from
what was computed up to half as much again. Where our own range ends first (60 s for what depends on load,
which nobody can foretell for longer), the draw is from the end of that range downwards.

`x-should-retry: false` says that the whole tier is full. The SDKs of OpenAI and Anthropic retry a 429 or 503
at once otherwise, twice by default, each try as heavy as the first.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import ceil

import msgspec


class RefusalReason(StrEnum):
    TENANT_TOKEN_QUOTA = "tenant_token_quota"  # noqa: S105  (no password)
    TENANT_IN_FLIGHT_LIMIT = "tenant_in_flight_limit"
    QUEUE_FULL = "queue_full"
    KV_RESERVATION_FULL = "kv_reservation_full"
    QUEUE_WAIT_EXPIRED = "queue_wait_expired"
    BREAKER_OPEN = "breaker_open"
    NO_READY_REPLICA = "no_ready_replica"
    REPLICA_STARTING_FROM_ZERO = "replica_starting_from_zero"
    UPSTREAM_OVERLOADED = "upstream_overloaded"
    UNKNOWN_MODEL = "unknown_model"
    BAD_JSON = "bad_json"
    REQUEST_TOO_LARGE = "request_too_large"
    DEADLINE_OVER = "deadline_over"

    @property
    def status(self) -> int:
        return _STATUS.get(self, 400)


_STATUS = {
    RefusalReason.TENANT_TOKEN_QUOTA: 429,
    RefusalReason.TENANT_IN_FLIGHT_LIMIT: 429,
    RefusalReason.QUEUE_FULL: 429,
    RefusalReason.KV_RESERVATION_FULL: 429,
    RefusalReason.QUEUE_WAIT_EXPIRED: 503,
    RefusalReason.BREAKER_OPEN: 503,
    RefusalReason.NO_READY_REPLICA: 503,
    RefusalReason.REPLICA_STARTING_FROM_ZERO: 503,
    RefusalReason.UPSTREAM_OVERLOADED: 503,
    RefusalReason.UNKNOWN_MODEL: 404,
}
_TIER_IS_FULL = frozenset(
    {RefusalReason.QUEUE_FULL, RefusalReason.KV_RESERVATION_FULL, RefusalReason.QUEUE_WAIT_EXPIRED}
)
_TYPES = {400: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_error"}
_LOAD_SECONDS_AT_MOST = 60
_SECONDS_AT_MOST = 86_400  # nothing that is known reaches further
_MOST = dict.fromkeys(_TIER_IS_FULL, _LOAD_SECONDS_AT_MOST)


class Refusal(msgspec.Struct, frozen=True):
    """An answer that we give ourselves. `retry_after` is the header's value, None where there is none."""

    status: int
    reason: str
    message: str
    param: str | None = None
    retry_after: str | None = None
    tier_is_full: bool = False

    @property
    def is_clients_error(self) -> bool:
        """Whether the request itself is wrong, so that it says nothing about the fleet."""
        return self.status < 429

    @property
    def headers(self) -> dict[str, str]:
        """All headers that the answer needs but its length."""
        headers = {"content-type": "application/json"}
        if self.retry_after is not None:
            headers["retry-after"] = self.retry_after
        if self.tier_is_full:
            headers["x-should-retry"] = "false"
        return headers

    @property
    def body(self) -> bytes:
        kind = _TYPES.get(self.status, "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": str(self.reason)}
        return msgspec.json.encode({"error": error})


def bad_request(reason: str, message: str, param: str | None = None) -> Refusal:
    """The request is wrong: trying it again would not help. `reason` may also be a code that is not ours."""
    status = reason.status if isinstance(reason, RefusalReason) else 400
    return Refusal(status, reason, message, param)


def come_back(reason: RefusalReason, message: str, seconds: float, draw: float) -> Refusal:
    """Not now, but in `seconds` or somewhat later; `draw` is uniform in [0, 1)."""
    retry_after = str(spread(seconds, draw, _MOST.get(reason)))
    return Refusal(reason.status, reason, message, None, retry_after, reason in _TIER_IS_FULL)


def upstream_overloaded(headers: Mapping[str, str], status: int, seconds: float, draw: float) -> Refusal:
    """An engine refused for load, and nothing else can take the request.

    `headers` are the engine's, with names in lower case: its own Retry-After, a number or a date, is
    passed on as it is. `seconds` is ours, for where it has none.
    """
    reason = RefusalReason.UPSTREAM_OVERLOADED
    own = headers.get("retry-after") or str(spread(seconds, draw, _LOAD_SECONDS_AT_MOST))
    return Refusal(status, reason, "the engine is at its limit", None, own)


def spread(seconds: float, draw: float, most: int | None = None) -> int:
    """Whole seconds from `seconds` up to half as much again, at least 1 and at most `most`."""
    low = max(1, ceil(min(seconds, _SECONDS_AT_MOST) - 1e-6))
    high = max(low + 1, ceil(1.5 * low))
    if most is not None and high > most:
        high = most
        low = min(low, int(most / 1.25))
    return low + int(draw * (high - low + 1))
