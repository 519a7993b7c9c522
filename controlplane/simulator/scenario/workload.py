"""The `workload` of a scenario: who sends what, when, and how patiently."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, PlainSerializer, Tag, model_validator

from controlplane.signals.units import Share
from controlplane.simulator.arrivals import Gaps
from controlplane.simulator.lengths import MOST_TOKENS, Lengths
from controlplane.simulator.mixes import mix
from controlplane.simulator.rate import RateCurve
from controlplane.simulator.scenario.strict import AtLeastOne, LongerThanNothing, Name, Seconds, Strict
from controlplane.simulator.workload import Backoff, Patience, Retry

MOST_USERS = 100_000

PositiveRate: TypeAlias = Annotated[float, Field(ge=0)]
Point: TypeAlias = Annotated[tuple[Seconds, PositiveRate], Field(strict=False)]


class _Curve(Strict):
    """A rate that changes; what can be no curve is refused."""

    def curve(self) -> RateCurve:
        raise NotImplementedError

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.curve()
        return self


class Steps(_Curve):
    """Constant from each [time, rate] to the next."""

    kind: Literal["steps"]
    points: AtLeastOne[Point]

    def curve(self) -> RateCurve:
        return RateCurve.steps(self.points)


class Lines(_Curve):
    """Straight lines between [time, rate] points: ramps, or any curve."""

    kind: Literal["lines"]
    points: AtLeastOne[Point]

    def curve(self) -> RateCurve:
        return RateCurve(self.points)


class Burst(_Curve):
    """`base`, but `factor` times as much for `lasts` from `at` on."""

    kind: Literal["burst"]
    base: PositiveRate
    at: Seconds
    lasts: LongerThanNothing = Field(alias="for")
    factor: float = Field(gt=0)

    def curve(self) -> RateCurve:
        return RateCurve.burst(self.base, self.at, self.lasts, self.factor)


class Day(_Curve):
    """A sine between `low` and `high` with its first peak at `peak`."""

    kind: Literal["day"]
    low: PositiveRate
    high: PositiveRate
    period: LongerThanNothing = 86400.0
    peak: Seconds = 0.0
    days: int = Field(1, ge=1, le=366)

    def curve(self) -> RateCurve:
        return RateCurve.day(self.low, self.high, period=self.period, peak=self.peak, days=self.days)


def _rate_kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return str(value.get("kind", "curve without a kind"))
    return getattr(value, "kind", "a number")


Rate: TypeAlias = Annotated[
    Annotated[PositiveRate, Tag("a number")]
    | Annotated[Steps, Tag("steps")]
    | Annotated[Lines, Tag("lines")]
    | Annotated[Burst, Tag("burst")]
    | Annotated[Day, Tag("day")],
    Discriminator(_rate_kind),
]


def _struct_of(kind: Any) -> BeforeValidator:
    """Reads a value that the simulator has a struct for, with the struct's own strict rules."""

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ValueError(str(error).replace("`", "")) from None

    return BeforeValidator(read)


_AS_READ = PlainSerializer(msgspec.to_builtins)
_LengthsField = Annotated[Lengths, _struct_of(Lengths), _AS_READ]
_GapsField = Annotated[Gaps, _struct_of(Gaps), _AS_READ]


class PatienceModel(Strict):
    """When clients hang up: no first token, or no end, so long after they sent."""

    first_token: LongerThanNothing | None = None
    end: LongerThanNothing | None = None

    def build(self) -> Patience:
        return Patience(self.first_token, self.end)


class RetryModel(Strict):
    """Clients try again, `tries` times in all; `budget` bounds retries to that share of requests."""

    backoff: Literal["fixed", "exponential", "full-jitter"]
    tries: int = Field(ge=1, le=1000)
    first: Seconds
    longest: Seconds = 60.0
    budget: Share | None = None

    def build(self) -> Retry:
        return Retry(Backoff(self.backoff), self.tries, self.first, self.longest, self.budget)


class Trace(Strict):
    """A CSV file `t_s,input_tokens,output_tokens`, as fast or slow as the source's rate asks for.

    `window` is the part of it that is used, in its own seconds. With `resample` the run does not follow the
    trace from end to end, but draws blocks of that length from it (trace time) by seed until the run is
    full. `spread` moves each request back by a random part of so long, for traces whose times are batched.
    """

    file: Annotated[Path, Field(strict=False)]
    window: Annotated[tuple[Seconds, Seconds], Field(strict=False)] | None = None
    resample: LongerThanNothing | None = None
    spread: Seconds = 0.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.window is not None and not self.window[0] < self.window[1]:
            raise ValueError(
                f"window must end after it starts (got {self.window[0]:g} to {self.window[1]:g} s)"
            )
        return self


class SourceModel(Strict):
    """One client population; requests come from a `mix`, a `trace`, or lengths of `prompt` and `output`.

    Open: `rate` requests a second. Closed: `users` who send, wait, `think` and send again. `uneven`: a mix's
    requests come as unevenly as in the trace that it is like, not as Poisson streams. Without `stream`
    answers come whole.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: Name
    mix: str | None = None
    trace: Trace | None = None
    prompt: _LengthsField | None = None
    output: _LengthsField | None = None
    rate: Rate | None = None
    users: int | None = Field(None, ge=1, le=MOST_USERS)
    think: Seconds = 0.0
    gaps: _GapsField | None = None
    uneven: bool = False
    tenant: Name = "default"
    service_class: Literal["interactive", "agent", "batch"] = Field("interactive", alias="class")
    priority: int = 0
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    shared_prefix_tokens: int = Field(0, ge=0, le=MOST_TOKENS)
    patience: PatienceModel = PatienceModel()
    retry: RetryModel | None = None
    stream: bool = True

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        lengths = self.prompt is not None or self.output is not None
        ways = [self.mix is not None, self.trace is not None, lengths]
        if sum(ways) != 1:
            raise ValueError("a source has a mix, or a trace, or lengths of prompt and output")
        if lengths and (self.prompt is None or self.output is None):
            raise ValueError("lengths are needed of both, prompt and output")
        if (self.rate is None) == (self.users is None):
            raise ValueError("a source has either a rate (requests come by themselves) or users (who wait)")
        self._only("gaps", self.gaps is not None, lengths and self.rate is not None, "lengths and a rate")
        self._only("users", self.users is not None, self.trace is None, "sources without a trace")
        self._only("think", self.think > 0, self.users is not None, "users")
        self._only(
            "uneven", self.uneven, self.mix is not None and isinstance(self.rate, float), "a mix at a rate"
        )
        if self.mix is not None:
            mix(self.mix)
        return self

    def _only(self, key: str, given: bool, allowed: bool, what: str) -> None:
        if given and not allowed:
            raise ValueError(f"{key} is for {what} only")

    @property
    def curve(self) -> RateCurve | None:
        """The rate over time; None of users."""
        if self.rate is None:
            return None
        return RateCurve.constant(self.rate) if isinstance(self.rate, float) else self.rate.curve()


class Workload(Strict):
    """All sources; every rate is multiplied by `times`, so that one file can be run at several loads."""

    times: float = Field(1.0, gt=0)
    sources: AtLeastOne[SourceModel]
