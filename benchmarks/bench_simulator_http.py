"""A thousand streams at once against `controlplane simulate serve`, client and server on this machine.

    python benchmarks/bench_simulator_http.py [--streams 1000] [--rounds 2] [--port 18650]

Three fleets, one after the other; every stream asks, reads its answer to the end, and asks again:

    4 x 2xh100-70b-fp8    all streams are computed at once
    1 x h100-8b           256 are computed, the others wait
    4 x h100-8b           all at once, on fast GPUs: more tokens a second than one process can write singly

    streams       open at once
    chunks/s      events that the client received, one a token
    server, cpu   CPU time of the server over wall time, in percent of one core, and a chunk
    client        the same of the client, which does no more than count events
    late          how long after a step was due to end its tokens were told, over its last few thousand steps
    ttft, itl     what the client saw, against what the engine says it did: means over the same requests
    failed        streams that did not end as they should
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop
from prometheus_client.parser import text_string_to_metric_families

RESULT = Path(__file__).parent / "results" / "simulator_http.json"
FLEETS = (("2xh100-70b-fp8", 4), ("h100-8b", 1), ("h100-8b", 4))
PROMPT_WORDS, OUTPUT_TOKENS = 200, 300
RAMP_SECONDS = 3.0
LONGEST_SECONDS = 300.0
TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Run:
    """What the client saw."""

    engine: str
    rounds: int
    streams: int
    chunks: int = 0
    finished: int = 0
    failed: int = 0
    open_streams: int = 0
    most_open: int = 0
    ttfts: list[float] = field(default_factory=list)
    decodes: list[float] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def ended(self, *, good: bool) -> None:
        """One stream has had all its rounds, or failed."""
        self.finished += good
        self.failed += not good
        if self.finished + self.failed == self.streams:
            self.done.set()


class Stream(asyncio.Protocol):
    """One client: asks, counts events, asks again on the same connection."""

    def __init__(self, number: int, run: Run) -> None:
        self.number = number
        self.run = run
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.ask()

    def ask(self) -> None:
        self.asked += 1
        prompt = " ".join(f"{self.number}.{self.asked}" for _ in range(PROMPT_WORDS))
        body = json.dumps({"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True})
        head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.sent_at, self.first_at, self.tail = time.perf_counter(), 0.0, b""
        self.run.open_streams += 1
        self.run.most_open = max(self.run.most_open, self.run.open_streams)

    def data_received(self, data: bytes) -> None:
        now, run = time.perf_counter(), self.run
        # The mark of an event may be split between two reads.
        joined = self.tail + data
        events = joined.count(b'data: {"') - self.tail.count(b'data: {"')
        if not self.first_at and events:
            self.first_at = now
            run.ttfts.append(now - self.sent_at)
        run.chunks += events
        self.tail = joined[-20:]
        if joined.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            run.open_streams -= 1
            run.decodes.append(now - self.first_at)
            if self.asked < run.rounds:
                self.ask()
            else:
                run.ended(good=True)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.run.done.is_set():
            self.run.ended(good=False)


async def measure(run: Run, replicas: int, port: int, pid: int) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    begun, used, own = time.perf_counter(), cpu_seconds(pid), time.process_time()
    transports = []
    for number in range(run.streams):
        target = port + number % replicas
        transport, _ = await loop.create_connection(
            lambda number=number: Stream(number, run), "127.0.0.1", target
        )
        transports.append(transport)
        # Not all at the same moment: they would be computed in lockstep for ever.
        await asyncio.sleep(RAMP_SECONDS / run.streams)
    await asyncio.wait_for(run.done.wait(), LONGEST_SECONDS)
    seconds = time.perf_counter() - begun
    used, own = cpu_seconds(pid) - used, time.process_time() - own
    for transport in transports:
        transport.abort()
    says = await asyncio.to_thread(sums, replicas, port)
    late = [
        json.loads(await asyncio.to_thread(get, f"http://127.0.0.1:{port + i}/sim"))["lateness"]
        for i in range(replicas)
    ]
    tokens = len(run.decodes) * (OUTPUT_TOKENS - 1)
    return {
        "engine": run.engine,
        "replicas": replicas,
        "streams": run.most_open,
        "failed": run.failed,
        "chunks_per_second": run.chunks / seconds,
        "server_core_percent": 100 * used / seconds,
        "server_us_per_chunk": 1e6 * used / run.chunks,
        "client_core_percent": 100 * own / seconds,
        "late_p50_ms": 1e3 * max(one["p50_seconds"] for one in late),
        "late_p99_ms": 1e3 * max(one["p99_seconds"] for one in late),
        "ttft_client_ms": 1e3 * sum(run.ttfts) / len(run.ttfts),
        "ttft_engine_ms": 1e3 * says[f"{TTFT}_sum"] / says[f"{TTFT}_count"],
        "itl_client_ms": 1e3 * sum(run.decodes) / tokens,
        "itl_engine_ms": 1e3 * says[f"{ITL}_sum"] / says[f"{ITL}_count"],
    }


def sums(replicas: int, port: int) -> dict[str, float]:
    """Sums over the replicas of all samples of one name."""
    found: dict[str, float] = {}
    for replica in range(replicas):
        page = get(f"http://127.0.0.1:{port + replica}/metrics").decode()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return cast(bytes, answer.read())


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def bench(engine: str, replicas: int, streams: int, rounds: int, port: int) -> dict[str, object]:
    """One fleet."""
    command = Path(sys.executable).with_name("controlplane")
    options = ["--engine", engine, "--port", str(port), "--replicas", str(replicas)]
    server = subprocess.Popen([command, "simulate", "serve", *options], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        for _ in range(replicas + 1):
            server.stdout.readline()
        return uvloop.run(measure(Run(engine, rounds, streams), replicas, port, server.pid))
    finally:
        server.terminate()
        server.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--port", type=int, default=18650)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = []
    for engine, replicas in FLEETS:
        row = bench(engine, replicas, arguments.streams, arguments.rounds, arguments.port)
        rows.append(row)
        print(f"{replicas} x {engine}")
        for name, value in row.items():
            if isinstance(value, float):
                print(f"  {name:<22} {value:>10,.1f}")
            elif isinstance(value, int):
                print(f"  {name:<22} {value:>10,}")
    RESULT.parent.mkdir(exist_ok=True)
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    RESULT.write_text(json.dumps({**machine, "fleets": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
