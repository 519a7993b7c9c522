"""What admission costs: Python time per request and per streamed token, with no I/O around it.

    .venv/bin/python benchmarks/bench_admission.py [--requests N] [--rounds N]

Each row keeps so many requests in flight (open) on so many replicas, ends the oldest and offers a new one,
over and over: offer, admit, first token, finish. The overloaded row offers twice what the replicas hold: half
is queued and later let in by a poll or refused. The last row streams one token each. CPU time of one process,
the median over rounds; the collector of cyclic garbage is on. Budget: 60 us a request at 1,000 in flight.
"""

import argparse
import gc
import json
import platform
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaSpec
from controlplane.gateway.admission.request import Request
from controlplane.gateway.admission.settings import AdmissionSettings, TenantSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted
from controlplane.signals.decision import Mode

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "admission.json"
BUDGET_MICROSECONDS = 60.0
REQUESTS_PER_SECOND = 200.0  # of virtual time


class Row(TypedDict):
    what: str
    replicas: int
    in_flight: int
    tenants: int
    mode: str
    microseconds: float


def requests(count: int, tenants: int, *, prefixes: bool = False) -> list[Request]:
    rng = random.Random(7)
    return [
        Request(
            tenant=f"t{rng.randrange(tenants)}",
            prompt_tokens=rng.randrange(50, 2000),
            output_tokens=rng.randrange(50, 500),
            most_output_tokens=4000,
            prefix=rng.randrange(50) if prefixes else None,
        )
        for _ in range(count)
    ]


def fleet(replicas: int, limit: float, mode: Mode, tenants: int) -> Admission:
    quota = TenantSettings(tokens_per_minute=10**9, sequences=10**6)
    settings = AdmissionSettings(mode=mode, tenants={f"t{i}": quota for i in range(tenants)})
    admission = Admission(settings, gateway="bench", now=0.0)
    specs = [
        ReplicaSpec(name=f"r{i}", pool="chat", kv_tokens=4_000_000, max_model_len=32_768)
        for i in range(replicas)
    ]
    admission.set_replicas(specs, 0.0)
    admission.set_limits({spec.name: limit for spec in specs}, {}, 0.0)
    return admission


def churn(admission: Admission, todo: list[Request], in_flight: int) -> float:
    """Seconds of CPU time a request, from offer to finish, once `in_flight` are there."""
    rng = random.Random(11)
    draws = [rng.random() for _ in range(1024)]
    open_tickets: deque[Ticket] = deque()
    usage = Usage(500, 200)
    now = 0.0
    spent = 0.0
    measured = 0
    for number, request in enumerate(todo):
        now += 1 / REQUESTS_PER_SECOND
        begin = time.process_time_ns()
        if len(open_tickets) >= in_flight:
            ended = open_tickets.popleft()
            admission.first_token(ended, now)
            admission.finished(ended, now, usage)
            measured += 1
        outcome = admission.offer(request, now, draws[number & 1023])
        if isinstance(outcome, Admitted):
            open_tickets.append(outcome.ticket)
        for outcome in admission.poll(now):
            if isinstance(outcome, Admitted):
                open_tickets.append(outcome.ticket)
        if measured:
            spent += time.process_time_ns() - begin
        if number % 200 == 0:
            admission.windows(now)
    return spent / measured / 1e9


def overload(admission: Admission, todo: list[Request]) -> float:
    """Two offers for each end: the fleet is full, half of the offers are refused. Seconds an offer."""
    rng = random.Random(11)
    open_tickets: deque[Ticket] = deque()
    usage = Usage(500, 200)
    now = 0.0
    begin = time.process_time_ns()
    for number, request in enumerate(todo):
        now += 0.5 / REQUESTS_PER_SECOND
        outcome = admission.offer(request, now, rng.random())
        if isinstance(outcome, Admitted):
            open_tickets.append(outcome.ticket)
        if number % 2 and open_tickets:
            ended = open_tickets.popleft()
            admission.first_token(ended, now)
            admission.finished(ended, now, usage)
        for outcome in admission.poll(now):
            if isinstance(outcome, Admitted):
                open_tickets.append(outcome.ticket)
        if number % 200 == 0:
            admission.windows(now)
    return (time.process_time_ns() - begin) / len(todo) / 1e9


def stream(admission: Admission, todo: list[Request]) -> float:
    """Seconds a token."""
    tickets = [
        outcome.ticket
        for request in todo[:1000]
        if isinstance(outcome := admission.offer(request, 0.5, 0.5), Admitted)
    ]
    now = 1.0
    begin = time.process_time_ns()
    for step in range(20):
        now += 0.05
        for ticket in tickets:
            admission.tokens(ticket, 1, now)
        if step % 20 == 19:
            admission.windows(now)
    return (time.process_time_ns() - begin) / (20 * len(tickets)) / 1e9


def median(run: Callable[[], float], rounds: int) -> float:
    results = []
    for _ in range(rounds):
        gc.collect()
        results.append(run() * 1e6)
    return statistics.median(results)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure admission.")
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rounds, count = arguments.rounds, arguments.requests
    rows: list[Row] = []
    for replicas, in_flight, tenants, mode in (
        (1, 1000, 1, Mode.ENFORCE),
        (8, 1000, 20, Mode.ENFORCE),
        (8, 1000, 20, Mode.OBSERVE),
        (64, 1000, 500, Mode.ENFORCE),
    ):
        todo = requests(count, tenants, prefixes=replicas == 8)

        def run(r: int = replicas, f: int = in_flight, t: int = tenants, m: Mode = mode) -> float:
            return churn(fleet(r, 10_000, m, t), todo, f)  # noqa: B023

        rows.append(
            Row(
                what="request, room for all",
                replicas=replicas,
                in_flight=in_flight,
                tenants=tenants,
                mode=mode,
                microseconds=median(run, rounds),
            )
        )
    for replicas, tenants in ((8, 20), (64, 500)):
        todo = requests(count, tenants)

        def press(r: int = replicas, t: int = tenants) -> float:
            return overload(fleet(r, 1000 // r, Mode.ENFORCE, t), todo)  # noqa: B023

        rows.append(
            Row(
                what="offer at twice the capacity",
                replicas=replicas,
                in_flight=1000,
                tenants=tenants,
                mode=Mode.ENFORCE,
                microseconds=median(press, rounds),
            )
        )
    todo = requests(1000, 20)
    rows.append(
        Row(
            what="streamed token",
            replicas=8,
            in_flight=1000,
            tenants=20,
            mode=Mode.ENFORCE,
            microseconds=median(lambda: stream(fleet(8, 10_000, Mode.ENFORCE, 20), todo), rounds),
        )
    )
    print(f"Python {platform.python_version()}, {count} requests, {rounds} rounds, CPU time, median\n")
    print(f"{'what':<28} {'mode':<8} {'replicas':>8} {'in flight':>9} {'tenants':>7} {'time':>10}")
    for row in rows:
        print(
            f"{row['what']:<28} {row['mode']:<8} {row['replicas']:>8} {row['in_flight']:>9} "
            f"{row['tenants']:>7} {row['microseconds']:>7.1f} us"
        )
    worst = max(row["microseconds"] for row in rows if row["what"].startswith("request"))
    print(f"\nbudget {BUDGET_MICROSECONDS:.0f} us: {'kept' if worst <= BUDGET_MICROSECONDS else 'MISSED'}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    environment = {"python": platform.python_version(), "requests": count, "rounds": rounds}
    RESULT.write_text(json.dumps({"environment": environment, "rows": rows}, indent=2) + "\n")
    print(f"saved: {RESULT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
