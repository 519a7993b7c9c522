"""How fast scenarios run, with all production code inside; prints a table, writes JSON.

    python benchmarks/bench_scenarios.py [--json PATH] [--quick]

1. Built-in scenarios, one after the other on one core: simulated seconds (of all engines) a CPU second.
2. 8 engines, 1 hour, twice the load at which an uncontrolled fleet peaks: seconds on the wall and of CPU.
3. The same for 5 minutes with 1 to 32 engines: CPU seconds for each engine, which should not grow.
`--quick` leaves out 2.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import NamedTuple

from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.policies import policy_named
from controlplane.simulator.scenario.reading import load_scenario, parse_scenario
from controlplane.simulator.scenario.result import result_of
from controlplane.simulator.scenario.run import Run

RESULTS = Path(__file__).parent / "results" / "scenarios.json"
LINE = "{:<22}{:<10}{:>8}{:>12}{:>10}{:>12}{:>14}"
CELLS = [
    ("steady-0.8x", "slo"),
    ("steady-2x", "none"),
    ("steady-2x", "slo"),
    ("steady-2x", "gradient2"),
    ("steady-2x", "envoy"),
    ("steady-10x", "slo"),
    ("heavy-tail", "slo"),
    ("small-2x", "slo"),
    ("replica-lost", "slo"),
    ("noisy-tenant", "slo"),
]
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


def cost(scenario: Scenario) -> Cost:
    run = Run(scenario)
    cpu, wall = time.process_time(), time.perf_counter()
    run.go()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    offered = result_of(run, "bench").users.tries
    return Cost(scenario.duration * len(scenario.replica_names), cpu, wall, offered)


def fleet(engines: int, duration: str) -> Scenario:
    return parse_scenario(FLEET.format(engines=engines, duration=duration, rate=17.5 * engines), "", Path())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()

    print("1. Built-in scenarios on one core")
    print(LINE.format("scenario", "policy", "engines", "simulated s", "CPU s", "x real time", "us a request"))
    cells = {}
    for name, policy in CELLS:
        scenario = load_scenario(name).changed(policy=policy_named(policy))
        took = cells[f"{name} {policy}"] = cost(scenario)
        print(
            LINE.format(
                name,
                policy,
                len(scenario.replica_names),
                f"{took.simulated_seconds:.0f}",
                f"{took.cpu_seconds:.2f}",
                f"{took.speed:.0f}",
                f"{1e6 * took.cpu_seconds / took.requests:.0f}",
            )
        )

    hour = None
    if not options.quick:
        hour = cost(fleet(8, "1h"))
        print(
            f"2. 8 engines, 1 hour, 2x: {hour.wall_seconds:.1f} s on the wall, "
            f"{hour.cpu_seconds:.1f} s of CPU, {hour.requests} requests"
        )

    print("3. 5 minutes at 2x: CPU seconds an engine")
    grown = {engines: cost(fleet(engines, "5m")) for engines in (1, 2, 4, 8, 16, 32)}
    for engines, took in grown.items():
        print(f"   {engines:>3} engines {took.cpu_seconds / engines:7.3f}")

    options.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        "python": platform.python_version(),
        "scenarios": {name: {**took._asdict(), "speed": took.speed} for name, took in cells.items()},
        "eight_engines_one_hour": hour._asdict() if hour is not None else None,
        "by_engines": {engines: took._asdict() for engines, took in grown.items()},
    }
    options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
