"""What a request really used, as the engine reports it at the end."""

from __future__ import annotations

import msgspec

_LARGEST = 2**26
"""A larger count is nonsense: 8,192 embeddings of 8,192 tokens in one request."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the prompt and of all answers together."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def at_most(self, tokens: float) -> Usage:
        """The same, but no more than so many of either."""
        if self.prompt_tokens <= tokens and self.completion_tokens <= tokens:
            return self
        return Usage(int(min(self.prompt_tokens, tokens)), int(min(self.completion_tokens, tokens)))


def read_usage(value: object) -> Usage | None:
    """The usage in a `usage` object of any of the endpoints; None where it has no prompt tokens.

    /v1/messages tells cached prompt tokens apart from `input_tokens`; they fill the KV cache all the same.
    """
    if not isinstance(value, dict):
        return None
    prompt = _count(value, "prompt_tokens")
    if prompt is not None:
        return Usage(prompt, _count(value, "completion_tokens") or 0)
    prompt = _count(value, "input_tokens")
    if prompt is None:
        return None
    cached = sum(_count(value, f"cache_{what}_input_tokens") or 0 for what in ("read", "creation"))
    return Usage(prompt + cached, _count(value, "output_tokens") or 0)


def _count(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        return None
    return value
