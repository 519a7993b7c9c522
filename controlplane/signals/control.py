"""Control messages: what the daemon tells a gateway, whole each time, and how long it holds.

    PUT {control}/control/v1/state      Authorization: Bearer <token>      body: a ControlMessage as JSON
    200 {"judgement": .., ..}           a `Judged`: taken, or known already
    409 {"judgement": .., ..}           older than what is known (a lower term, or an older version of it)
    GET {control}/control/v1/state      200, a `GatewayState` and more

Times are Unix seconds. Fields that a reader does not know are passed over, and those that a writer leaves out
have defaults, so neighbouring versions of daemon and gateway understand each other; a reader also takes the
format before its own. A message of a later format is refused.
"""

import math
from collections import Counter
from typing import Annotated

import msgspec

from controlplane.signals.decision import Mode

FORMAT = 1
LONGEST_TERM_SECONDS = 3600.0
"""A message may not claim to hold for longer: who steers must be heard from."""


class ReplicaOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One replica: where it is, whether it gets anything new, what it may take, how it looked.

    `rotation` is "in", "starting", "unready", "draining" or "quarantined". `limit` is in sequences and
    `overcommit` a factor on `kv_tokens`, both for the whole replica and None where nothing is said. The
    reading (`running`, `waiting`, `kv_usage`) was taken at `read_at`, None where there is none.
    """

    name: str
    pool: str
    url: str
    rotation: str = "in"
    limit: float | None = None
    overcommit: float | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None
    ready_since: float | None = None
    ready_expected_at: float | None = None
    read_at: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gateway is told. `mode` None leaves the mode to its configuration; `share` (0..1) of every
    replica is granted until `expires_at`, None where nothing is granted; `boundary_tokens` parts two pools,
    None leaves the boundary where it is.
    """

    term: int
    version: int
    sent_at: float
    expires_at: float
    replicas: tuple[ReplicaOrder, ...]
    format: int = FORMAT
    mode: Mode | None = None
    share: float | None = None
    boundary_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Grant(msgspec.Struct, frozen=True):
    """A gateway's `share` (0..1) of every replica until `expires_at` (Unix seconds).

    `term` counts leaders and `version` the grants of one leader.
    """

    gateway: str
    share: float
    expires_at: float
    term: int
    version: int

    @property
    def order(self) -> tuple[int, int]:
        return self.term, self.version


class Judged(msgspec.Struct, frozen=True):
    """What a gateway makes of a message ("taken", "known", "outdated" or "expired"), and whom it follows."""

    judgement: str
    term: int
    version: int


class GatewayState(msgspec.Struct, frozen=True):
    """How a gateway stands: what it was told last, and what it goes by.

    `standing_share` is what it takes of every replica where nobody grants it a share. `limits` are those in
    force, of whole replicas, by name.
    """

    gateway: str
    alone: bool = True
    standing_share: float = 1.0
    term: int | None = None
    version: int | None = None
    expires_at: float | None = None
    share: float | None = None
    mode: Mode | None = None
    limits: dict[str, float] = {}

    @property
    def granted(self) -> Grant | None:
        """The newest grant that it has, lapsed or not."""
        term, version, expires_at, share = self.term, self.version, self.expires_at, self.share
        if term is None or version is None or expires_at is None or share is None:
            return None
        return Grant(self.gateway, share, expires_at, term, version)


class UnreadableError(ValueError):
    """Not a control message; the text is a sentence that says why."""


ROTATIONS = frozenset({"in", "starting", "unready", "draining", "quarantined"})
_decoder = msgspec.json.Decoder(ControlMessage)


def read_message(body: bytes) -> ControlMessage:
    """The message in `body`. Raises UnreadableError where it is none, or says what cannot be."""
    try:
        message = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"not a control message ({error})") from None
    flaw = _flaw(message)
    if flaw:
        raise UnreadableError(flaw)
    return message


def _flaw(message: ControlMessage) -> str:
    if not FORMAT - 1 <= message.format <= FORMAT:
        return f"format {message.format} is not one that this version reads ({FORMAT - 1} or {FORMAT})"
    if message.term < 0 or message.version < 0:
        return f"term {message.term} and version {message.version} must not be negative"
    lasts = message.expires_at - message.sent_at
    if not (math.isfinite(lasts) and 0 < lasts <= LONGEST_TERM_SECONDS):
        return f"expires {lasts:g} s after it was sent (0 to {LONGEST_TERM_SECONDS:g} s are possible)"
    if message.share is not None and not 0.0 <= message.share <= 1.0:
        return f"share {message.share:g} is not between 0 and 1"
    counts = Counter(replica.name for replica in message.replicas)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        return f"replica {twice!r} stands in it twice"
    flaws = (
        f"replica {replica.name!r}: {flaw}"
        for replica in message.replicas
        if (flaw := _replica_flaw(replica))
    )
    return next(flaws, "")


def _replica_flaw(replica: ReplicaOrder) -> str:
    if replica.rotation not in ROTATIONS:
        return f"rotation {replica.rotation!r} is none of {', '.join(sorted(ROTATIONS))}"
    for name in ("limit", "overcommit", "kv_tokens", "max_model_len"):
        value = getattr(replica, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            return f"{name} {value:g} is not over 0"
    return ""
