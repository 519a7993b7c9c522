"""Who sends what: sources of requests, each with its own arrivals, lengths, patience and manner of retrying.

A source stands for one client population: a tenant's chat service, a batch job, a replayed trace. Several
together make a mix; sources whose rate curves cross make a mix shift. All randomness comes from generators
that are passed in.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from numpy.random import Generator

from controlplane.simulator.arrivals import GammaGaps, Gaps, arrivals
from controlplane.simulator.lengths import Lengths
from controlplane.simulator.rate import RateCurve
from controlplane.simulator.request import Request, Segment
from controlplane.simulator.trace import TraceRow

_CHUNK = 512

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class OpenLoop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="open"):
    """Requests come whether or not earlier ones were answered."""

    rate: RateCurve
    gaps: Gaps = GammaGaps()


class ClosedLoop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="closed"):
    """`users` of whom each sends, waits for the end, thinks (exponential, mean `think_seconds`) and sends
    again.

    They begin one by one within `start_seconds`.
    """

    users: Annotated[int, msgspec.Meta(ge=1)]
    think_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    start_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="replay"):
    """The requests of a trace, times and lengths as they are."""

    rows: tuple[TraceRow, ...]


Arrives: TypeAlias = OpenLoop | ClosedLoop | Replay


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a client hangs up: no first token, or no end, so long after it sent. None: never."""

    first_token_seconds: Seconds | None = None
    end_seconds: Seconds | None = None


class Backoff(StrEnum):
    """How long a client waits before try number n + 1."""

    FIXED = "fixed"  # first
    EXPONENTIAL = "exponential"  # min(longest, first * 2^(n-1))
    FULL_JITTER = "full-jitter"  # uniform between 0 and that


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients try again after a refusal, a failure or their own hang-up, `tries` times in all.

    With a `budget_ratio` the retries of a source are at most that share of its requests, beside a reserve of
    10; what exceeds it is given up at once. A Retry-After is kept if it is longer than the wait.
    """

    backoff: Backoff
    tries: Annotated[int, msgspec.Meta(ge=1)]
    first_seconds: Annotated[float, msgspec.Meta(ge=0)]
    longest_seconds: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    budget_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None

    def wait_seconds(self, tried: int, rng: Generator) -> float:
        """Seconds between the end of try number `tried` and the next."""
        if self.backoff is Backoff.FIXED:
            return self.first_seconds
        # Beyond 2^60 the factor only overflows; every sensible longest wait is under it.
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** min(tried - 1, 60))
        return longest * rng.random() if self.backoff is Backoff.FULL_JITTER else longest


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One client population. Raises ValueError if lengths are missing, or given beside a trace's own.

    An answer is cut at `max_tokens`, which the client asks for; None: it asks for exactly as many as will
    come. `shared_prefix_tokens` is a beginning that all its prompts have in common (a system prompt). Without
    `stream` answers come whole.
    """

    name: str
    arrives: Arrives
    prompt: Lengths | None = None
    output: Lengths | None = None
    tenant: str = "default"
    service_class: str = "standard"
    priority: int = 0
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    shared_prefix_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    patience: Patience = Patience()
    retry: Retry | None = None
    stream: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.arrives, Replay):
            if self.prompt is not None or self.output is not None:
                raise ValueError(f"source {self.name!r} replays a trace, which has its own lengths")
        elif self.prompt is None or self.output is None:
            raise ValueError(f"source {self.name!r} needs lengths of prompt and output")


class Offer(msgspec.Struct, frozen=True, gc=False):
    """One thing that a client wants at `at`; it may take several tries."""

    id: str
    at: float
    source: Source
    prompt_tokens: int
    output_tokens: int

    def request(self, tried: int) -> Request:
        """Try number `tried` of it."""
        source = self.source
        output, limit = self.output_tokens, source.max_tokens
        prefix: tuple[Segment, ...] = ()
        if source.shared_prefix_tokens:
            shared = min(source.shared_prefix_tokens, self.prompt_tokens)
            prefix = (Segment(source.name, shared),)
        return Request(
            self.id if tried == 1 else f"{self.id}.{tried}",
            self.prompt_tokens,
            output if limit is None else min(output, limit),
            limit,
            source.priority,
            prefix,
        )


def sizes(source: Source, rng: Generator) -> Iterator[tuple[int, int]]:
    """Endless pairs of prompt and output lengths of a source, in tokens."""
    prompt, output = source.prompt, source.output
    assert prompt is not None
    assert output is not None
    while True:
        yield from zip(prompt.draw(rng, _CHUNK).tolist(), output.draw(rng, _CHUNK).tolist(), strict=True)


class Arrival(NamedTuple):
    """A request of an open source."""

    at: float
    prompt_tokens: int
    output_tokens: int


def open_arrivals(source: Source, rng: Generator, until: float) -> Iterator[Arrival]:
    """The requests of an open or replayed source from second 0 to `until`."""
    if isinstance(source.arrives, Replay):
        for row in source.arrives.rows:
            if row.at >= until:
                return
            yield Arrival(*row)
    elif isinstance(source.arrives, OpenLoop):
        times, lengths = rng.spawn(2)
        pairs = sizes(source, lengths)
        for at in arrivals(source.arrives.rate, source.arrives.gaps, times, until):
            yield Arrival(at, *next(pairs))
