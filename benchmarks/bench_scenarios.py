"""All built-in scenarios: what they do to a fleet, and how fast they run; prints tables, writes JSON.

    python benchmarks/bench_scenarios.py [--json PATH] [--processes N] [--quick]

1. Every built-in scenario without control, with the best of a few fixed limits (an oracle: nobody knows it
beforehand) and with the default law, on the same requests: the share of requests that were good, good tokens
a second, how far the law came towards the oracle; and simulated seconds (of all engines) a CPU second.
2. 8 engines, 1 hour, twice the load at which an uncontrolled fleet peaks: seconds on the wall and of CPU.
3. The same for 5 minutes with 1 to 32 engines: CPU seconds for each engine, which should not grow.
`--quick` takes the first 30 seconds after the warm-up only, and leaves out 2. The whole takes about eight
minutes on two cores.
"""

import argparse
import json
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.policies import policy_named
from controlplane.simulator.scenario.reading import built_in_names, load_scenario, parse_scenario
from controlplane.simulator.scenario.result import Result, result_of
from controlplane.simulator.scenario.run import Run

RESULTS = Path(__file__).parent / "results" / "scenarios.json"
LIMITS = (8, 12, 20, 32, 50, 80, 128, 200)
"""Fixed limits of a replica that are tried; the best of them is within a few percent of the best of all."""

QUICK_SECONDS = 30.0
LINE = "{:<20}{:>7}{:>16}{:>22}{:>16}{:>11}{:>9}{:>9}{:>12}"
FLEET = """\
title: many engines
duration: {duration}
fleet:
  - {{engine: h100-8b, replicas: {engines}}}
slo: {{ttft: 1s, tpot: 50ms}}
workload:
  times: 2
  sources:
    - {{name: chat, mix: azure-conv, rate: {rate}}}
"""


class Cost(NamedTuple):
    """What a run took and did."""

    simulated_seconds: float
    cpu_seconds: float
    wall_seconds: float
    requests: int

    @property
    def speed(self) -> float:
        """Simulated seconds of all engines a second of CPU time."""
        return self.simulated_seconds / self.cpu_seconds


class Ran(NamedTuple):
    """A run's result, and what it cost."""

    result: Result
    cost: Cost

    @property
    def good(self) -> float:
        """The share of the requests that ended that were good."""
        one = self.result
        return one.good / max(1, one.completed + one.refused + one.failed + one.gave_up)


def ran(name: str, policy: str, *, quick: bool) -> Ran:
    """A built-in scenario under a policy. AssertionError where a law of every run is broken."""
    scenario = load_scenario(name).changed(policy=policy_named(policy))
    if quick:
        scenario = scenario.model_copy(update={"duration": scenario.warmup + QUICK_SECONDS})
    return measured(scenario, name)


def measured(scenario: Scenario, name: str) -> Ran:
    run = Run(scenario)
    cpu, wall = time.process_time(), time.perf_counter()
    run.go()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    result = result_of(run, name)
    seconds = scenario.duration * len(scenario.replica_names)
    return Ran(result, Cost(seconds, cpu, wall, result.users.tries))


def fleet(engines: int, duration: str) -> Scenario:
    return parse_scenario(FLEET.format(engines=engines, duration=duration, rate=17.5 * engines), "", Path())


def compare(processes: int, *, quick: bool) -> dict[str, dict[str, object]]:
    """Section 1, by scenario."""
    policies = ("none", "slo", *(f"fixed:{limit}" for limit in LIMITS))
    print("1. Built-in scenarios: share of good requests and good tokens/s by policy")
    print(
        LINE.format(
            "scenario",
            "load",
            "no control",
            "best fixed limit",
            "default law",
            "of best",
            "refused",
            "gave up",
            "x real time",
        )
    )
    table: dict[str, dict[str, object]] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = {
            name: {policy: pool.submit(ran, name, policy, quick=quick) for policy in policies}
            for name in built_in_names()
        }
        for name, futures in waiting.items():
            runs = {policy: future.result() for policy, future in futures.items()}
            alone, law = runs["none"], runs["slo"]
            limit = max(LIMITS, key=lambda limit: runs[f"fixed:{limit}"].result.token_goodput)
            best = runs[f"fixed:{limit}"]
            of_best = law.result.token_goodput / max(best.result.token_goodput, 1.0)
            table[name] = {
                "best_limit": limit,
                "of_best": of_best,
                **{
                    what: {
                        "good_ratio": one.good,
                        "token_goodput": one.result.token_goodput,
                        "refused_ratio": one.result.refused / one.result.offered,
                        **one.cost._asdict(),
                        "speed": one.cost.speed,
                    }
                    for what, one in (("none", alone), ("best_fixed", best), ("default", law))
                },
            }
            print(
                LINE.format(
                    name,
                    f"{law.result.load:g}x",
                    f"{alone.good:4.0%} {alone.result.token_goodput:8,.0f}",
                    f"{best.good:4.0%} {best.result.token_goodput:8,.0f} at {limit:>3}",
                    f"{law.good:4.0%} {law.result.token_goodput:8,.0f}",
                    f"{of_best:.0%}",
                    f"{law.result.refused / law.result.offered:.1%}",
                    f"{law.result.gave_up / law.result.offered:.1%}",
                    f"{law.cost.speed:,.0f}",
                ),
                flush=True,
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()

    table = compare(options.processes, quick=options.quick)
    hour = None
    if not options.quick:
        hour = measured(fleet(8, "1h"), "hour").cost
        print(
            f"2. 8 engines, 1 hour, 2x: {hour.wall_seconds:.1f} s on the wall, "
            f"{hour.cpu_seconds:.1f} s of CPU, {hour.requests} requests"
        )
    print("3. 5 minutes at 2x: CPU seconds an engine")
    grown = {engines: measured(fleet(engines, "5m"), "fleet").cost for engines in (1, 2, 4, 8, 16, 32)}
    for engines, took in grown.items():
        print(f"   {engines:>3} engines {took.cpu_seconds / engines:7.3f}")

    options.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        "python": platform.python_version(),
        "scenarios": table,
        "eight_engines_one_hour": hour._asdict() if hour is not None else None,
        "by_engines": {engines: took._asdict() for engines, took in grown.items()},
    }
    options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
