"""What an engine counts of itself, under vLLM 0.32's rules about when something is counted.

The time to the first token is observed at the first token, everything else about a request when it ends;
aborted requests are in no histogram and no finish counter. Preemptions are counted when the preempted request
next gets a token. The gauges are those of the end of the last step.

Observations are kept as they are and sorted into buckets by the thousand or when somebody reads.
"""

from bisect import bisect_left
from itertools import accumulate
from math import inf

import numpy as np

from controlplane.signals.histogram import Histogram
from controlplane.simulator.request import Finished
from controlplane.simulator.settings import EngineSettings

LATENCY_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
PARAM_N = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
HTTP_SECONDS = (0.1, 0.5, 1.0)
HTTP_FINE_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0),
    *(7.5, 10.0, 30.0, 60.0),
)
_FOLD_AT = 4096


class Buckets:
    """A histogram that grows; `bounds` are the finite ones."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def fold(self, values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
        """Add many at once."""
        places = np.searchsorted(self.bounds, values, side="left")
        grown = np.bincount(places, minlength=len(self.counts))
        self.counts = [a + b for a, b in zip(self.counts, grown.tolist(), strict=True)]
        self.total += float(values.sum())

    def histogram(self) -> Histogram:
        return Histogram((*self.bounds, inf), tuple(map(float, accumulate(self.counts))), self.total)


def one_two_five(largest: int) -> tuple[float, ...]:
    """vLLM's bounds for numbers of tokens: 1, 2, 5, 10, ... up to `largest`."""
    bounds: list[float] = []
    power = 1
    while power <= largest:
        bounds += [float(m * power) for m in (1, 2, 5) if m * power <= largest]
        power *= 10
    return tuple(bounds)


class EngineCounters:
    """Counters and histograms of one engine since it started, and its gauges at the end of the last step."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        tokens = one_two_five(settings.max_model_len)
        self.running = 0
        self.waiting = 0
        self.free_blocks = settings.usable_blocks
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self.stopped = 0
        self.length = 0
        self.aborted = 0  # in no metric of vLLM but the HTTP server's
        self.steps = 0
        self.busy_seconds = 0.0
        self.ttft = Buckets(TTFT_SECONDS)
        self.itl = Buckets(TOKEN_SECONDS)
        self.step_tokens = Buckets(STEP_TOKENS)
        self.tpot = Buckets(TOKEN_SECONDS)
        self.e2e = Buckets(LATENCY_SECONDS)
        self.queue_time = Buckets(LATENCY_SECONDS)
        self.prefill_time = Buckets(LATENCY_SECONDS)
        self.decode_time = Buckets(LATENCY_SECONDS)
        self.inference_time = Buckets(LATENCY_SECONDS)
        self.prompt_len = Buckets(tokens)
        self.generation_len = Buckets(tokens)
        self.max_generation_len = Buckets(tokens)
        self.param_max_tokens = Buckets(tokens)
        self.prefill_computed_len = Buckets(tokens)
        self.param_n = Buckets(PARAM_N)
        self.preemptions_per_request = Buckets(PREEMPTIONS)
        self.http_duration = Buckets(HTTP_SECONDS)
        self.http_fine_duration = Buckets(HTTP_FINE_SECONDS)
        self._first_tokens: list[float] = []
        self._finished: list[tuple[float, ...]] = []
        self._http: list[float] = []

    @property
    def kv_usage(self) -> float:
        return 1.0 - self.free_blocks / self._settings.usable_blocks

    def histograms(self) -> dict[str, Buckets]:
        """All histograms by the name of the signal that they carry."""
        return {
            "ttft": self.ttft,
            "itl": self.itl,
            "step_tokens": self.step_tokens,
            "tpot": self.tpot,
            "e2e": self.e2e,
            "queue_time": self.queue_time,
            "prefill_time": self.prefill_time,
            "decode_time": self.decode_time,
            "inference_time": self.inference_time,
            "prompt_len": self.prompt_len,
            "generation_len": self.generation_len,
            "max_generation_len": self.max_generation_len,
            "param_max_tokens": self.param_max_tokens,
            "prefill_computed_len": self.prefill_computed_len,
            "param_n": self.param_n,
            "preemptions_per_request": self.preemptions_per_request,
            "http_duration": self.http_duration,
            "http_duration_hr": self.http_fine_duration,
        }

    def first_token(self, ttft_seconds: float, prompt_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self._first_tokens.append(ttft_seconds)

    def finished(self, event: Finished, limit_tokens: int) -> None:
        if event.reason == "stop":
            self.stopped += 1
        else:
            self.length += 1
        e2e = event.at - event.arrived_at
        self._http.append(e2e)
        self._finished.append(
            (
                e2e,
                event.scheduled_at - event.queued_at,
                event.first_token_at - event.scheduled_at,
                event.at - event.first_token_at,
                event.at - event.scheduled_at,
                event.tpot_seconds,
                event.prompt_tokens,
                event.output_tokens,
                limit_tokens,
                event.prompt_tokens - event.cached_tokens,
                event.preemptions,
            )
        )
        if len(self._finished) >= _FOLD_AT:
            self.settle()

    def gave_up(self, seconds: float) -> None:
        """A client hung up `seconds` after it asked: vLLM's HTTP server counts that as answered, the engine
        not."""
        self.aborted += 1
        self._http.append(seconds)
        if len(self._http) >= _FOLD_AT:
            self.settle()

    def settle(self) -> None:
        """Sort what was observed into the buckets; to be called before they are read."""
        if self._first_tokens:
            self.ttft.fold(np.array(self._first_tokens))
            self._first_tokens = []
        if self._http:
            values = np.array(self._http)
            self.http_duration.fold(values)
            self.http_fine_duration.fold(values)
            self._http = []
        if not self._finished:
            return
        columns = np.array(self._finished).T
        for buckets, column in zip(
            (
                self.e2e,
                self.queue_time,
                self.prefill_time,
                self.decode_time,
                self.inference_time,
                self.tpot,
                self.prompt_len,
                self.generation_len,
                self.param_max_tokens,
                self.prefill_computed_len,
                self.preemptions_per_request,
            ),
            columns,
            strict=True,
        ):
            buckets.fold(column)
        # One sequence a request (n = 1), so what the longest of its sequences generated is what it generated.
        self.max_generation_len.fold(columns[7])
        self.param_n.add(1.0, len(self._finished))
        self._finished = []
