"""What a request is answered with: settled by its prompt and the seeds, before the engine computes anything.

An answer has a natural length, lognormal with the median and the 90th percentile of a public trace of
conversations (Azure LLM inference 2023: 129 and 424 tokens). It ends earlier at max_tokens or at a stop
string; with `ignore_eos` it has all of max_tokens.
"""

from collections.abc import Iterator
from zlib import crc32

import numpy as np

from controlplane.simulator.http.ask import Ask
from controlplane.simulator.http.errors import bad_request
from controlplane.simulator.http.tokens import WORDS, Tokens
from controlplane.simulator.lengths import Lognormal
from controlplane.simulator.request import Request, Segment
from controlplane.simulator.settings import EngineSettings

_MEDIAN_TOKENS = 129
_SIGMA = 0.93


class Answer:
    """One sequence: its request to the engine, and the text of each of its tokens.

    `stopped_by` is the stop string that ends it; the text ends before that.
    """

    __slots__ = ("_first", "_length", "_stride", "index", "request", "stopped_by")

    def __init__(self, ask: Ask, index: int, name: str, settings: EngineSettings, seed: int) -> None:
        prompt = ask.prompts[index // ask.n]
        limit = _limit_tokens(ask, len(prompt), settings.max_model_len)
        rng = np.random.default_rng((seed, ask.seed % 2**64, _digest(prompt), index % ask.n))
        natural = Lognormal(_MEDIAN_TOKENS, _SIGMA, limit).draw(rng, 1)
        first, stride = rng.integers((0, 1), len(WORDS)).tolist()
        output = limit if ask.ignore_eos else max(int(natural[0]), min(ask.min_tokens, limit))
        self.index = index
        self._first: int = first
        self._stride: int = stride
        self._length: int | None = None  # of the text in bytes, where a stop string cuts it
        self.stopped_by: str | None = None
        if ask.stop:
            output = self._stop(ask, output)
        prefix = tuple(self._segments(prompt, output, settings.block_size))
        self.request = Request(f"{name}-{index}", len(prompt), output, limit, ask.priority, prefix)

    def piece(self, token: int) -> bytes:
        """The text of token number `token`, counted from 0; ASCII without quotes or backslashes."""
        word = self._word(token)
        if self._length is None:
            return word
        begin = sum(len(self._word(i)) for i in range(token))
        return word[: max(self._length - begin, 0)]

    def text(self, tokens: int) -> str:
        """The text of the first `tokens` tokens."""
        said = b"".join(map(self._word, range(tokens)))
        return said[: self._length].decode()

    def _word(self, token: int) -> bytes:
        return WORDS[(self._first + token * (self._stride + token)) % len(WORDS)]

    def _stop(self, ask: Ask, output: int) -> int:
        """Find the stop string that comes first. Returns how many tokens there are up to its end."""
        words = [self._word(i) for i in range(output)]
        text = b"".join(words)
        earliest = sum(map(len, words[: ask.min_tokens]))
        end = len(text) + 1
        for stop in ask.stop:
            raw = stop.encode()
            at = text.find(raw, max(earliest - len(raw) + 1, 0))
            if at >= 0 and at + len(raw) < end:
                end = at + len(raw)
                self.stopped_by, self._length = stop, at
        said = 0
        for count, word in enumerate(words, 1):
            said += len(word)
            if said >= end:
                return count
        return output

    def _segments(self, prompt: Tokens, output: int, block_size: int) -> Iterator[Segment]:
        """A name for each full block of prompt and answer, the same wherever all tokens up to its end are.

        As in vLLM, where a block is known by the hash of its tokens and of the block before.
        """
        tokens = [*prompt, *map(self._word, range(output))]
        name = 0
        for end in range(block_size, len(tokens) + 1, block_size):
            name = hash((name, *tokens[end - block_size : end]))
            yield Segment(str(name), end)


def _limit_tokens(ask: Ask, prompt_tokens: int, max_model_len: int) -> int:
    """How long an answer may be. Raises ApiError where vLLM refuses."""
    asked = ask.max_tokens
    if asked is not None and asked > max_model_len:
        raise bad_request(
            f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            "max_tokens",
            asked,
        )
    if prompt_tokens > max_model_len:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    room = max_model_len - prompt_tokens
    limit = room if asked is None else min(asked, room)
    if limit < 1:
        raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    return limit


def _digest(prompt: Tokens) -> int:
    """A number that stands for a prompt, the same in every process."""
    digest = 0
    for token in prompt:
        digest = crc32(token if isinstance(token, bytes) else b"%d," % token, digest)
    return digest
