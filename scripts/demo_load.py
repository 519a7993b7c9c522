"""The demo's clients: they ask at a rate of their own, whatever becomes of their questions."""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from controlplane.simulator.http.tokens import WORDS

CAPACITY_PER_SECOND = 24.0
"""What three replicas of the demo's engine can answer of these questions: where goodput ends when the rate is
raised slowly."""
PATIENCE_SECONDS = 15.0
"""Who has no first token by then hangs up."""
WINDOW_SECONDS, CELL_SECONDS = 10.0, 1.0
"""Clients and daemon look back as far. The daemon's window ends with its last whole cell, so does theirs."""
_OFFERED_SECONDS = 5.0
_REFUSALS = (429, 503)


@dataclass(frozen=True)
class Phase:
    """A stretch of the load: `share` of what the fleet can answer."""

    name: str
    seconds: float
    share: float
    remark: str


@dataclass(frozen=True)
class Limits:
    """What is in time, in seconds."""

    ttft: float
    tpot: float


LIMITS = Limits(ttft=2.5, tpot=0.075)


@dataclass(frozen=True)
class Lengths:
    """Lognormal lengths in tokens."""

    median: float
    sigma: float
    longest: int

    def draw(self, rng: random.Random) -> int:
        return max(2, min(self.longest, round(rng.lognormvariate(math.log(self.median), self.sigma))))


# Like public traces of conversations (Azure LLM inference 2023), with prompts that are a little shorter.
PROMPT, ANSWER = Lengths(600, 0.8, 3000), Lengths(129, 0.93, 900)


@dataclass(frozen=True)
class Ended:
    """One question and what became of it. `ttft` is None where its client hung up or was refused."""

    at: float
    ttft: float | None = None
    is_good: bool = False
    is_refused: bool = False


@dataclass(frozen=True)
class Window:
    """The last few seconds as the clients saw them. `ttft_p95` is None where nobody got an answer."""

    offered_per_second: float
    good_per_second: float
    ttft_p95: float | None
    refused_ratio: float
    gone_ratio: float


class Load:
    """Open loop: questions come at random, all to one address."""

    def __init__(self, url: str, model: str, phases: Sequence[Phase]) -> None:
        self._url = url
        self._model = model
        self._phases = phases
        self._rng = random.Random(7)  # noqa: S311 - not for secrets
        self._started = time.monotonic()
        self._sent: deque[float] = deque()
        self._ended: deque[Ended] = deque()
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def seconds(self) -> float:
        """Since the load began."""
        return time.monotonic() - self._started

    @property
    def phase(self) -> Phase:
        """The phase of now; after the last comes the first again."""
        left = self.seconds % sum(phase.seconds for phase in self._phases)
        for phase in self._phases:
            if left < phase.seconds:
                return phase
            left -= phase.seconds
        return self._phases[-1]

    async def run(self) -> None:
        """Ask until cancelled."""
        # Every question is a connection of its own: a pool would queue them where nobody sees it.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            self._started = due = time.monotonic()
            try:
                while True:
                    due += self._rng.expovariate(CAPACITY_PER_SECOND * self.phase.share)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    task = asyncio.create_task(self._ask(session))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
            finally:
                for task in self._asking:
                    task.cancel()
                await asyncio.gather(*self._asking, return_exceptions=True)

    def window(self) -> Window:
        """What happened lately."""
        now = time.monotonic()
        while self._sent and self._sent[0] < now - _OFFERED_SECONDS:
            self._sent.popleft()
        end = now - CELL_SECONDS
        while self._ended and self._ended[0].at < end - WINDOW_SECONDS:
            self._ended.popleft()
        ended = [one for one in self._ended if one.at <= end]
        ttfts = sorted(one.ttft for one in ended if one.ttft is not None)
        count = len(ended)
        gone = sum(one.ttft is None and not one.is_refused for one in ended)
        return Window(
            offered_per_second=len(self._sent) / min(_OFFERED_SECONDS, self.seconds),
            good_per_second=sum(one.is_good for one in ended) / min(WINDOW_SECONDS, self.seconds),
            ttft_p95=ttfts[math.ceil(0.95 * len(ttfts)) - 1] if ttfts else None,
            refused_ratio=sum(one.is_refused for one in ended) / count if count else 0.0,
            gone_ratio=gone / count if count else 0.0,
        )

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        """One question, to its end or to the end of patience."""
        words = self._rng.choices(WORDS, k=PROMPT.draw(self._rng))
        body = {
            "model": self._model,
            "prompt": b"".join(words).decode(),
            "max_tokens": ANSWER.draw(self._rng),
            "ignore_eos": True,
            "stream": True,
        }
        sent = time.monotonic()
        self._sent.append(sent)
        first, tokens, refused = None, 0, False
        try:
            async with asyncio.timeout(PATIENCE_SECONDS) as patience:
                async with session.post(f"{self._url}/v1/completions", json=body) as answer:
                    refused = answer.status in _REFUSALS
                    answer.raise_for_status()
                    async for data in answer.content.iter_any():
                        if first is None:
                            first = time.monotonic()
                            patience.reschedule(None)
                        tokens += data.count(b'data: {"')
        except (TimeoutError, aiohttp.ClientError):
            first = None
        now = time.monotonic()
        if first is None:
            self._ended.append(Ended(now, is_refused=refused))
            return
        tpot = (now - first) / max(tokens - 1, 1)
        good = first - sent <= LIMITS.ttft and tpot <= LIMITS.tpot
        self._ended.append(Ended(now, first - sent, good))
