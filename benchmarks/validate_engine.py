"""Check the engine model against what was measured and published; prints tables, writes JSON.

    python benchmarks/validate_engine.py [--json PATH]

1. A measured vLLM 0.19 run (RTX PRO 6000, Llama-3.1-8B, 300 requests): constants fitted on the first 150
requests, scored on the other 150. 2. Public points of a 70B model on 2 x H100 (NIM 1.8.0, 5000 in, 500 out):
nothing fitted here. 3. The predictions that the constants were published with (1000 in, 1000 out).
"""

import argparse
import csv
import json
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.closed_loop import Users, closed_loop
from benchmarks.fit import Latencies, Measured, fit, latencies, simulate
from controlplane.simulator.constants import engine_model
from controlplane.simulator.lengths import Fixed
from controlplane.simulator.step import StepLaw

ROOT = Path(__file__).parents[1]
RUN = ROOT.parent / "shared" / "reference" / "validation" / "vllm019_rtxpro6000_llama31_8b.csv"
RESULTS = ROOT / "benchmarks" / "results" / "validate_engine.json"

KERNELS = StepLaw(0.0, 10.7e-3, 37.2e-6, 92.8e-9, 1.95e-9, 3e-6)
"""Profile of the kernels on that GPU, from the same source as the run; what the fit starts from."""

FREE = ("host", "token", "kv_token")
FIRST = 150
QUANTILES = (50, 90, 99)

# NIM 1.8.0 for LLMs, Llama-3.3-70B FP8 on 2 x H100, 5000/500: TTFT ms, ITL ms, tokens/s by concurrency.
NIM_70B = {
    1: (406.8, 18.58, 51.7),
    5: (546.7, 21.83, 218.5),
    25: (688.7, 38.75, 623.4),
    50: (834.5, 59.73, 814.4),
    100: (7996.0, 92.91, 917.3),
}
# TPOT ms that the constants were published with, by concurrency.
PUBLISHED_TPOT = {
    "a100-8b": {1: 11.9, 32: 17.8, 128: 38.6},
    "h100-8b": {1: 8.0, 32: 10.8, 128: 20.7},
    "2xh100-70b-fp8": {1: 18.2, 32: 21.6, 128: 35.0},
}


def read_run(path: Path) -> list[Measured]:
    with path.open() as file:
        return [
            Measured(
                float(row["t_queued_s"]),
                int(row["input_tokens"]),
                int(row["output_tokens"]),
                float(row["ttft_s"]),
                float(row["e2e_s"]),
            )
            for row in csv.DictReader(file)
        ]


def errors(found: Latencies, known: Latencies) -> dict[str, dict[str, float]]:
    """Relative errors of the quantiles and of the mean, by metric."""
    table = {}
    for name, mine, theirs in zip(Latencies._fields, found, known, strict=True):
        row = {f"p{q}": float(np.percentile(mine, q) / np.percentile(theirs, q) - 1) for q in QUANTILES}
        table[name] = {**row, "mean": float(mine.mean() / theirs.mean() - 1)}
    return table


def measured_run(path: Path) -> dict[str, object]:
    """Section 1."""
    run = read_run(path)
    settings = engine_model("rtx-pro-6000-8b").settings
    known = latencies(run)
    law = fit(run, FIRST, KERNELS, settings, free=FREE)
    table = {}
    for title, one, options in (
        ("kernels, nothing fitted", KERNELS, settings),
        ("fitted", law, settings),
        ("same, scheduled synchronously", law, msgspec.structs.replace(settings, async_scheduling=False)),
    ):
        found = simulate(run, one, options)
        table[title] = {
            "first 150": errors(found.part(slice(FIRST)), known.part(slice(FIRST))),
            "other 150": errors(found.part(slice(FIRST, None)), known.part(slice(FIRST, None))),
        }
    return {"fitted_constants": list(FREE), "law": msgspec.to_builtins(law), "errors": table}


