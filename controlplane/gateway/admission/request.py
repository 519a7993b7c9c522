"""What admission is told of a request, and of its end. Never a word of the prompt."""

from enum import StrEnum

import msgspec


class ServiceClass(StrEnum):
    """What kind of client waits. The first goes first."""

    INTERACTIVE = "interactive"  # a person looks at the answer as it comes
    AGENT = "agent"  # a program waits, a person behind it
    BATCH = "batch"  # nobody waits


RANK = {service_class: rank for rank, service_class in enumerate(ServiceClass)}
"""The rank of each class: 0 goes first."""

RANKS = len(RANK)


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request as it arrives. Token counts are of all its sequences (prompts times answers) together.

    `sequence_tokens` is the longest single one of them, prompt and answer; where it is not given, all are
    taken to be answers to one prompt, of one length. `output_tokens` is what is to be reserved for the answer
    (a learned quantile, or the client's limit), `most_output_tokens` the client's limit itself, None where
    the client gave none. `prompt_exact` says that `prompt_tokens` was counted and not estimated: only then
    may it be held against the client. `prefix` is a hash of the leading messages, `deadline_at` the time by
    which the client wants an answer at all. `retry` marks a request that somebody before us has already sent
    once.
    """

    tenant: str
    prompt_tokens: int
    output_tokens: int
    most_output_tokens: int | None = None
    model: str = ""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    sequences: int = 1
    sequence_tokens: int | None = None
    prompt_exact: bool = False
    streams: bool = True
    prefix: int | None = None
    deadline_at: float | None = None
    retry: bool = False

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.prompt_tokens < 0 or self.output_tokens < 0:
            raise ValueError(
                f"a request has at least 1 sequence and no negative tokens (got {self.sequences} sequences, "
                f"{self.prompt_tokens} prompt and {self.output_tokens} output tokens)"
            )


class Fault(StrEnum):
    """Why a request did not end well."""

    UNREACHABLE = "unreachable"  # no connection, nothing was delivered
    BROKEN = "broken"  # a cut, a time-out, an error event, no proper answer: the replica's own failure
    ERROR = "error"  # an answer of 5xx: a failure of the replica, or of what it was asked
    OVERLOADED = "overloaded"  # the engine refused for load: 429, 503, or the same inside a stream
    CLIENT_ERROR = "client-error"  # the engine refused what the client asked for (4xx)
