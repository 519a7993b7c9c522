"""Control messages: what the daemon tells a gateway, whole each time, and how long it holds.

    PUT {control}/control/v1/state      Authorization: Bearer <token>      body: a ControlMessage as JSON
    200 {"term": .., "version": ..}     taken, or known already
    409 {"term": .., "version": ..}     older than what is known (a lower term, or an older version of it)

Times are Unix seconds. Fields that a reader does not know are passed over, and those that a writer leaves out
have defaults, so neighbouring versions of daemon and gateway understand each other; a reader also takes the
format before its own. A message of a later format is refused.
"""

import math
from collections import Counter

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
    replica is granted until `expires_at`, None where nothing is granted; `boundary_tokens` parts two pools.
    """

    term: int
    version: int
    sent_at: float
    expires_at: float
    replicas: tuple[ReplicaOrder, ...]
    format: int = FORMAT
    mode: Mode | None = None
    share: float | None = None
    boundary_tokens: int | None = None


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
