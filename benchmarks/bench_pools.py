"""What a short and a long pool save over one, and what they do to latency; prints tables, writes JSON.

    python -m benchmarks.bench_pools [--json PATH] [--quick]

1. arXiv 2604.08075 from its own constants: what follows from its text, and what does not.
2. The first-order model of arXiv 2604.09613, rebuilt.
3. Plans for our engines from traces: slots by context, as the papers have it, and requests reserved by size.
4. The same fleets in the full simulator: the gateway's own admission, engines step by step.
5. Preemptions where slots over-commit the KV cache, and with exact and learned reservation.
6. How it depends on boundary, rate, burstiness, stated `max_tokens`, learned or known outputs.
7. Bytes per token: error after 50 requests, requests on the wrong side of the boundary.
8. The law of the boundary, from wrong starts.

Traces are read from ../shared/reference/traces; where they are not, sections 3 to 8 say so and run on our own
mixes alone, which `--quick` does too, for less time.
"""

import argparse
import gc
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.pools import first_order, paper
from benchmarks.pools.calibration import TRUE_RATIOS, calibrated
from benchmarks.pools.loads import TRACES, Load, own, renewed, traces
from benchmarks.pools.replay import TPOT_SECONDS, TTFT_SECONDS, Group, Outcome, Replay, Sizing
from controlplane.planner.capacity import Mix
from controlplane.planner.pools import (
    Filling,
    PoolPlan,
    Site,
    Traffic,
    best_plan,
    context_of,
    plan_at,
    traffic,
)
from controlplane.policy.boundary.law import Boundary
from controlplane.simulator.constants import engine_model
from controlplane.simulator.trace import TraceRow

RESULTS = Path(__file__).parent / "results" / "pools.json"
ENGINE = engine_model("h100-8b")
LONG_CONTEXT = 65_536
PAPER_BOUNDARIES = (4_096, 6_144, 8_192, 12_288, 16_384)
MOST_ENGINES = 60
"""More are not simulated."""

Json = dict[str, Any]


class Scale(NamedTuple):
    """How long things run, at how much of the rates; in section 5 how long, at what rate, and how much of its
    KV cache an engine has (a small one is full sooner)."""

    seconds: float
    draws: int
    calibrations: int
    law_seconds: float
    law_starts: tuple[int, ...]
    rates: float
    full_seconds: float
    full_rate: float
    memory: float


FULL = Scale(
    270.0, 200_000, 200, 900.0, (512, 4096, 16_384), 1.0, full_seconds=300.0, full_rate=64.0, memory=1.0
)
QUICK = Scale(80.0, 30_000, 10, 200.0, (512,), 0.3, full_seconds=80.0, full_rate=32.0, memory=0.25)
_LAW_RATE = 26.0


def paper_section() -> Json:
    print("1. arXiv 2604.08075, from its own constants")
    claims = paper.claims()
    for claim in claims:
        print(
            f"   {claim.what:<52}{claim.printed:>11}  {claim.follows:<24}{'' if claim.agrees else 'DIFFERS'}"
        )
        print(f"      {claim.arithmetic}")
    return {"claims": [claim._asdict() for claim in claims]}


def first_order_section(scale: Scale) -> Json:
    print(
        "\n2. arXiv 2604.09613, rebuilt: "
        f"a short instance does {first_order.rho():.2f} x what a long one does"
    )
    print(
        f"   {'sizes':<12}{'boundary':>9}{'one':>6}{'short':>7}{'long':>6}{'fewer':>8}"
        "   P99 prefill of one, short, long"
    )
    found: Json = {"rho": first_order.rho()}
    for name, draw in (("azure-like", first_order.azure_like), ("lmsys-like", first_order.lmsys_like)):
        total = draw(scale.draws, 1)
        rows = [first_order.saving(total, boundary) for boundary in PAPER_BOUNDARIES]
        for row in rows:
            prefills = ", ".join(f"{pool.p99_prefill_seconds:.2f}" for pool in (row.one, row.short, row.long))
            print(
                f"   {name:<12}{row.boundary:>9,}{row.one.instances:>6}{row.short.instances:>7}"
                f"{row.long.instances:>6}{row.saved_ratio:>8.1%}   {prefills} s"
            )
        best = max(row.saved_ratio for row in rows)
        kept = {row.boundary: row.saved_ratio / best for row in rows}
        rates = {rate: first_order.saving(total, 8192, rate).saved_ratio for rate in (100.0, 500.0, 2000.0)}
        print(
            f"   {name}: 4,096 keeps {kept[4096]:.0%} of the gain, 16,384 {kept[16384]:.0%} "
            "(2604.08075: over 80 %); at 100, 500, 2,000 req/s "
            f"{', '.join(f'{ratio:.1%}' for ratio in rates.values())}"
        )
        found[name] = {
            "saved_ratio": {row.boundary: row.saved_ratio for row in rows},
            "kept_ratio": kept,
            "saved_ratio_by_rate": rates,
        }
    return found


