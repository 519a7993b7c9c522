"""Reservation ledger: what one replica has been promised, in tokens of KV cache and in sequences.

Theory of operation. A request holds KV memory for its prompt and for each token it writes, until it ends.
Engines admit by what is free *now* and preempt when the running ones grow; this ledger admits by what the
running ones are expected to need in the end:

    reserved tokens of ours + tokens of others  <=  budget * over-commit * share * hold-back
    sequences of ours + sequences of others     <=  limit * share * hold-back

Laws that hold here:
* **Nothing under zero.** What was reserved is given back exactly once, however often its end is told.
* **No admission goes over the budget.** `fits` is asked before each `reserve`.
* **Growth is not refused.** A stream that writes more than was reserved extends its reservation; it runs
  already and its memory is taken. Growth is counted apart (`grown_tokens`), and while the sum is over the
  budget nothing fits, so admission is closed until enough has ended.
* **Larger than the share, not larger than the replica.** Where this gateway's share is less than one
  request needs, that request is let in alone: it takes the whole share, and what it uses beyond it is growth.
* **No budget known** means that only sequences are counted.
* **Where nothing of ours runs, one is let in**, whatever others have.

Use of others (other gateways, or clients that go round us) is what the engine reports beyond what we had
reserved at the time of the report. That may be long over: an idle engine says for ever what it said last, as
vLLM does when all its clients have hung up at once (vllm#29928). Only a request makes it say something new.
"""

from math import inf

import msgspec

from controlplane.policy.limits.law import UNLIMITED


class Reservation:
    """What one request holds of one replica. `tokens` covers its prompt and all its sequences' output."""

    __slots__ = ("grown_tokens", "is_open", "most_tokens", "sequences", "tokens")

    def __init__(self, tokens: int, sequences: int, most_tokens: int) -> None:
        self.tokens = tokens
        self.sequences = sequences
        self.most_tokens = most_tokens
        self.grown_tokens = 0
        self.is_open = True


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """A reservation's end: what the request really used, and what of its reservation it did not."""

    charged_tokens: int
    returned_tokens: int


class Ledger:
    """The ledger of one replica. `budget_tokens` is infinite where it is not known."""

    __slots__ = (
        "budget_tokens",
        "extension_tokens",
        "extensions",
        "foreign_sequences",
        "foreign_tokens",
        "grown_tokens",
        "limit",
        "reserved_tokens",
        "sequences",
    )

    def __init__(self, extension_tokens: int) -> None:
        self.budget_tokens = inf
        self.limit = UNLIMITED  # sequences; under 1 nothing fits
        self.reserved_tokens = 0
        self.sequences = 0
        self.foreign_tokens = 0.0
        self.foreign_sequences = 0.0
        self.extension_tokens = extension_tokens
        self.extensions = 0
        self.grown_tokens = 0  # of the reserved ones, those that no admission asked for

    @property
    def has_place(self) -> bool:
        """Whether one sequence more is within the limit."""
        return self.sequences + self.foreign_sequences + 1 <= self.limit

    def fits(self, tokens: int, sequences: int, ceiling: float = 1.0) -> bool:
        """Whether a request may be let in that fills budget and limit up to `ceiling` (0..1) at most."""
        if self.limit < 1.0:
            return False
        if not self.sequences:
            return True
        taken = self.sequences + self.foreign_sequences
        if taken + sequences > max(1.0, self.limit * ceiling):
            return False
        return tokens <= self.budget_tokens * ceiling - self.reserved_tokens - self.foreign_tokens

    def is_short_of_tokens(self, tokens: int) -> bool:
        """Whether a request that does not fit would not fit for its tokens either."""
        return tokens > self.budget_tokens - self.reserved_tokens - self.foreign_tokens

    def reserve(self, tokens: int, sequences: int, most_tokens: int) -> Reservation:
        """Reserve for a request that fits; `most_tokens` is what it can use at the very most."""
        free = self.budget_tokens - self.reserved_tokens - self.foreign_tokens
        if tokens > self.budget_tokens:
            tokens = max(0, int(free))
        reservation = Reservation(tokens, sequences, max(most_tokens, tokens))
        self.reserved_tokens += tokens
        self.sequences += sequences
        return reservation

    def extend(self, reservation: Reservation, used_tokens: int) -> None:
        """A running request uses `used_tokens` now: its reservation covers them, and some to come."""
        if used_tokens <= reservation.tokens or not reservation.is_open:
            return
        covered = max(used_tokens, min(used_tokens + self.extension_tokens, reservation.most_tokens))
        growth = covered - reservation.tokens
        reservation.tokens = covered
        reservation.grown_tokens += growth
        self.reserved_tokens += growth
        self.grown_tokens += growth
        self.extensions += 1

    def settle(self, reservation: Reservation, used_tokens: int) -> Settlement | None:
        """The request has ended after it used `used_tokens`. None if that was told before."""
        if not reservation.is_open:
            return None
        reservation.is_open = False
        self.reserved_tokens -= reservation.tokens
        self.sequences -= reservation.sequences
        self.grown_tokens -= reservation.grown_tokens
        return Settlement(used_tokens, max(0, reservation.tokens - used_tokens))
