"""The simulator of arXiv 2604.09613, rebuilt: one line for a step, slots instead of memory.

    t = W + H n                               seconds of a step with n slots busy (A100: 8 ms, 0.65 ms)
    mu = n / (E[ceil(in / chunk) + out] t)    requests a second of a full instance
    instances = ceil(rate / (0.85 mu))

A pool for 64K tokens has 16 slots, one for B tokens min(128, 128 x 8,192 / B). Sizes are drawn from
distributions of total tokens, 80 % of them prompt. The Azure-like one goes through the shares that the text
gives (80 % up to 2K, 95 % up to 8K, the rest to 64K), the LMSYS-like one is the lognormal through the median
of 373 and the P99 of 5,624 tokens of the same group's tables.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.float64]

WEIGHTS_SECONDS, SLOT_SECONDS, CHUNK = 0.008, 0.00065, 512
SLOTS, SHORT_SLOTS, SHORT_CONTEXT, LONGEST = 16, 128, 8_192, 65_536
TARGET_LOAD, RATE = 0.85, 1000.0
_NORMAL_P99 = 2.3263


class Pool(NamedTuple):
    """Instances (whole, and before rounding), and the P99 prefill of its prompts when full."""

    instances: int
    exact: float
    p99_prefill_seconds: float


class Saving(NamedTuple):
    """Two pools parted at `boundary` against one."""

    boundary: int
    one: Pool
    short: Pool
    long: Pool

    @property
    def saved_ratio(self) -> float:
        return 1 - (self.short.instances + self.long.instances) / self.one.instances


def azure_like(count: int, seed: int) -> Tokens:
    shares, tokens = (0.0, 0.8, 0.95, 1.0), (64, 2048, 8192, LONGEST)
    return np.rint(np.exp(np.interp(np.random.default_rng(seed).random(count), shares, np.log(tokens))))


def lmsys_like(count: int, seed: int) -> Tokens:
    sigma = math.log(5624 / 373) / _NORMAL_P99
    drawn = 373 * np.exp(sigma * np.random.default_rng(seed).standard_normal(count))
    return np.clip(np.rint(drawn), 2, LONGEST)


def step_seconds(slots: float) -> float:
    return WEIGHTS_SECONDS + SLOT_SECONDS * slots


def rho() -> float:
    """How many times as fast a short instance is as a long one, request for request."""
    return SHORT_SLOTS / SLOTS * step_seconds(SLOTS) / step_seconds(SHORT_SLOTS)


def saving(total: Tokens, boundary: int, rate: float = RATE) -> Saving:
    short = total <= boundary
    slots = min(SHORT_SLOTS, SHORT_SLOTS * SHORT_CONTEXT // boundary)
    return Saving(
        boundary,
        _pool(total, SLOTS, rate),
        _pool(total[short], slots, rate * float(short.mean())),
        _pool(total[~short], SLOTS, rate * float((~short).mean())),
    )


def _pool(total: Tokens, slots: int, rate: float) -> Pool:
    if not len(total):
        return Pool(0, 0.0, 0.0)
    prompt = 0.8 * total
    steps = np.ceil(prompt / CHUNK) + np.ceil(total - prompt)
    step = step_seconds(slots)
    exact = rate / (TARGET_LOAD * slots / (float(steps.mean()) * step))
    prefill = math.ceil(float(np.percentile(prompt, 99)) / CHUNK) * step
    return Pool(math.ceil(exact), exact, prefill)