def site_for(load: Traffic) -> Site:
    return Site(ENGINE, TTFT_SECONDS, TPOT_SECONDS, context_of(load.longest_tokens))


def plan_section(loads: Sequence[Load]) -> Json:
    print("\n3. Engines for the busiest ten seconds, on paper (h100-8b)")
    print(
        f"   {'requests':<16}{'req/s':>6}  {'filled':<12}"
        f"{'boundary':>9}{'one':>6}{'short':>7}{'long':>6}{'fewer':>8}"
    )
    found: Json = {}
    for load in loads:
        planned = traffic(load.rows, load.rate)
        for filling in Filling:
            plan = best_plan(site_for(planned), planned, filling)
            if plan is None:
                print(f"   {load.name:<16}{load.rate:>6.0f}  {filling.value:<12}no boundary parts them")
                continue
            print(
                f"   {load.name:<16}{load.rate:>6.0f}  {filling.value:<12}{plan.boundary_tokens:>9,}"
                f"{plan.one.engines:>6}{plan.short.engines:>7}{plan.long.engines:>6}{plan.saved_ratio:>8.1%}"
            )
            found.setdefault(load.name, {})[filling.name.lower()] = {
                "boundary_tokens": plan.boundary_tokens,
                "one": plan.one.engines,
                "short": plan.short.engines,
                "long": plan.long.engines,
                "saved_ratio": plan.saved_ratio,
                "saved_ratio_of_many": plan.saved_ratio_of_many,
            }
    return found


def groups_of(plan: PoolPlan, context: int) -> tuple[list[Group], list[Group]]:
    """One pool and two as they are planned."""
    by_size = plan.filling is Filling.BY_SIZE

    def group(name: str, engines: int, tokens: int, slots: int) -> Group:
        return Group(name, engines, tokens, None if by_size else slots, reserves=by_size)

    return (
        [group("one", plan.one.engines, context, plan.one.slots)],
        [
            group("short", plan.short.engines, plan.short.context_tokens, plan.short.slots),
            group("long", plan.long.engines, context, plan.long.slots),
        ],
    )


def replay_section(loads: Sequence[Load], scale: Scale) -> Json:
    print(f"\n4. The same in the full simulator, {scale.seconds:.0f} s each, first minute not counted")
    found: Json = {}
    for load in loads:
        rows = load.at(load.rate, scale.seconds)
        planned = traffic(rows, None)
        site = site_for(planned)
        by_context = best_plan(site, planned, Filling.BY_CONTEXT)
        if by_context is None:
            print(f"   {load.name}: no boundary parts them")
            continue
        boundary = by_context.boundary_tokens
        print(f"   {load.name}: {load.rate:g} req/s, boundary {boundary:,}; short and long by real size")
        _head()
        for filling in Filling:
            plan = plan_at(site, planned, filling, boundary)
            for name, groups in zip(("one", "two"), groups_of(plan, site.context_tokens), strict=True):
                what = f"{name}, {filling.value}"
                if sum(group.replicas for group in groups) > MOST_ENGINES:
                    print(f"      {what:<22}left out: more than {MOST_ENGINES} engines")
                    continue
                outcome = Replay(
                    rows, ENGINE, groups, part_tokens=boundary, boundary=boundary if name == "two" else None
                ).go()
                _line(what, outcome)
                found.setdefault(load.name, {})[what] = _fields(outcome)
    return found


def preemption_section(load: Load, scale: Scale) -> Json:
    """At a rate at which the KV cache of one pool, over-committed by its slots, is full at times."""
    rate = scale.full_rate
    rows = load.at(rate, scale.full_seconds)
    blocks = round(ENGINE.num_gpu_blocks * scale.memory)
    engine = msgspec.structs.replace(ENGINE, num_gpu_blocks=blocks, max_model_len=LONG_CONTEXT)
    print(
        f"\n5. Preemptions: {load.name}, {rate:g} req/s, 8 engines with {engine.settings.kv_tokens:,} tokens "
        "of KV cache; boundary 4,096, context of the short pool 8,192"
    )
    _head()
    found: Json = {}
    for what, reserves, sizing in (
        ("over-committed slots", False, Sizing()),
        ("exact reservation", True, Sizing(oracle=True)),
        ("learned reservation", True, Sizing()),
    ):
        for name, groups in (
            ("one", [Group("one", 8, LONG_CONTEXT, None, reserves)]),
            (
                "two",
                [Group("short", 5, 8192, None, reserves), Group("long", 3, LONG_CONTEXT, None, reserves)],
            ),
        ):
            boundary = 4096 if name == "two" else None
            outcome = Replay(rows, engine, groups, part_tokens=4096, boundary=boundary, sizing=sizing).go()
            _line(f"{name}, {what}", outcome)
            found[f"{name}, {what}"] = _fields(outcome)
    return found