def public_points(budgets: tuple[int, ...] = (2048, 8192)) -> dict[str, dict[int, dict[str, float]]]:
    """Section 2: relative errors by token budget and concurrency, neither of which is published.

    Steps are scheduled synchronously, as engines of that year did. It matters for the TTFT of equal lengths:
    users that began together stay together, so most questions come during a prefill of 0.4 s; a step that is
    planned ahead is then another one to wait for.
    """
    model = engine_model("2xh100-70b-fp8")
    table: dict[str, dict[int, dict[str, float]]] = {}
    for budget in budgets:
        settings = msgspec.structs.replace(
            model.settings, max_num_batched_tokens=budget, async_scheduling=False
        )
        rows = {}
        for users, (ttft, itl, rate) in NIM_70B.items():
            point = closed_loop(model.law, settings, Users(users, Fixed(5000), Fixed(500)))
            itl_ms = point.gap_seconds * 1e3
            rows[users] = {
                "itl_ms": itl_ms,
                "itl_error": itl_ms / itl - 1,
                "ttft_error": point.ttft_seconds * 1e3 / ttft - 1,
                "tokens_per_second_error": point.tokens_per_second / rate - 1,
                "preemptions_per_answer": point.preemptions_per_answer,
            }
        table[f"budget {budget}"] = rows
    return table


def predictions() -> dict[str, dict[int, dict[str, float]]]:
    """Section 3. The published predictions are of synchronous scheduling."""
    table: dict[str, dict[int, dict[str, float]]] = {}
    for name, points in PUBLISHED_TPOT.items():
        model = engine_model(name)
        settings = msgspec.structs.replace(model.settings, async_scheduling=False)
        rows = {}
        for users, published in points.items():
            point = closed_loop(model.law, settings, Users(users, Fixed(1000), Fixed(1000)), rounds=4)
            tpot_ms = point.gap_seconds * 1e3
            rows[users] = {
                "tpot_ms": tpot_ms,
                "error": tpot_ms / published - 1,
                "tokens_per_second": point.tokens_per_second,
            }
        table[name] = rows
    return table


def show_run(section: dict[str, object]) -> None:
    print("1. Measured run: vLLM 0.19, RTX PRO 6000, Llama-3.1-8B bf16, 300 requests at about 10/s")
    print(f"   fitted on TPOT and e2e of the first 150 requests: {', '.join(FREE)}; TTFT is a prediction")
    law = section["law"]
    assert isinstance(law, dict)
    print(f"   host {law['host'] * 1e3:.2f} ms, token {law['token'] * 1e6:.1f} us, ", end="")
    print(f"kv_token {law['kv_token'] * 1e9:.1f} ns; the rest is the kernels' profile")
    table = section["errors"]
    assert isinstance(table, dict)
    print(f"   {'':42}{'TTFT p50/p90/p99 %':>22}{'TPOT p50/p90/p99 %':>24}{'e2e p50/p90/p99 %':>24}")
    for title, parts in table.items():
        for part, metrics in parts.items():
            cells = [
                "/".join(f"{100 * metrics[name][f'p{q}']:+.1f}" for q in QUANTILES)
                for name in ("ttft", "tpot", "e2e")
            ]
            print(f"   {title + ', ' + part:<42}{cells[0]:>22}{cells[1]:>24}{cells[2]:>24}")


def show_points(table: dict[str, dict[int, dict[str, float]]]) -> None:
    print(
        "\n2. Public points: NIM 1.8.0, Llama-3.3-70B FP8 on 2 x H100, 5000 in, 500 out; nothing fitted here"
    )
    for budget, rows in table.items():
        print(f"   {budget}: concurrency, ITL ms, errors of ITL, TTFT, tokens/s in %, preemptions an answer")
        for users, row in rows.items():
            print(
                f"   {users:>8} {row['itl_ms']:8.2f} {100 * row['itl_error']:+7.1f} "
                f"{100 * row['ttft_error']:+7.1f} {100 * row['tokens_per_second_error']:+7.1f} "
                f"{row['preemptions_per_answer']:8.2f}"
            )


def show_predictions(table: dict[str, dict[int, dict[str, float]]]) -> None:
    print("\n3. Predictions published with the constants (1000 in, 1000 out): TPOT ms, error %, tokens/s")
    for name, rows in table.items():
        for users, row in rows.items():
            print(
                f"   {name:<16}{users:>4} {row['tpot_ms']:8.2f} {100 * row['error']:+6.1f} "
                f"{row['tokens_per_second']:8.0f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    path = parser.parse_args().json
    result: dict[str, object] = {}
    if RUN.is_file():
        result["measured_run"] = measured_run(RUN)
        show_run(result["measured_run"])  # type: ignore[arg-type]
    else:
        print(f"1. Measured run: skipped, there is no {RUN.name} in the reference data beside the repository")
    points, table = public_points(), predictions()
    show_points(points)
    show_predictions(table)
    result |= {"public_points": points, "predictions": table}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
