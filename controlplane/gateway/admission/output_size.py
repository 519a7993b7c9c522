"""How many tokens a request may write, how many it is likely to write, and what is to be reserved for it.

What the client set is a cap. What is reserved for one answer is

    min(cap, max(min_tokens, learned))     with a learned quantile (`output_quantile.py`)
    cap                                    before anything is learned
    `unlearned_tokens`                     before anything is learned, without a cap

and for the request, with S prompts of P tokens together, A answers each and a context of C tokens

    P + A * min(S * answer, S * C - P)

since a prompt is kept once for all its answers (`n`). It takes the prompts' mean length, which by Jensen's
inequality is never too little.

A limit is read as engines read it (pydantic: "200", 200.0 and true are numbers). One that cannot be read, or
is below 0, is the engine's to judge: it is taken as not set. 0 is a limit: a prompt is scored, and nothing is
written (`echo` with `logprobs`, as evaluations do). /v1/completions without a limit writes 16
tokens (OpenAI's API; vLLM, also for null).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from controlplane.gateway.admission.body_edit import JsonObject
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.prompt_size import PromptSize

COMPLETIONS_DEFAULT_TOKENS = 16
_LONGEST_NUMBER = 32
_UNBOUNDED = 1 << 53


class OutputSettings(BaseModel):
    """What is done where a client sets no limit on the output.

    `when_missing`: "reserve" reserves what is likely and sends the body as it is, "apply" writes
    `applied_tokens` into the body, "require" refuses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    when_missing: Literal["reserve", "apply", "require"] = "reserve"
    applied_tokens: int | None = Field(None, ge=1)
    unlearned_tokens: int = Field(512, ge=1, description="reserved before any output length is learned")

    @model_validator(mode="after")
    def _applied(self) -> Self:
        if self.when_missing == "apply" and self.applied_tokens is None:
            raise ValueError("when_missing: apply needs applied_tokens (how many are written into the body)")
        return self