def sensitivity_section(load: Load, scale: Scale) -> Json:
    found: Json = {"by_boundary": {}, "by_burstiness": {}, "by_stated_output": {}}
    planned = traffic(load.rows, load.rate)
    site = site_for(planned)
    best = best_plan(site, planned, Filling.BY_CONTEXT)
    assert best is not None
    print(
        f"\n6. Sensitivity: {load.name} at {load.rate:g} req/s, slots by context, "
        f"{best.one.engines} engines in one pool"
    )
    for boundary in (1024, 2048, 3072, 4096, 6144, 8192):
        if not (planned.mix.reserved <= boundary).any() or boundary >= site.context_tokens:
            continue
        if (planned.mix.reserved <= boundary).all():
            continue
        plan = plan_at(site, planned, Filling.BY_CONTEXT, boundary)
        found["by_boundary"][boundary] = plan.saved_ratio
    print(
        "   boundary: "
        + ", ".join(f"{b:,} {r:.0%}" for b, r in found["by_boundary"].items())
        + " fewer engines"
    )
    for what, reserved in _budgets(planned):
        mix = Mix(planned.mix.prompt, planned.mix.output, reserved)
        budgeted = Traffic(planned.at, mix, planned.rate)
        short = float((reserved <= best.boundary_tokens).mean())
        saved = 0.0
        if 0 < short < 1:
            saved = plan_at(site, budgeted, Filling.BY_CONTEXT, best.boundary_tokens).saved_ratio
        found["by_stated_output"][what] = {"short_ratio": short, "saved_ratio": saved}
    print(
        f"   routed at {best.boundary_tokens:,} by prompt and output: "
        + ", ".join(
            f"{what} {row['short_ratio']:.0%} short, {row['saved_ratio']:.0%} fewer"
            for what, row in found["by_stated_output"].items()
        )
    )
    print(f"   burstiness: the two pools by context, {scale.seconds:.0f} s")
    _head()
    rows = load.at(load.rate, scale.seconds)
    groups = groups_of(best, site.context_tokens)[1]
    for what, arranged in _arranged(rows):
        outcome = Replay(
            arranged, ENGINE, groups, part_tokens=best.boundary_tokens, boundary=best.boundary_tokens
        ).go()
        _line(what, outcome)
        found["by_burstiness"][what] = _fields(outcome)
    return found


def _budgets(load: Traffic) -> Iterator[tuple[str, Any]]:
    """What is taken for a request's size: what it will be, what is learned, a budget times as much."""
    prompt, output = load.mix.prompt, load.mix.output
    yield "known", prompt + output
    yield "learned", load.mix.reserved
    for factor in (2, 4, 8, 16):
        yield f"max_tokens {factor}x", prompt + factor * output
    for budget in (1024, 4096):
        yield f"max_tokens {budget:,}", prompt + np.maximum(output, budget)


def _arranged(rows: Sequence[TraceRow]) -> Iterator[tuple[str, Sequence[TraceRow]]]:
    yield "as they came", rows
    for name, cv in (("even gaps", 0.0), ("Poisson", 1.0), ("gaps of CV 4", 4.0)):
        yield name, renewed(rows, cv, 3)


