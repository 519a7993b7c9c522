"""What it costs to poll a fleet: 10 to 1,000 targets with 639-line vLLM pages, every 5 seconds.

    python benchmarks/bench_fleet.py [--targets 10 100 300 1000] [--seconds 30] [--loop uvloop|asyncio]
                                     [--close] [--gzip] [--profile]

Another process serves pages made beforehand from a captured one, on a port of 127.0.0.1 for each target;
at each scrape half of the numbers are new, counters growing. This process polls them with the daemon's own
parts (client, poller, reader, dialect) and decides once a second, as the daemon does. After two intervals it
measures for `--seconds`:

    core        CPU time of this process over wall time, in percent of one core
    http        of that: client, event loop, schedule (what is not reading, translating or deciding)
    read        of that: text to numbers
    translate   of that: numbers to signals
    decide      of that: the tick
    journal     of that: the thread that writes the journal
    missed      turns that did not begin in time
    late        the longest that a call of the schedule came too late

`--close` ends each connection after its page, as a server does whose keep-alive time is the polling interval.
"""

import argparse
import asyncio
import cProfile
import gzip
import json
import multiprocessing
import platform
import pstats
import random
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ParamSpec, TypeVar

import uvloop

from controlplane.daemon.journal import Entry, Journal
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.samples import Samples, Scrape, ScrapeFailure, Target
from controlplane.sources import pages as pages_module
from controlplane.sources.catalog import tick as tick_catalog
from controlplane.sources.dialect import Translator
from controlplane.sources.exposition import Reader
from controlplane.sources.fetch import Client
from controlplane.sources.pages import Pages
from controlplane.sources.poller import Poller
from controlplane.sources.rounds import CALLS_PER_INTERVAL
from controlplane.sources.settings import ScrapeSettings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "data" / "captures" / "vllm-0.32-overload.prom"
RESULT = ROOT / "benchmarks" / "results" / "fleet.json"
SETTINGS = ScrapeSettings()
WARM_SECONDS = 2 * SETTINGS.interval
BUDGET_PERCENT = 40
KINDS = 20  # of targets, each kind with numbers of its own
COUNTED = ("_total", "_bucket", "_count", "_sum")
P = ParamSpec("P")
T = TypeVar("T")


class Decider:
    """What the daemon does once a second with what came in: the tick, and the journal on a real disk."""

    def __init__(self, folder: str, targets: tuple[Target, ...]) -> None:
        self._settings = PolicySettings()
        self.journal = Journal(DaemonSettings(journal=Path(folder) / "journal.db"), tick)
        self._memory = Memory()
        self._targets: tuple[Target, ...] | None = targets

    def decide(self, results: tuple[Scrape | ScrapeFailure, ...]) -> None:
        samples, now, before = Samples(targets=self._targets, scrapes=results), time.time(), self._memory
        snapshot, decisions, self._memory = tick(samples, before, self._settings, now)
        entry = Entry(now, self._settings, samples, decisions, snapshot.events, (), before, self._memory)
        self.journal.append(entry)
        self._targets = None


# --- the fleet


def follow_ups(text: str, count: int, rng: random.Random) -> list[bytes]:
    """Pages that follow each other: half of the metrics change each time, a histogram as a whole."""
    lines = text.split("\n")
    groups: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        if line and not line.startswith("#"):
            name = line.partition("{")[0]
            groups.setdefault(name, []).append(place)
    pages = []
    for _ in range(count):
        for name, places in groups.items():
            if rng.random() < 0.5:
                more = rng.randrange(1, 50)
                for place in places:
                    series, _, value = lines[place].rpartition(" ")
                    number = float(value) + more if name.endswith(COUNTED) else rng.randrange(100)
                    lines[place] = f"{series} {float(number)}"
        pages.append("\n".join(lines).encode())
    return pages


class Engine(asyncio.Protocol):
    """One target: each request gets the next page, whatever it asks for."""

    def __init__(self, answers: list[bytes], turns: list[int], *, close: bool) -> None:
        self._answers = answers
        self._turns = turns
        self._close = close

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(self._answers[self._turns[0] % len(self._answers)])
            self._turns[0] += 1
            if self._close:
                self._transport.close()


def serve(ports: Connection, count: int, scrapes: int, close: bool, packed: bool) -> None:
    """The process of the fleet: listens, tells its ports, serves until it is ended."""
    open_files()
    rng = random.Random(1)
    text = PAGE.read_text()
    kinds = [
        [answer(page, close=close, packed=packed) for page in follow_ups(text, scrapes, rng)]
        for _ in range(min(KINDS, count))
    ]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        found = []
        for i in range(count):
            answers, turns = kinds[i % len(kinds)], [0]
            server = await loop.create_server(
                lambda answers=answers, turns=turns: Engine(answers, turns, close=close), "127.0.0.1", 0
            )
            found.append(server.sockets[0].getsockname()[1])
        ports.send(found)
        await asyncio.Event().wait()

    run_in("uvloop", run)


def answer(page: bytes, *, close: bool, packed: bool) -> bytes:
    body = gzip.compress(page) if packed else page
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=1.0.0\r\ncontent-length: {len(body)}\r\n"
    head += "content-encoding: gzip\r\n" if packed else ""
    head += "connection: close\r\n" if close else ""
    return head.encode() + b"\r\n" + body


# --- measuring


@dataclass
class Row:
    targets: int
    scrapes: int
    failures: int
    missed: int
    core_percent: float
    http_percent: float
    read_percent: float
    translate_percent: float
    decide_percent: float
    journal_percent: float
    late_seconds: float
    scrape_p99_seconds: float
    memory_mb: float


