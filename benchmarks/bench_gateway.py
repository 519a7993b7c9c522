"""What the gateway costs, against going direct and against other proxies, all in one run.

    .venv/bin/python benchmarks/bench_gateway.py [--only NAME ...] [--streams 64 256 1000] [--seconds 5]

A stand-in engine, one proxy at a time and this load generator are three processes on loopback. The engine
gives each stream 20 tokens a second, each token one chunk. While so many streams are open through the proxy,
a probe asks for a stream in turn directly and through the proxy; what the proxy adds to the TTFT is the
difference of the two quantiles. CPU time is that of the proxy's processes, from /proc:

    added TTFT   p50 and p99 in milliseconds, at so many open streams
    core         CPU time over wall time with them, in percent of one core
    chunks/s     chunks relayed for one second of CPU time
    requests/s   short answers (not streamed) for one second of CPU time; 16 connections
    held         streams that had their tokens at 20 a second to within 2 %

A proxy that is not installed is left out, which is said. `--peers PYTHON` is the interpreter that has the
packages of `benchmarks/gateway/requirements.txt`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parent))
from gateway.load import Sent, Streams, connect, request

HERE = Path(__file__).parent / "gateway"
RESULT = Path(__file__).parent / "results" / "gateway.json"
RATE = 20.0
TOKENS = 400
_PROBE_SECONDS = 5.0  # a proxy that takes longer for a first token does not hold so many streams
TICKS = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def commands(peers: str) -> dict[str, list[str]]:
    """How each proxy is started; PORT and UPSTREAM are put in."""
    found = {
        "controlplane": [sys.executable, str(HERE / "serve.py"), "PORT", "UPSTREAM"],
        "protocols-httptools": [peers, str(HERE / "peers" / "protocols_httptools.py"), "PORT", "UPSTREAM"],
        "asgi-aiohttp": [peers, str(HERE / "peers" / "asgi_aiohttp.py"), "PORT", "UPSTREAM"],
        "aiohttp": [peers, str(HERE / "peers" / "aiohttp_both.py"), "PORT", "UPSTREAM"],
        "starlette-httpx": [peers, str(HERE / "peers" / "starlette_httpx.py"), "PORT", "UPSTREAM"],
    }
    router = Path(peers).with_name("vllm-router")
    if router.exists():
        found["vllm-router"] = [
            *(
                str(router),
                "--host",
                "127.0.0.1",
                "--port",
                "PORT",
                "--worker-urls",
                "http://127.0.0.1:UPSTREAM",
            ),
            *("--policy", "round_robin", "--prometheus-port", "METRICS", "--log-level", "error"),
        ]
    return found


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens on `port` of loopback within 20 s; it is ended afterwards."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, cwd=tempfile.gettempdir()
        )
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
                    break
                if process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(log.read().decode(errors="replace")[-800:])
                time.sleep(0.1)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def cpu_seconds(session: int) -> float:
    """CPU time that the processes of a session have taken so far."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    total += int(fields[11]) + int(fields[12])
    return total / TICKS


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


async def probes(direct: int, proxy: int, seconds: float) -> tuple[list[float], list[float]]:
    """TTFT of requests in turn direct and through the proxy."""
    clients = await connect(direct), await connect(proxy)
    times: tuple[list[float], list[float]] = ([], [])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for client, into in zip(clients, times, strict=True):
            sent = await asyncio.wait_for(client.ask(request(True, 1)), _PROBE_SECONDS)
            if sent.failed:
                raise RuntimeError("a probe failed")
            into.append(sent.first - sent.at)
        await asyncio.sleep(0.004)
    for client in clients:
        client.transport.abort()
    return times


