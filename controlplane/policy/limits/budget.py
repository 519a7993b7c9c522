"""A limit in tokens: one prompt of 100,000 tokens is not one request like any other.

    budget = 0.9 * limit * (what a request needs on average + 1,000)

What it needs is its reservation: its prompt, and the answer that is likely. With the budget beside the limit
a request takes as much of it as it is larger than the mean, so fewer are in flight while a large one's prompt
holds them all up, and more while all are small. Where prompts are long (Mooncake, 12,000 tokens on average)
no number of slots alone does as well, for any class of lengths.

A sequence costs more than the cache that it fills: computing its token costs as much time as reading 500 to
2,400 tokens of cache (`simulator/constants.toml`: token over kv_token), which is why small requests (150
tokens and an answer of 50) fill slots before they fill any budget. The average is of all requests that come,
let in or not: of those let in, a budget that is a little small would make the next one smaller.
"""

_SHARE = 0.9  # under 1 tokens bind before slots do where requests are like the mean
_TOKENS_OF_A_SEQUENCE = 1000.0


def budget_tokens(limit: float, request_tokens: float) -> float:
    """Tokens of KV cache that may be reserved under `limit`, where a request needs `request_tokens`."""
    return _SHARE * limit * (request_tokens + _TOKENS_OF_A_SEQUENCE)
