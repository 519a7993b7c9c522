"""What a request is answered with: settled by its prompt and the seeds, before the engine computes anything.

An answer has a natural length, lognormal with the median and the 90th percentile of a public trace of
conversations (Azure LLM inference 2023: 129 and 424 tokens). It ends earlier at max_tokens or at a stop
string; with `ignore_eos` it has all of max_tokens.

A next turn finds an answer in the prefix cache as far as its first `_MOST_NAMED_TOKENS` reach; what is longer
is cached, but under no name.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
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
_MOST_NAMED_TOKENS = 8192


class Prompt:
    """What all answers to one prompt have in common, worked out once however many there are."""

    __slots__ = ("digest", "rest", "segments", "tokens")

    def __init__(self, tokens: Tokens, block_size: int) -> None:
        self.tokens = len(tokens)
        self.digest = _digest(tokens)
        self.segments = tuple(_segments(tokens, (), block_size))
        self.rest = tokens[len(self.segments) * block_size :]  # that fill no block


class Answer:
    """One sequence: its request to the engine, and the text of each of its tokens.

    It is number `index` of the request's answers, and answers `prompt`. `stopped_by` is the stop string that
    ends it; the text ends before that. Raises ApiError where vLLM refuses.
    """

    __slots__ = ("_cut", "_first", "_length", "_stride", "index", "request", "stopped_by")

    def __init__(
        self, ask: Ask, prompt: Prompt, index: int, name: str, settings: EngineSettings, *, seed: int
    ) -> None:
        limit = _limit_tokens(ask, prompt.tokens, settings.max_model_len)
        rng = np.random.default_rng((seed, ask.seed % 2**64, prompt.digest, index % ask.n))
        natural = Lognormal(_MEDIAN_TOKENS, _SIGMA, limit).draw(rng, 1)
        first, stride = rng.integers((0, 1), len(WORDS)).tolist()
        output = limit if ask.ignore_eos else max(int(natural[0]), min(ask.min_tokens, limit))
        self.index = index
        self._first: int = first
        self._stride: int = stride
        self._length: int | None = None  # of the text in bytes, where a stop string cuts it
        self._cut = (0, 0)  # then the token that is cut, and how many bytes of it are said
        self.stopped_by: str | None = None
        if ask.stop:
            output = self._stop(ask, output)
        words = map(self._word, range(min(output, _MOST_NAMED_TOKENS)))
        own = _segments([*prompt.rest, *words], prompt.segments, settings.block_size)
        prefix = (*prompt.segments, *own)
        self.request = Request(f"{name}-{index}", prompt.tokens, output, limit, ask.priority, prefix)

    def piece(self, token: int) -> bytes:
        """The text of token number `token`, counted from 0; ASCII without quotes or backslashes."""
        word = self._word(token)
        if self._length is None:
            return word
        cut, said = self._cut
        if token < cut:
            return word
        return word[:said] if token == cut else b""

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
        if self._length is None:
            return output
        ends = list(accumulate(map(len, words)))
        cut = bisect_right(ends, self._length)
        self._cut = (cut, self._length - (ends[cut - 1] if cut else 0))
        return bisect_left(ends, end) + 1


def answers_to(ask: Ask, name: str, settings: EngineSettings, seed: int) -> Iterator[Answer]:
    """All answers to a request, in order; there may be many, and long ones. Raises ApiError."""
    for place, tokens in enumerate(ask.prompts):
        prompt = Prompt(tokens, settings.block_size)
        for index in range(place * ask.n, (place + 1) * ask.n):
            yield Answer(ask, prompt, index, name, settings, seed=seed)


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


def _segments(
    tokens: Sequence[bytes | int], before: tuple[Segment, ...], block_size: int
) -> Iterator[Segment]:
    """A name for each full block of `tokens`, which follow those of the blocks `before`.

    The same wherever all tokens up to its end are, as in vLLM, where a block is known by the hash of its
    tokens and of the block before.
    """
    name, begin = (int(before[-1].name), before[-1].end_tokens) if before else (0, 0)
    for end in range(block_size, len(tokens) + 1, block_size):
        name = hash((name, *tokens[end - block_size : end]))
        yield Segment(str(name), begin + end)


def _digest(prompt: Tokens) -> int:
    """A number that stands for a prompt, the same in every process."""
    digest = 0
    for token in prompt:
        digest = crc32(token if isinstance(token, bytes) else b"%d," % token, digest)
    return digest
