"""A time series database of a few lines, with a clock that stands still until it is told to move.

It understands the two forms of query that the source uses and answers in the API's own JSON, so that the
reading of answers is part of what is tested.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controlplane.sources.exposition import Reader
from controlplane.sources.query_answer import Answer, interpret

RANGE = re.compile(r'\{__name__=~"([^"]*)",job="vllm"\}\[(\d+)ms\]')
TIMES = 'timestamp(up{job="vllm"})'
Labels = tuple[tuple[str, str], ...]


@dataclass
class FakePrometheus:
    """`wall` is our clock, the server's is `ahead` of it; `broken`: status and body by a word of a query,
    except where a word of `works` is in it."""

    wall: float = 1_764_000_000.0
    ahead: float = 0.0
    broken: dict[str, tuple[int, Any]] = field(default_factory=dict)
    works: set[str] = field(default_factory=set)
    warnings: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    before: Callable[[str, float], None] = lambda promql, deadline: None
    series: dict[Labels, list[tuple[float, float]]] = field(default_factory=dict)
    last_up: dict[Labels, float] = field(default_factory=dict)

    @property
    def now(self) -> float:
        return self.wall + self.ahead

    def scrape(
        self, page: bytes | None, instance: str = "a:8000", seconds: float = 0.25, **more: str
    ) -> None:
        """Prometheus scrapes now and stores all series under one time stamp. None: the scrape fails."""
        target = {"job": "vllm", "instance": instance} | more
        self._store({"__name__": "up"} | target, 1.0 if page is not None else 0.0)
        self._store({"__name__": "scrape_duration_seconds"} | target, seconds)
        self.last_up[tuple(sorted(target.items()))] = self.now
        if page is not None:
            read = Reader().read(page)
            for series, value in zip(read.layout.series, read.values, strict=True):
                own = {f"exported_{k}" if k in target else k: v for k, v in series.labels}
                self._store({"__name__": series.name} | target | own, value)

    def forget(self, instance: str = "a:8000") -> None:
        """The target is taken away: its series are marked stale."""
        self.last_up = {k: v for k, v in self.last_up.items() if ("instance", instance) not in k}

    def query(self, promql: str, deadline: float, at: float | None = None) -> Answer:
        self.before(promql, deadline)
        self.asked.append(promql)
        for word, (status, body) in self.broken.items():
            if word in promql and not any(working in promql for working in self.works):
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                return interpret(status, "application/json", raw, self.wall)
        answer: dict[str, Any] = {"status": "success", "data": self._evaluate(promql, at or self.now)}
        told = [text for word, text in self.warnings.items() if word in promql]
        body = json.dumps(answer | ({"warnings": told} if told else {})).encode()
        return interpret(200, "application/json", body, self.wall)

    def close(self) -> None:
        pass

    def _store(self, labels: dict[str, str], value: float) -> None:
        self.series.setdefault(tuple(sorted(labels.items())), []).append((self.now, value))

    def _evaluate(self, promql: str, at: float) -> dict[str, Any]:
        if promql == TIMES:
            fresh = {labels: seen for labels, seen in self.last_up.items() if at - 300 <= seen <= at}
            result = [{"metric": dict(k), "value": [at, printed(seen)]} for k, seen in fresh.items()]
            return {"resultType": "vector", "result": result}
        match = RANGE.fullmatch(promql)
        assert match is not None, promql
        names, since = set(match[1].split("|")), at - int(match[2]) / 1000
        result = []
        for labels, points in self.series.items():
            inside = [[t, printed(value)] for t, value in points if since < t <= at]
            if inside and dict(labels)["__name__"] in names:
                result.append({"metric": dict(labels), "values": inside})
        return {"resultType": "matrix", "result": result}


def printed(value: float) -> str:
    """A number as Prometheus prints it."""
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))
