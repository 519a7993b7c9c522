"""How fast the exposition reader is against the parser of prometheus_client, on a page of a vLLM in overload.

    python benchmarks/bench_exposition.py [--page PATH] [--rounds N]

CPU time, one process. Each round runs every contender once, so that a busy machine slows all of them alike;
shown are the best time of each and the median over the rounds of its ratio to prometheus_client in the same
round. The rows:

    prometheus_client   text_string_to_metric_families, all samples walked
    first read          a fresh Reader
    half changed        a Reader that read the page before; about half of the numbers are new each time
    all changed         the same, with every number new
    unchanged           the same page again
    lines moved         as half changed, and a line comes or goes at the top: the memo alone must do
"""

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from importlib.metadata import version
from itertools import cycle
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from controlplane.sources.exposition import Reader

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "data" / "captures" / "vllm-0.32-overload.prom"
RESULT = ROOT / "benchmarks" / "results" / "exposition.json"
BASELINE = "prometheus_client"
SCRAPES = 16  # different pages that the warm rows go round

Wanted = Callable[[str], bool] | None


def engine_names(name: str) -> bool:
    """What a poller of vLLM wants of a page."""
    return name.startswith(("vllm:", "http_requests", "process_start_time")) and not name.endswith("_created")


def changed(text: str, share: float, rng: random.Random) -> str:
    """The page with about `share` of its numbers new."""
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if line and not line.startswith("#") and rng.random() < share:
            lines[place] = f"{line[: line.rfind(' ')]} {round(rng.uniform(0, 1e5), 3)}"
    return "\n".join(lines)


def scrapes(text: str, share: float, rng: random.Random) -> list[bytes]:
    """Pages that follow each other, each with about `share` of its numbers new."""
    pages = []
    for _ in range(SCRAPES):
        text = changed(text, share, rng)
        pages.append(text.encode())
    return pages


def warm(pages: list[bytes], wanted: Wanted) -> Callable[[], object]:
    """One scrape after the other with one reader that knows the page."""
    reader = Reader(wanted)
    bodies = cycle([*pages, *pages[-2:0:-1]])  # there and back: the last page is not followed by the first
    for _ in pages:
        reader.read(next(bodies))
    return lambda: reader.read(next(bodies))


def contenders(text: str) -> dict[str, tuple[int, Callable[[], object]]]:
    """By name: how often to run in a round, and what to run."""
    rng = random.Random(1)
    body = text.encode()
    half, every = scrapes(text, 0.5, rng), scrapes(text, 1.0, rng)
    moved = [page if place % 2 else b"one_more 1\n" + page for place, page in enumerate(half)]
    rows: dict[str, tuple[int, Callable[[], object]]] = {
        BASELINE: (1, lambda: [s for family in text_string_to_metric_families(text) for s in family.samples])
    }
    for label, wanted in (("", None), (" (engine names)", engine_names)):
        rows |= {
            f"first read{label}": (4, lambda wanted=wanted: Reader(wanted).read(body)),  # type: ignore[misc]
            f"half changed{label}": (32, warm(half, wanted)),
            f"all changed{label}": (32, warm(every, wanted)),
            f"unchanged{label}": (32, warm([body], wanted)),
            f"lines moved{label}": (16, warm(moved, wanted)),
        }
    return rows


def measure(rows: dict[str, tuple[int, Callable[[], object]]], rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds per page, by row and round."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, (count, run) in rows.items():
            start = time.process_time()
            for _ in range(count):
                run()
            times[name].append((time.process_time() - start) / count * 1e3)
    return times


def kilobytes_kept(text: str, wanted: Wanted) -> float:
    """Memory of a reader between two scrapes. With time it grows by new series only, up to `max_memo`."""
    gc.collect()
    tracemalloc.start()
    reader = Reader(wanted)
    reader.read(text.encode())
    reader.read(text.encode())
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the exposition reader.")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    text = options.page.read_text()
    times = measure(contenders(text), options.rounds)
    results = {
        name: {
            "best_ms": min(row),
            "median_ms": statistics.median(row),
            "ratio": statistics.median(base / own for base, own in zip(times[BASELINE], row, strict=True)),
        }
        for name, row in times.items()
    }
    kept = {"all": kilobytes_kept(text, None), "engine names": kilobytes_kept(text, engine_names)}
    samples = Reader().read(text).samples
    client = version("prometheus-client")
    print(f"{options.page.name}: {len(text) / 1e3:.0f} kB, {text.count(chr(10))} lines, {samples} samples")
    print(
        f"Python {platform.python_version()}, prometheus_client {client}, {options.rounds} rounds, CPU time\n"
    )
    print(f"{'':<30} {'best ms':>9} {'median ms':>10} {'ratio':>7}")
    for name, row in results.items():
        print(f"{name:<30} {row['best_ms']:>9.3f} {row['median_ms']:>10.3f} {row['ratio']:>6.1f}x")
    print(f"\nkept by one reader: {kept['all']:.0f} kB, with engine names only {kept['engine names']:.0f} kB")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    environment = {"python": sys.version, "prometheus_client": client, "rounds": options.rounds}
    page = {"name": options.page.name, "bytes": len(text.encode()), "samples": samples}
    RESULT.write_text(
        json.dumps({"page": page, "environment": environment, "rows": results, "kept_kb": kept}, indent=2)
        + "\n"
    )
    print(f"saved: {RESULT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
