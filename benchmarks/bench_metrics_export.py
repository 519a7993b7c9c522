"""How long one page of own metrics takes for a fleet of 500 replicas, beside prometheus_client's writer.

    .venv/bin/python benchmarks/bench_metrics_export.py [REPLICAS]

The library is given the same families, already made, so only its writing is counted. Times are CPU time
of this process, the best of a few runs; a page must take under 200 ms.
"""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from controlplane.api import metrics
from controlplane.signals.decision import Orders

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))
import fleet_fakes as fakes

LIMIT_SECONDS = 0.2


class Families:
    def __init__(self, page: str) -> None:
        self._families = list(text_string_to_metric_families(page))

    def collect(self) -> Iterable[Metric]:
        return self._families


def best(run: Callable[[], object], runs: int = 7) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seen = fakes.fleet(*[fakes.replica(f"vllm-{i}.chat.svc:8000", f"pool-{i % 5}") for i in range(count)])
    daemon = fakes.status()

    def page() -> metrics.Page:
        return metrics.page(seen, daemon, Orders(), fakes.AT)

    text = page().text(openmetrics=False)
    samples = sum(not line.startswith("#") for line in text.splitlines())
    print(f"{count} replicas: {samples} samples, {len(text) / 1e6:.1f} MB")
    families = Families(text)
    slowest = 0.0
    for name, openmetrics, library in (
        ("text", False, generate_latest),
        ("OpenMetrics", True, generate_openmetrics),
    ):
        ours = best(lambda form=openmetrics: page().text(openmetrics=form).encode())
        theirs = best(lambda write=library: write(families), 3)
        slowest = max(slowest, ours)
        print(
            f"{name:12} {ours * 1e3:5.0f} ms from snapshot to bytes; "
            f"the library takes {theirs * 1e3:.0f} ms to write alone ({theirs / ours:.1f}x)"
        )
    print(f"limit {LIMIT_SECONDS * 1e3:.0f} ms: {'kept' if slowest < LIMIT_SECONDS else 'MISSED'}")
    return 0 if slowest < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