class OutputCeiling(BaseModel):
    """What a tenant may ask for. A ceiling on tokens also binds requests that set no limit: it is written
    into their bodies. One that is over it is clamped or refused; one with too many answers is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int | None = Field(None, ge=1, description="most output tokens of one answer")
    over: Literal["clamp", "refuse"] = "clamp"
    answers: int = Field(128, ge=1, description="most answers to one prompt (n, best_of)")


class OutputRefusal(msgspec.Struct, frozen=True):
    """A 400: a stable reason code, the parameter at fault, and a sentence for the client."""

    reason: str
    param: str
    sentence: str


class OutputBasis(StrEnum):
    """Where the tokens reserved for one answer come from."""

    LEARNED = "learned"
    STATED = "stated"  # the limit of the client, or the one written into the body
    ENGINE_DEFAULT = "engine_default"
    UNLEARNED = "unlearned"
    NONE = "none"  # nothing is written (embeddings)


class Need(msgspec.Struct, frozen=True):
    """KV tokens and sequences that a request is to be let in with, and the most tokens it can come to."""

    tokens: int
    sequences: int
    most_tokens: int


class OutputSize(msgspec.Struct, frozen=True):
    """What is known of a request's output. Tokens are those of one answer; `answers` is per prompt.

    `cap_tokens` is the most that the engine will write, None where only its context ends it. `edits` are the
    limits to be written into the body (fields and tokens; empty: it stays as it is). With a `refusal` the
    other fields tell what would have been reserved.
    """

    tokens: int
    answers: int
    basis: OutputBasis
    cap_tokens: int | None = None
    edits: Mapping[str, int] = {}
    refusal: OutputRefusal | None = None


def output_size(
    endpoint: Endpoint,
    body: JsonObject,
    settings: OutputSettings,
    ceiling: OutputCeiling,
    learned_tokens: int | None,
) -> OutputSize:
    """The output of a request. `learned_tokens` is its learned quantile; None before there is one."""
    if not endpoint.limit_fields:
        return OutputSize(0, 0, OutputBasis.NONE)
    answers, refusal = _answers(endpoint, body, ceiling)
    stated = {
        field: tokens
        for field in endpoint.limit_fields
        if (tokens := _stated(body.get(field), least=0)) is not None
    }
    cap = next(iter(stated.values()), None)
    edits: dict[str, int] = {}
    basis = OutputBasis.STATED
    if cap is None and endpoint is Endpoint.COMPLETIONS and body.get("max_tokens") is None:
        cap, basis = COMPLETIONS_DEFAULT_TOKENS, OutputBasis.ENGINE_DEFAULT
    if cap is None:
        if settings.when_missing == "require":
            refusal = refusal or _missing(endpoint)
        elif settings.when_missing == "apply":
            cap = settings.applied_tokens
    if ceiling.tokens is not None:
        over = {field: tokens for field, tokens in stated.items() if tokens > ceiling.tokens}
        if over and ceiling.over == "refuse":
            refusal = refusal or _over(*next(iter(over.items())), ceiling.tokens)
        edits = dict.fromkeys(over, ceiling.tokens)
        cap = ceiling.tokens if cap is None else min(cap, ceiling.tokens)
    if not stated and cap is not None and (basis is OutputBasis.STATED or cap < COMPLETIONS_DEFAULT_TOKENS):
        edits = {_field_to_write(endpoint, body): cap}
        basis = OutputBasis.STATED
    tokens, basis = _likely(body, cap, basis, learned_tokens, settings.unlearned_tokens)
    return OutputSize(tokens, answers, basis, cap, edits, refusal)


def need(prompt: PromptSize, output: OutputSize, max_model_len: int | None) -> Need:
    """What a request needs of a replica whose context is `max_model_len` tokens (None: not known)."""
    prompt_tokens, room = prompt.tokens, _UNBOUNDED
    if max_model_len is not None:
        # An engine refuses a longer request by itself, and its own 400 is the better one.
        room = prompt.sequences * max_model_len
        prompt_tokens = min(prompt_tokens, room)
    free = room - prompt_tokens
    most = free if output.cap_tokens is None else min(prompt.sequences * output.cap_tokens, free)
    likely = min(prompt.sequences * output.tokens, free)
    return Need(
        tokens=prompt_tokens + output.answers * likely,
        sequences=prompt.sequences * max(1, output.answers),
        most_tokens=prompt_tokens + output.answers * max(most, likely),
    )


def _likely(
    body: JsonObject, cap: int | None, basis: OutputBasis, learned: int | None, unlearned: int
) -> tuple[int, OutputBasis]:
    """The tokens that one answer is taken to have, and where they come from."""
    runs_to_cap = body.get("ignore_eos") is True
    if cap is not None and (learned is None or runs_to_cap):
        return cap, basis
    likely, source = (unlearned, OutputBasis.UNLEARNED) if learned is None else (learned, OutputBasis.LEARNED)
    likely = max(likely, _stated(body.get("min_tokens")) or 0)
    return (likely, source) if cap is None or likely < cap else (cap, basis)


def _answers(
    endpoint: Endpoint, body: JsonObject, ceiling: OutputCeiling
) -> tuple[int, OutputRefusal | None]:
    """How many answers one prompt gets, within the ceiling."""
    fields = {Endpoint.CHAT: ("n",), Endpoint.COMPLETIONS: ("n", "best_of")}.get(endpoint, ())
    counts = {field: _stated(body.get(field)) or 1 for field in fields}
    field = max(counts, key=counts.__getitem__, default="n")
    asked = counts.get(field, 1)
    if asked <= ceiling.answers:
        return asked, None
    sentence = f"{field} {_short(asked)} is over the ceiling of {ceiling.answers} answers to one prompt"
    return ceiling.answers, OutputRefusal("too_many_answers", field, sentence)


def _missing(endpoint: Endpoint) -> OutputRefusal:
    field = endpoint.limit_fields[0]
    return OutputRefusal(
        "output_limit_missing", field, f"{field} is required: set how long the answer may be"
    )


def _over(field: str, tokens: int, ceiling: int) -> OutputRefusal:
    sentence = f"{field} {_short(tokens)} is over the ceiling of {ceiling} tokens"
    return OutputRefusal("output_over_ceiling", field, sentence)


def _field_to_write(endpoint: Endpoint, body: JsonObject) -> str:
    """The limit that every engine of the endpoint knows: the oldest, unless another stands in the body."""
    present = [field for field in endpoint.limit_fields if body.get(field) is not None]
    return present[0] if present else endpoint.limit_fields[-1]


def _stated(value: object, least: int = 1) -> int | None:
    """A count of at least `least` as engines read it; None where there is none to be read."""
    number: int | None = None
    try:
        if isinstance(value, int):
            number = int(value)
        elif isinstance(value, float):
            number = int(value) if value.is_integer() else None
        elif isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
            number = int(value.strip().removesuffix(".0"))
    except ValueError:
        return None
    return number if number is not None and number >= least else None


def _short(number: int) -> str:
    """A number of the client's, as long as a sentence bears."""
    return str(number) if number < 10**_LONGEST_NUMBER else f"10^{_LONGEST_NUMBER} or more"