def calibration_section(loads: Sequence[Load], scale: Scale) -> Json:
    print("\n7. Bytes per token after 50 requests; requests on the wrong side of 8,192 tokens")
    print(f"   {'requests':<22}{'text':<8}{'error':>7}{'P95':>7}{'wrong':>8}{'to short':>10}{'at 4.0':>8}")
    total = first_order.azure_like(28_000, 3)
    sizes = {"azure-like (2604.09613)": (np.rint(0.8 * total), np.rint(0.2 * total))}
    sizes |= {load.name: load.sizes() for load in loads}
    found: Json = {}
    for name, (prompt, output) in sizes.items():
        for category in TRUE_RATIOS:
            row = calibrated(category, prompt, output, 8192, runs=scale.calibrations)
            print(
                f"   {name[:21]:<22}{category.value:<8}{row.mean_error:>7.1%}{row.p95_error:>7.1%}"
                f"{row.misrouted:>8.2%}{row.misrouted_to_short:>10.2%}{row.misrouted_static:>8.2%}"
            )
            found.setdefault(name, {})[category.value] = row._asdict()
    prompt, output = sizes["azure-like (2604.09613)"]
    found["by_parameter"] = {}
    for beta, gamma, scatter in (
        (0.9, 1.0, 0.05),
        (0.98, 1.0, 0.05),
        (0.95, 0.0, 0.05),
        (0.95, 2.0, 0.05),
        (0.95, 1.0, 0.1),
    ):
        rows = [
            calibrated(
                category,
                prompt,
                output,
                8192,
                beta=beta,
                gamma=gamma,
                scatter=scatter,
                runs=scale.calibrations,
            )
            for category in TRUE_RATIOS
        ]
        name = f"beta {beta:g}, gamma {gamma:g}, scatter {scatter:.0%}"
        error, wrong = max(row.mean_error for row in rows), max(row.misrouted for row in rows)
        print(f"   {name:<37}{error:>7.1%} at worst{wrong:>7.2%}")
        found["by_parameter"][name] = {"worst_error": error, "worst_misrouted": wrong}
    return found


def law_section(load: Load, scale: Scale) -> Json:
    """By slots, where the boundary matters most. The law's times are shortened to the length of the run."""
    law = Boundary.model_validate({"confirm": "20s", "rest": "30s", "memory": "5m", "enough_requests": 200})
    rows = load.at(_LAW_RATE, scale.law_seconds)
    groups = [Group("short", 8, 16_384, 26, False), Group("long", 4, LONG_CONTEXT, 6, False)]
    print(
        f"\n8. The law of the boundary: {load.name} at {_LAW_RATE:g} req/s, 8 + 4 engines with slots by "
        f"context, {scale.law_seconds:.0f} s"
    )
    _head()
    found: Json = {}
    for start in scale.law_starts:
        for what, wanted in (("fixed", None), ("law", law)):
            run = Replay(rows, ENGINE, groups, part_tokens=4096, boundary=start, law=wanted)
            outcome = run.go()
            _line(f"{what} from {start:,}", outcome)
            for at, _, sentence in outcome.boundaries:
                print(f"         {at:5.0f} s  {sentence}")
            found[f"{what} from {start}"] = {
                **_fields(outcome),
                "boundaries": [(at, tokens) for at, tokens, _ in outcome.boundaries],
            }
    return found


def _head() -> None:
    print(
        f"      {'':<28}{'engines':>8}{'good':>8}{'refused':>8}{'cut':>5}{'spilled':>8}"
        f"{'preempted':>10}{'KV P95':>7}   P99 TTFT by pool; of short, long requests"
    )


def _line(what: str, outcome: Outcome) -> None:
    pools = ", ".join(f"{name} {pool.ttft_p99_seconds:.2f}" for name, pool in outcome.pools.items())
    sizes = ", ".join(f"{size.ttft_p99_seconds:.2f}" for size in outcome.sizes.values())
    print(
        f"      {what:<28}{outcome.engines:>8}{outcome.good_ratio:>8.1%}{outcome.refused:>8}{outcome.cut:>5}"
        f"{outcome.spilled:>8}{outcome.preempted_per_1000:>10.1f}{outcome.kv_usage:>7.0%}"
        f"   {pools} s; {sizes} s"
    )


def _fields(outcome: Outcome) -> Json:
    fields = outcome._asdict()
    del fields["boundaries"]
    for part in ("pools", "sizes"):
        fields[part] = {name: pooled._asdict() for name, pooled in fields[part].items()}
    return fields


def report(*, quick: bool) -> Json:
    """Everything, printed as it is found."""
    scale = QUICK if quick else FULL
    published = [] if quick else traces()
    if not published:
        print(f"Published traces are left out: {'--quick' if quick else f'there is no {TRACES}'}.\n")
    loads = [load._replace(rate=load.rate * scale.rates) for load in (*published, *own())]
    by_name = {load.name: load for load in loads}
    reasoning = by_name.get("reasoning", by_name["own reasoning"])
    chat = by_name.get("azure", by_name["own azure-like"])
    return {
        "paper": paper_section(),
        "first_order": first_order_section(scale),
        "plans": plan_section(loads),
        "replays": replay_section(loads, scale),
        "preemptions": preemption_section(reasoning, scale),
        "sensitivity": sensitivity_section(chat, scale),
        "calibration": calibration_section(loads, scale),
        "law": law_section(by_name["own reasoning"], scale),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    gc.disable()  # a run makes no cycles to collect
    figures = report(quick=options.quick)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
