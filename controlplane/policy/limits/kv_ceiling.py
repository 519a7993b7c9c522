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

import msgspec
from msgspec.structs import replace

RESERVE = 0.9  # lengths are random and what is in flight varies with them; full means preemption


class Lengths(msgspec.Struct, frozen=True):
    """Sums over requests that ended: `output_tokens` of out, `token_steps` of out * (in + out/2).

    Each may be decayed by the same factor: only their ratio is used.
    """

    output_tokens: float = 0.0
    token_steps: float = 0.0

    def add(self, input_tokens: float, output_tokens: float) -> "Lengths":
        """With one request more; `input_tokens` are its whole prompt."""
        return Lengths(
            self.output_tokens + output_tokens,
            self.token_steps + output_tokens * (input_tokens + output_tokens / 2),
        )

    def decayed(self, factor: float) -> "Lengths":
        """With the weight of everything so far multiplied by `factor`, so that the mix may change."""
        return replace(self, output_tokens=self.output_tokens * factor, token_steps=self.token_steps * factor)


def kv_ceiling(capacity_tokens: float, lengths: Lengths, reserve: float = RESERVE) -> float | None:
    """Requests in flight (not rounded) that fit `reserve` of `capacity_tokens`; None without any length."""
    if lengths.output_tokens <= 0 or lengths.token_steps <= 0:
        return None
    return reserve * capacity_tokens * lengths.output_tokens / lengths.token_steps
