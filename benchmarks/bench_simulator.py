"""How fast the simulator is; prints a table, writes JSON.

    python benchmarks/bench_simulator.py [--json PATH]

1. One H100 8B engine under several loads, on one core: simulated seconds a second of CPU time, told event by
event, as a gateway needs it, and with a scrape every 5 s. 2. 8 such engines, 1 hour, twice their capacity:
seconds on the wall. 3. The same for 5 minutes with 1 to 32 engines: CPU seconds for each engine.

The garbage collector is off: a run makes no cycles to collect, and looking for them takes a quarter of the
time.
"""

import argparse
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from controlplane.simulator.clients import Clients, HangUp, Send
from controlplane.simulator.constants import engine_model
from controlplane.simulator.engine import Engine
from controlplane.simulator.lengths import Fixed
from controlplane.simulator.metrics_page import Replica, scrape
from controlplane.simulator.mixes import mix
from controlplane.simulator.request import Finished, FirstToken
from controlplane.simulator.timeline import Timeline
from controlplane.simulator.workload import ClosedLoop, Source

RESULTS = Path(__file__).parent / "results" / "bench_simulator.json"
MODEL = engine_model("h100-8b")
CAPACITY = {"azure-conv": 20.0, "r1-reasoning": 7.0}
"""Requests a second that one engine can about finish."""

SCRAPE_SECONDS = 5.0


class Cost(NamedTuple):
    """What a run took and did."""

    simulated_seconds: float
    cpu_seconds: float
    wall_seconds: float
    steps: int
    requests: int
    tokens: int
    preemptions: int
    mean_running: float

    @property
    def speed(self) -> float:
        """Simulated seconds of all engines a second of CPU time."""
        return self.simulated_seconds / self.cpu_seconds


def simulate(sources: Sequence[Source], engines: int, seconds: float) -> Cost:
    """Round robin over `engines`; every one is scraped every 5 s, every event is looked at."""
    fleet = [Engine(MODEL.law, MODEL.settings) for _ in range(engines)]
    replica = Replica("m", 0.0, MODEL.settings)
    clients = Clients(sources, np.random.default_rng(1), seconds)
    timeline = Timeline(fleet)
    where: dict[str, int] = {}
    turn, next_scrape, running = 0, SCRAPE_SECONDS, []
    cpu, wall = time.process_time(), time.perf_counter()
    while True:
        now = min(clients.next_event_time(), next_scrape, timeline.next_time())
        if now >= seconds:
            break
        for action in clients.advance(now):
            if isinstance(action, Send):
                place = where[action.request.id] = turn % engines
                turn += 1
                fleet[place].submit(action.request, now)
                timeline.changed(place)
            elif isinstance(action, HangUp):
                fleet[where.pop(action.request_id)].abort(action.request_id, now)
        for place in timeline.due(now):
            for event in fleet[place].advance(now):
                if isinstance(event, FirstToken):
                    clients.first_token(event.request_id)
                elif isinstance(event, Finished):
                    del where[event.request_id]
                    clients.finished(event.request_id, now)
            timeline.changed(place)
        if now >= next_scrape:
            next_scrape += SCRAPE_SECONDS
            for engine in fleet:
                scrape(replica, engine.counters, "r", now, 0.01)
                running.append(engine.counters.running)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    counters = [engine.counters for engine in fleet]
    return Cost(
        seconds * engines,
        cpu,
        wall,
        sum(c.steps for c in counters),
        sum(c.length + c.stopped for c in counters),
        sum(c.generation_tokens for c in counters),
        sum(c.preemptions for c in counters),
        sum(running) / max(len(running), 1),
    )


def overload(name: str, factor: float, engines: int = 1) -> Sequence[Source]:
    """A mix at `factor` times the capacity of `engines`."""
    return mix(name).build_steady(CAPACITY[name] * factor * engines)


def one_engine() -> dict[str, Cost]:
    """Section 1, by kind of load."""
    full = Source("users", ClosedLoop(256, start_seconds=5.0), Fixed(500), Fixed(1000))
    return {
        "conversation, 2x capacity (full batch)": simulate(overload("azure-conv", 2), 1, 600),
        "256 users, 1000 tokens each (full batch)": simulate([full], 1, 600),
        "reasoning, 2x capacity (preempting)": simulate(overload("r1-reasoning", 2), 1, 600),
        "conversation, 0.8x capacity": simulate(overload("azure-conv", 0.8), 1, 600),
        "conversation, 0.05x capacity": simulate(overload("azure-conv", 0.05), 1, 600),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    path = parser.parse_args().json
    gc.disable()

    print("1. One engine, one core: simulated seconds a CPU second")
    alone = one_engine()
    for title, cost in alone.items():
        print(
            f"   {title:<42}{cost.speed:8.0f} x   {1e6 * cost.cpu_seconds / cost.steps:6.1f} us a step, "
            f"{cost.mean_running:5.0f} running, {cost.requests} requests, {cost.preemptions} preemptions"
        )

    print("2. 8 engines, 1 hour, 2x capacity")
    fleet = simulate(overload("azure-conv", 2, 8), 8, 3600)
    print(
        f"   {fleet.wall_seconds:.1f} s on the wall, {fleet.cpu_seconds:.1f} s of CPU, "
        f"{fleet.requests} requests finished, {fleet.tokens / 1e6:.0f} M tokens"
    )

    print("3. 5 minutes at 2x capacity: CPU seconds an engine")
    grown = {count: simulate(overload("azure-conv", 2, count), count, 300) for count in (1, 2, 4, 8, 16, 32)}
    for count, cost in grown.items():
        print(f"   {count:>3} engines {cost.cpu_seconds / count:7.3f}")

    path.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        "one_engine": {title: {**cost._asdict(), "speed": cost.speed} for title, cost in alone.items()},
        "eight_engines_one_hour": fleet._asdict(),
        "by_engines": {count: cost._asdict() for count, cost in grown.items()},
    }
    path.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
