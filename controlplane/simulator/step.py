"""How long one engine step takes.

    t = h + hypot(a, b*T) + e*S + c*K + d*A

T tokens computed in the step (a prefill chunk, 1 a decoding sequence), S sequences that sample a token, K sum
of the contexts of the decoding sequences, A sum over the prefill chunks of chunk * (past + chunk / 2).

a reads the weights once (the floor of a memory-bound step), b computes one token, c reads the KV of one token
of context, d is the attention of one pair of tokens, e samples one sequence, h is the host. `hypot` joins the
memory-bound and the compute-bound regime smoothly; a plain sum is up to 37 % too slow between them and a
maximum 27 % too fast (measured operator times of A100 8B, 256 and 128 tokens).
"""

from math import hypot

import msgspec


class StepLaw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The constants of the law for one model on one set of GPUs, all in seconds."""

    host: float  # h
    weights: float  # a
    token: float  # b, per token computed
    kv_token: float  # c, per token of context of a decoding sequence
    pair: float  # d, per pair of tokens in prefill attention
    sequence: float  # e, per sequence sampled

    def seconds(self, tokens: int, context: int, pairs: float, sampled: int) -> float:
        """Seconds of a step with T = `tokens`, K = `context`, A = `pairs`, S = `sampled`."""
        return (
            self.host
            + hypot(self.weights, self.token * tokens)
            + self.sequence * sampled
            + self.kv_token * context
            + self.pair * pairs
        )

    def slowed(self, factor: float) -> "StepLaw":
        """The law of the same engine when everything takes `factor` times as long (thermal throttling)."""
        return StepLaw(
            self.host * factor,
            self.weights * factor,
            self.token * factor,
            self.kv_token * factor,
            self.pair * factor,
            self.sequence * factor,
        )