class Spent:
    """CPU seconds of this thread in some functions, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        self.seconds[name] = 0.0

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.thread_time() - start

        return run


async def poll(ports: list[int], seconds: float, folder: str, profile: cProfile.Profile | None) -> Row:
    spent = Spent()
    targets = tuple(Target(f"127.0.0.1:{port}", "chat", f"http://127.0.0.1:{port}/metrics") for port in ports)
    decider = Decider(folder, targets)
    deciding = spent.timed("decide", decider.decide)

    class TimedReader(Reader):
        read = spent.timed("read", Reader.read)  # type: ignore[assignment]

    class TimedTranslator(Translator):
        translate = spent.timed("translate", Translator.translate)  # type: ignore[assignment]

    pages_module.Reader, pages_module.Translator = TimedReader, TimedTranslator  # type: ignore[misc]
    step = SETTINGS.interval / CALLS_PER_INTERVAL
    results = failures = 0
    late = 0.0
    async with Client() as client:
        poller = Poller(SETTINGS, client.get, Pages(tick_catalog(), SETTINGS.max_body).reader_for)
        poller.set_targets(targets, time.monotonic())
        begin = time.monotonic()
        measuring = False
        calls, called = 0, begin
        while (now := time.monotonic()) < begin + WARM_SECONDS + seconds:
            if not measuring and now >= begin + WARM_SECONDS:
                measuring = True
                start, cpu, missed = now, time.process_time(), poller.missed_turns
                loop_cpu = time.thread_time()
                before = poller.counts.seconds
                spent.seconds = dict.fromkeys(spent.seconds, 0.0)
                poller.take()
                results = failures = 0
                late = 0.0
                if profile:
                    profile.enable()
            poller.poll_due(now)
            if calls % 4 == 0:
                taken = poller.take()
                results += len(taken)
                failures += sum(isinstance(result, ScrapeFailure) for result in taken)
                deciding(taken)
            calls += 1
            late, called = max(late, now - called - step), now
            await asyncio.sleep(max(0.0, called + step - time.monotonic()))
        if profile:
            profile.disable()
        wall, used = time.monotonic() - start, time.process_time() - cpu
        in_loop = time.thread_time() - loop_cpu
        row = Row(
            targets=len(ports),
            scrapes=results + len(poller.take()),
            failures=failures,
            missed=poller.missed_turns - missed,
            core_percent=100 * used / wall,
            http_percent=100 * (in_loop - sum(spent.seconds.values())) / wall,
            read_percent=100 * spent.seconds["read"] / wall,
            translate_percent=100 * spent.seconds["translate"] / wall,
            decide_percent=100 * spent.seconds["decide"] / wall,
            journal_percent=100 * (used - in_loop) / wall,
            late_seconds=late,
            scrape_p99_seconds=poller.counts.seconds.growth(before).quantile(0.99) or 0.0,
            memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )
        await poller.close()
    if decider.journal.failures:
        raise SystemExit(f"the journal lost {decider.journal.failures} ticks: {decider.journal.error}")
    decider.journal.close()
    return row


def measure(count: int, arguments: argparse.Namespace, results: Connection) -> None:
    """One row, in a process of its own, so that no row inherits memory or connections of another."""
    open_files()
    near, far = multiprocessing.Pipe()
    scrapes = round((WARM_SECONDS + arguments.seconds) / SETTINGS.interval) + 4
    fleet = multiprocessing.Process(target=serve, args=(far, count, scrapes, arguments.close, arguments.gzip))
    fleet.start()
    profile = cProfile.Profile() if arguments.profile else None
    try:
        ports = near.recv()
        with tempfile.TemporaryDirectory() as folder:
            results.send(run_in(arguments.loop, lambda: poll(ports, arguments.seconds, folder, profile)))
    finally:
        fleet.kill()
        fleet.join()
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def run_in(loop: str, run: Callable[[], object]) -> object:
    if loop == "uvloop":
        return uvloop.run(run())
    return asyncio.run(run())


def open_files() -> None:
    """As many open files as this process may have: each target takes one or two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the polling of a fleet.")
    parser.add_argument("--targets", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--close", action="store_true")
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    how = f"{arguments.loop}{', --close' * arguments.close}{', --gzip' * arguments.gzip}"
    print(f"Python {platform.python_version()}, {how}, {arguments.seconds:g} s a row; percent of one core\n")
    print("targets scrapes failed missed   core   http   read translate decide journal   late    p99  memory")
    rows = []
    for count in arguments.targets:
        near, far = multiprocessing.Pipe()
        child = multiprocessing.Process(target=measure, args=(count, arguments, far))
        child.start()
        far.close()
        row = near.recv()
        child.join()
        rows.append(asdict(row))
        print(
            f"{row.targets:>7} {row.scrapes:>7} {row.failures:>6} {row.missed:>6} {row.core_percent:>5.1f}% "
            f"{row.http_percent:>5.1f}% {row.read_percent:>5.1f}% {row.translate_percent:>8.1f}% "
            f"{row.decide_percent:>5.1f}% {row.journal_percent:>6.1f}% {row.late_seconds:>5.2f}s "
            f"{row.scrape_p99_seconds:>5.2f}s {row.memory_mb:>4.0f} MB"
        )
    within = row.core_percent <= BUDGET_PERCENT and not row.missed and not row.failures
    print(
        f"\nbudget of {BUDGET_PERCENT} % of a core for {row.targets} targets, no missed turn, no failure: "
        f"{'kept' if within else 'MISSED'}"
    )
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    environment = {"python": platform.python_version(), "how": how, "seconds": arguments.seconds}
    RESULT.write_text(json.dumps({"environment": environment, "rows": rows}, indent=2) + "\n")
    print(f"saved: {RESULT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
