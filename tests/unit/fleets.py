"""Made-up engines whose pages feed the tick: cumulative, restartable, as many engines as wanted."""

import math
from collections import Counter

from controlplane.signals.histogram import Histogram
from controlplane.signals.samples import Samples, Scrape, Signals, Target

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
LENGTHS = (10.0, 100.0, 1000.0, math.inf)
NOON = 1_800_000_000.0


class FakeEngine:
    """The counters of one engine; `serve` adds finished requests."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.gauges = {"running": 0.0, "waiting": 0.0, "kv_usage": 0.0}
        for name in ("prompt_tokens_total", "generation_tokens_total", "preemptions_total", "finished_total"):
            self.counts[name] = 0
        self.counts["prefix_queries_total"] = self.counts["prefix_hits_total"] = 0
        for name in (
            "ttft",
            "tpot",
            "e2e",
            "queue_time",
            "prefill_time",
            "prompt_len",
            "generation_len",
            "itl",
        ):
            self.seen[name] = []

    def serve(
        self,
        n: int,
        *,
        ttft: float = 0.2,
        tpot: float = 0.02,
        prompt: int = 50,
        output: int = 20,
        gap: float | None = None,
    ) -> None:
        """`gap` seconds between two steps, where a step brings more than one token of a stream."""
        for _ in range(n):
            e2e = ttft + tpot * (output - 1)
            values = {
                "ttft": ttft,
                "tpot": tpot,
                "e2e": e2e,
                "queue_time": 0.0,
                "prefill_time": ttft,
                "itl": tpot if gap is None else gap,
            }
            lengths = {"prompt_len": prompt, "generation_len": output}
            for name, value in (values | lengths).items():
                self.seen[name].append(float(value))
        self.counts["prompt_tokens_total"] += n * prompt
        self.counts["generation_tokens_total"] += n * output
        self.counts["finished_total"] += n
        self.reasons["stop"] += n

    def signals(self) -> Signals:
        return Signals(
            numbers={**self.gauges, **{name: float(v) for name, v in self.counts.items()}},
            by={"finished_total": {k: float(v) for k, v in self.reasons.items()}},
            histograms={
                name: _histogram(LENGTHS if name.endswith("_len") else BOUNDS, values)
                for name, values in self.seen.items()
            },
        )


def _histogram(bounds: tuple[float, ...], values: list[float]) -> Histogram:
    return Histogram(bounds, tuple(float(sum(v <= b for v in values)) for b in bounds), math.fsum(values))


class FakeReplica:
    """One process with its engines; pages carry the process's start time and HTTP counts."""

    def __init__(self, name: str = "r0", pool: str = "chat", engines: int = 1) -> None:
        self.target = Target(name, pool, f"http://{name}:8000")
        self.size = engines
        self.start_time: float | None = NOON - 3600
        self.http: Counter[str] | None = None
        self.engines = {str(i): FakeEngine() for i in range(engines)}

    @property
    def engine(self) -> FakeEngine:
        return self.engines["0"]

    def restart(self, at: float) -> None:
        self.start_time = None if self.start_time is None else at
        self.engines = {str(i): FakeEngine() for i in range(self.size)}

    def page(self, at: float) -> Scrape:
        numbers = {} if self.start_time is None else {"start_time": self.start_time}
        by = {}
        if self.http is not None:
            numbers["http_inference_requests"] = float(sum(self.http.values()))
            by["http_inference_requests"] = {k: float(v) for k, v in self.http.items()}
        return Scrape(
            target=self.target.name,
            at=at,
            seconds=0.01,
            engine="vllm",
            version=">=0.32",
            models=("acme/chat-8b",),
            engines={name: engine.signals() for name, engine in self.engines.items()},
            server=Signals(numbers=numbers, by=by),
        )


def samples(*replicas: FakeReplica, at: float) -> Samples:
    return Samples(targets=tuple(r.target for r in replicas), scrapes=tuple(r.page(at) for r in replicas))
