"""How many requests an engine's KV cache can hold, from the lengths of those that ended.

    ceiling = reserve * M * E[out] / E[out * (in + out/2)]

M is the cache in tokens. A request holds `in` tokens when it starts to decode and `in + out` when it ends, so
`in + out/2` on the way, and it is there for about `out` steps: at a random moment the requests found in the
engine are weighted by `out`, and E[out (in + out/2)] / E[out] is what one of them holds. The plain mean
E[in] + E[out]/2 forgets that the long ones stay: where lengths are heavy-tailed it admits too many. (The
stability bound of arXiv 2605.04595, per slot instead of per second.)

Prefixes that requests share are counted for each of them, so with prefix caching the ceiling is on the safe
side; prefill, a short part of a life unless answers are very short, is left out.
"""

import math

import msgspec
from msgspec.structs import replace

from controlplane.signals.histogram import Histogram

ENOUGH = 20.0
"""Of fewer requests a ceiling is not to be trusted: one long prompt would be the mix."""

_MOST_ASKED = 250.0
"""So many of those that were asked for make the mean, the latest: a minute of 75 small requests a second
would hide for minutes that four large ones come now."""

RESERVE = 0.9  # lengths are random and what is in flight varies with them; full means preemption


class Lengths(msgspec.Struct, frozen=True):
    """Sums over requests that ended: `requests` of 1, `output_tokens` of out, `token_steps` of
    out * (in + out/2); and over those that were `asked` for, ended or not: `asked_tokens` that they are
    likely to need.

    Each may be decayed by the same factor.
    """

    requests: float = 0.0
    output_tokens: float = 0.0
    token_steps: float = 0.0
    asked: float = 0.0
    asked_tokens: float = 0.0

    def add(self, input_tokens: float, output_tokens: float) -> "Lengths":
        """With one request more; `input_tokens` are its whole prompt."""
        return self.plus(1, output_tokens, output_tokens * (input_tokens + output_tokens / 2))

    def plus(self, requests: float, output_tokens: float, token_steps: float) -> "Lengths":
        """With many requests more, of which these are the sums."""
        return replace(
            self,
            requests=self.requests + requests,
            output_tokens=self.output_tokens + output_tokens,
            token_steps=self.token_steps + token_steps,
        )

    def with_asked(self, requests: float, tokens: float) -> "Lengths":
        """With so many more that were asked for."""
        keep = min(1.0, max(0.0, _MOST_ASKED - requests) / self.asked) if self.asked else 1.0
        return replace(
            self, asked=keep * self.asked + requests, asked_tokens=keep * self.asked_tokens + tokens
        )

    @property
    def request_tokens(self) -> float | None:
        """What a request needs on average; None of too few."""
        return self.asked_tokens / self.asked if self.asked >= ENOUGH else None

    def decayed(self, factor: float) -> "Lengths":
        """With the weight of everything so far multiplied by `factor`, so that the mix may change."""
        return replace(
            self,
            requests=self.requests * factor,
            output_tokens=self.output_tokens * factor,
            token_steps=self.token_steps * factor,
            asked=self.asked * factor,
            asked_tokens=self.asked_tokens * factor,
        )


def kv_ceiling(capacity_tokens: float, lengths: Lengths, reserve: float = RESERVE) -> float | None:
    """Requests in flight (not rounded) that fit `reserve` of `capacity_tokens`; None without any length."""
    if lengths.output_tokens <= 0 or lengths.token_steps <= 0:
        return None
    return reserve * capacity_tokens * lengths.output_tokens / lengths.token_steps


def sums(prompts: Histogram, outputs: Histogram) -> tuple[float, float, float] | None:
    """`requests`, `output_tokens` and `token_steps` where lengths are only known as two histograms.

    Prompts and answers are taken to be independent, and lengths to be spread evenly inside a bucket,
    stretched so that the histogram's own sum comes out. None where there is no request, or no sum.
    """
    if prompts.mean is None or outputs.mean is None or outputs.total is None:
        return None
    first = second = below = low = 0.0
    for bound, cumulative in zip(outputs.bounds, outputs.counts, strict=True):
        high = low if math.isinf(bound) else bound
        inside = cumulative - below
        first += inside * (low + high) / 2
        second += inside * (low * low + low * high + high * high) / 3
        below, low = cumulative, high
    if first <= 0:
        return None
    squares = second * (outputs.total / first) ** 2
    return outputs.count, outputs.total, outputs.total * prompts.mean + squares / 2
