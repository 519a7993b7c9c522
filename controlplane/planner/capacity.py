"""What one engine can finish of a mix of requests, on paper, by the step law of the simulator.

With n sequences in the engine, each for L steps (its prefill chunks, then one step a token), x = n / E[L]
requests come and go a step, and in the mean step

    D = x E[out - 1]                      sequences decode
    P = x E[in]                           prompt tokens are computed, in a share f of the steps
    f = 1 - exp(-x E[chunks])
    t = h + f hypot(a, b (D + P/f)) + (1 - f) hypot(a, b D) + e (D + x) + c K + d A
    K = x E[(out - 1) (in + out/2)],   A = x E[in^2 / 2]

so x / t requests a second are finished and t is the mean time between two tokens. It grows with n, which
ends where the slots, the KV cache, the step's token budget or the objective of TPOT do. A request holds what
was reserved for it, as the gateway's ledger counts.
"""

import math
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw

Tokens = NDArray[np.float64]

_TPOT_MARGIN = 0.9  # of the objective for the mean step: requests differ in the prompts that they sit through
_BISECTIONS = 60


class Mix(NamedTuple):
    """Requests: tokens of prompt, of output, and reserved (prompt and likely output)."""

    prompt: Tokens
    output: Tokens
    reserved: Tokens

    def only(self, which: NDArray[np.bool_]) -> "Mix":
        return Mix(self.prompt[which], self.output[which], self.reserved[which])

    def __len__(self) -> int:  # of requests, not of fields
        return len(self.prompt)


class Bound(StrEnum):
    """What keeps an engine from taking more."""

    SLOTS = "slots"
    KV = "KV cache"
    TPOT = "TPOT"
    BUDGET = "token budget"


class Capacity(msgspec.Struct, frozen=True):
    """Of one engine, full: requests finished a second, sequences in it, seconds a step, what bounds it, and
    seconds from the scheduler to the first token of the 99th of 100 prompts."""

    requests_per_second: float
    sequences: float
    step_seconds: float
    bound: Bound
    p99_prefill_seconds: float


class _Means(NamedTuple):
    """Of one request."""

    steps: float
    chunks: float
    decodes: float
    prompt: float
    context: float
    pairs: float
    held_tokens: float


def capacity(
    law: StepLaw, settings: EngineSettings, mix: Mix, *, slots: float, kv_tokens: float, tpot_seconds: float
) -> Capacity:
    """What an engine with so many `slots` and tokens of KV cache finishes of `mix`, which is not empty."""
    means = _means(mix, settings.max_num_batched_tokens)
    by_kv = kv_tokens / means.held_tokens
    most, bound = (slots, Bound.SLOTS) if slots <= by_kv else (by_kv, Bound.KV)
    most = max(1.0, most)
    budget = settings.max_num_batched_tokens * means.steps / (means.decodes + means.prompt)
    if budget < most:
        most, bound = max(1.0, budget), Bound.BUDGET
    pace = _TPOT_MARGIN * tpot_seconds
    if _step_seconds(law, means, most) > pace:
        most, bound = _largest(law, means, most, pace), Bound.TPOT
    step = _step_seconds(law, means, most)
    per_second = most / means.steps / step
    prompt = float(np.percentile(mix.prompt, 99))
    return Capacity(per_second, most, step, bound, _prefill_seconds(law, settings, means, most, prompt))


def engine_seconds(law: StepLaw, settings: EngineSettings, mix: Mix, full: Capacity) -> Tokens:
    """Of each request of `mix`: seconds of an engine that it takes, where one is full as `full` says."""
    steps = np.ceil(mix.prompt / settings.max_num_batched_tokens) + mix.output - 1
    tokens = mix.prompt + mix.output - 1
    own = (
        law.token * tokens
        + law.sequence * mix.output
        + law.kv_token * (mix.output - 1) * (mix.prompt + mix.output / 2)
        + law.pair * mix.prompt**2 / 2
    )
    # What is left of the mean is the part of the steps themselves: host, weights, and where hypot is less
    # than a sum.
    rest = 1 / full.requests_per_second - float(own.mean())
    seconds: Tokens = np.maximum(own + rest * steps / float(steps.mean()), 0.0)
    return seconds


def _means(mix: Mix, chunk: int) -> _Means:
    chunks = np.ceil(mix.prompt / chunk)
    decodes = mix.output - 1
    steps = chunks + decodes
    return _Means(
        float(steps.mean()),
        float(chunks.mean()),
        float(decodes.mean()),
        float(mix.prompt.mean()),
        float((decodes * (mix.prompt + mix.output / 2)).mean()),
        float((mix.prompt**2).mean() / 2),
        float((steps * mix.reserved).sum() / steps.sum()),
    )


def _step_seconds(law: StepLaw, means: _Means, sequences: float) -> float:
    """Of the mean step with so many sequences in the engine."""
    x = sequences / means.steps
    decoding = x * means.decodes
    share = -math.expm1(-x * means.chunks)
    with_prompt = math.hypot(law.weights, law.token * (decoding + x * means.prompt / share))
    without = math.hypot(law.weights, law.token * decoding)
    return (
        law.host
        + share * with_prompt
        + (1 - share) * without
        + law.sequence * (decoding + x)
        + law.kv_token * x * means.context
        + law.pair * x * means.pairs
    )


def _largest(law: StepLaw, means: _Means, most: float, pace: float) -> float:
    """The most sequences at which steps are no longer than `pace` seconds; 1 where none are."""
    low, high = 1.0, most
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _step_seconds(law, means, middle) <= pace:
            low = middle
        else:
            high = middle
    return low


def _prefill_seconds(
    law: StepLaw, settings: EngineSettings, means: _Means, sequences: float, prompt: float
) -> float:
    """Of a prompt of so many tokens among so many sequences that decode, half a step of waiting included."""
    decoding = sequences / means.steps * means.decodes
    context = sequences / means.steps * means.context
    chunk = settings.max_num_batched_tokens - decoding
    whole, rest = divmod(prompt, chunk)
    past, seconds = 0.0, _step_seconds(law, means, sequences) / 2
    for tokens in (*[chunk] * int(whole), rest):
        if tokens:
            seconds += law.seconds(
                round(tokens + decoding), round(context), tokens * (past + tokens / 2), round(decoding) + 1
            )
            past += tokens
    return seconds
