"""How long one scrape takes from bytes to signals: reading the page, then translating it.

    .venv/bin/python benchmarks/bench_dialect.py [--rounds N]

Each row is a captured page scraped again and again with half of its numbers new each time, as the daemon does
it (the tick's signals) and as `inspect` does it (all signals). CPU time of one process, median over the
rounds. "first" is what a new layout costs once. The last column says what 1,000 targets every 5 s take of one
core; the budget for translating alone is 0.3 ms a page.
"""

import argparse
import json
import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from controlplane.sources.catalog import Catalog, full, tick
from controlplane.sources.dialect import Translator
from controlplane.sources.exposition import Page, Reader

ROOT = Path(__file__).parents[1]
CAPTURES = ROOT / "tests" / "data" / "captures"
RESULT = ROOT / "benchmarks" / "results" / "dialect.json"
PAGES = ("logger-only/vllm-0.8.5-idle", "vllm-0.32-overload", "vllm-0.32-dp2-api2-overload")
SCRAPES = 16
BUDGET_MS = 0.3
SCRAPES_PER_SECOND = 1000 / 5


class Row(TypedDict):
    page: str
    signals: str
    series: int
    read_ms: float
    translate_ms: float
    first_ms: float
    kept_kb: float
    core_percent_of_1000_targets: float


def scrapes(text: str, rng: random.Random) -> list[bytes]:
    """Pages that follow each other, each with half of its numbers new."""
    pages = []
    lines = text.split("\n")
    for _ in range(SCRAPES):
        for place, line in enumerate(lines):
            if line and not line.startswith("#") and rng.random() < 0.5:
                lines[place] = f"{line[: line.rfind(' ')]} {round(rng.uniform(0, 1e5), 3)}"
        pages.append("\n".join(lines).encode())
    return pages


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats * 1e3


def translate(translator: Translator, page: Page, body: bytes) -> object:
    return translator.translate(page, body, target="bench", at=0.0, seconds=0.0)


def measure(name: str, signals: str, catalog: Catalog, rounds: int) -> Row:
    text = (CAPTURES / f"{name}.prom").read_text()
    bodies = scrapes(text, random.Random(1))
    reader, translator = Reader(catalog.wanted), Translator(catalog)
    first_page = reader.read(bodies[0])
    first = statistics.median(
        milliseconds(lambda: translate(Translator(catalog), first_page, bodies[0]), 1) for _ in range(rounds)
    )
    pages = [reader.read(body) for body in bodies]
    read, translated = [], []
    for _ in range(rounds):
        read.append(milliseconds(lambda: [reader.read(body) for body in bodies], 1) / SCRAPES)
        translated.append(
            milliseconds(lambda: [translate(translator, page, bodies[0]) for page in pages], 4) / SCRAPES
        )
    tracemalloc.start()
    kept = Translator(catalog)
    translate(kept, first_page, bodies[0])
    kept_kb = tracemalloc.get_traced_memory()[0] / 1e3
    tracemalloc.stop()
    read_ms, translate_ms = statistics.median(read), statistics.median(translated)
    return Row(
        page=name,
        signals=signals,
        series=len(first_page.values),
        read_ms=read_ms,
        translate_ms=translate_ms,
        first_ms=first,
        kept_kb=kept_kb,
        core_percent_of_1000_targets=(read_ms + translate_ms) * SCRAPES_PER_SECOND / 10,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure reading and translating pages.")
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    rows = [
        measure(name, signals, catalog, rounds)
        for name in PAGES
        for signals, catalog in (("tick", tick()), ("all", full()))
    ]
    print(f"Python {platform.python_version()}, {rounds} rounds, CPU time, median\n")
    print(f"{'page':<30} {'signals':<8} {'series':>6} {'read':>8} {'translate':>10} {'first':>8} {'kept':>7}")
    for row in rows:
        print(
            f"{row['page']:<30} {row['signals']:<8} {row['series']:>6} {row['read_ms']:>5.3f} ms "
            f"{row['translate_ms']:>7.3f} ms {row['first_ms']:>5.2f} ms {row['kept_kb']:>4.0f} kB "
            f"{row['core_percent_of_1000_targets']:>5.1f} % of a core for 1,000 targets"
        )
    single = next(row for row in rows if row["page"] == PAGES[1] and row["signals"] == "tick")
    kept = "kept" if single["translate_ms"] <= BUDGET_MS else "MISSED"
    print(f"\nbudget {BUDGET_MS} ms to translate a page with the tick's signals: {kept}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    environment = {"python": platform.python_version(), "rounds": rounds}
    RESULT.write_text(json.dumps({"environment": environment, "rows": rows}, indent=2) + "\n")
    print(f"saved: {RESULT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