async def with_streams(direct: int, proxy: int, session: int, count: int, seconds: float) -> Row:
    streams = Streams(proxy, count, RATE, TOKENS)
    await streams.start()
    for _ in range(100):  # until all of them flow
        await asyncio.sleep(0.1)
        if all(client.sent.first for client in streams.clients):
            break
    await asyncio.sleep(1.0)
    begin, cpu, chunks = time.monotonic(), cpu_seconds(session), streams.chunks()
    try:
        straight, through = await probes(direct, proxy, seconds)
    except TimeoutError:
        await streams.stop()
        return {"streams": count, "held": False}
    wall, cpu, chunks = time.monotonic() - begin, cpu_seconds(session) - cpu, streams.chunks() - chunks
    failed = sum(sent.failed for sent in streams.sent)
    await streams.stop()
    return {
        "streams": count,
        "probes": len(through),
        "direct_ttft_p50_ms": 1e3 * quantile(straight, 0.5),
        "direct_ttft_p99_ms": 1e3 * quantile(straight, 0.99),
        "added_ttft_p50_ms": 1e3 * (quantile(through, 0.5) - quantile(straight, 0.5)),
        "added_ttft_p99_ms": 1e3 * (quantile(through, 0.99) - quantile(straight, 0.99)),
        "core_percent": 100 * cpu / wall,
        "chunks_per_cpu_second": chunks / max(cpu, 1e-9),
        "held": chunks / wall >= 0.98 * RATE * count,
        "failed": failed,
    }


async def short_answers(port: int, session: int, seconds: float) -> float:
    """Requests for a second of CPU time."""
    asked = request(False)
    done = 0

    async def keep(until: float) -> None:
        nonlocal done
        client = await connect(port)
        while time.monotonic() < until:
            sent: Sent = await client.ask(asked)
            done += not sent.failed
        client.transport.abort()

    cpu = cpu_seconds(session)
    until = time.monotonic() + seconds
    await asyncio.gather(*(keep(until) for _ in range(16)))
    return done / max(cpu_seconds(session) - cpu, 1e-9)


async def measure(direct: int, proxy: int, session: int, counts: list[int], seconds: float) -> Row:
    await probes(direct, proxy, 0.5)  # warm both ways
    return {
        "requests_per_cpu_second": await short_answers(proxy, session, min(seconds, 3.0)),
        "with_streams": [await with_streams(direct, proxy, session, count, seconds) for count in counts],
    }


HEADING = (
    f"{'proxy':<22}{'streams':>8}{'added p50':>11}{'added p99':>11}{'direct p99':>12}{'core':>7}"
    f"{'chunks/s':>10}{'held':>6}{'requests/s':>12}"
)


def line(name: str, row: Row, one: Row) -> str:
    """One row of the table."""
    if "chunks_per_cpu_second" not in one:
        return f"{name:<22}{one['streams']:>8}   no first token within {_PROBE_SECONDS:g} s"
    return (
        f"{name:<22}{one['streams']:>8}{one['added_ttft_p50_ms']:>9.2f}ms{one['added_ttft_p99_ms']:>9.2f}ms"
        f"{one['direct_ttft_p99_ms']:>10.2f}ms{one['core_percent']:>6.0f}%{one['chunks_per_cpu_second']:>10.0f}"
        f"{'yes' if one['held'] else 'no':>6}{row['requests_per_cpu_second']:>12.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--streams", nargs="+", type=int, default=[64, 256, 1000])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--peers", default=shutil.which("python3") or sys.executable)
    parser.add_argument("--keep", action="store_true", help="write the figures to benchmarks/results")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows: dict[str, Row] = {}
    upstream = free_port()
    engine = [sys.executable, str(HERE / "engine.py"), str(upstream)]
    print(HEADING)
    with running(engine, upstream):
        for name, command in commands(args.peers).items():
            if args.only and name not in args.only:
                continue
            port = free_port()
            put = {"PORT": str(port), "UPSTREAM": str(upstream), "METRICS": str(free_port())}
            filled = [put.get(part, part.replace("UPSTREAM", str(upstream))) for part in command]
            try:
                with running(filled, port) as process:
                    time.sleep(3.0)  # until it knows its engine
                    row = uvloop.run(measure(upstream, port, process.pid, args.streams, args.seconds))
            except (RuntimeError, OSError) as error:
                print(
                    f"{name:<22} left out: {(str(error).strip().splitlines() or [type(error).__name__])[-1]}"
                )
                continue
            rows[name] = row
            for one in row["with_streams"]:
                print(line(name, row, one), flush=True)
    if args.keep:
        RESULT.write_text(
            json.dumps(
                {"python": platform.python_version(), "load_average": os.getloadavg()[0], "rows": rows},
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
