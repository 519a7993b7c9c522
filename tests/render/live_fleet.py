"""Everything for real, but for the GPUs: simulated engines, daemon, gateway, clients, Prometheus.

Prometheus runs the rendered rules, evaluated every second so that a test need not wait.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from prometheus_server import free_port

from controlplane.render import alertmanager
from controlplane.render.files import alert_files
from controlplane.render.settings import RenderSettings

CONTROLPLANE = Path(sys.executable).with_name("controlplane")
PROMETHEUS = shutil.which("prometheus")
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
TENANTS = {"acme": "key-of-acme", "umbrella": "key-of-umbrella"}
API_TOKEN, CONTROL_TOKEN = "token-of-the-api", "token-of-the-control"
POOLS = {"chat": ("h100-8b", 2), "code": ("2xh100-70b-fp8", 1)}

CONFIG = """
pools:
  chat:
    targets: {{static: [{chat}]}}
    slo: {{ttft: 1s, tpot: 50ms, objective: 95%}}
    scale: {{min: 1, max: 4}}
  code:
    targets: {{static: [{code}]}}
    slo: {{ttft: 1s, tpot: 50ms, objective: 95%}}
scrape: {{interval: 1s, timeout: 900ms}}
policy: {{stale_after: 5s, rate_window: 5s, goodput_cell: 5s, window: 20s}}
daemon: {{tick: 1s, journal: journal.db}}
api: {{listen: "127.0.0.1:{api}", token_env: API_TOKEN}}
gpus: {{nodes: {{node-code: {{dcgm: "http://127.0.0.1:{code_gpu}", replicas: [{code}]}}}}}}
gateways:
  - {{url: "http://127.0.0.1:{control}", token: {{env: CONTROL_TOKEN}}}}
gateway:
  name: gw
  listen: 127.0.0.1:{gateway}
  control: {{listen: "127.0.0.1:{control}", token: {{env: CONTROL_TOKEN}}, state_file: state.json}}
  drain: {{settle: 0, deadline: 2s}}
  admission: {{mode: enforce}}
  tenants:
    acme: {{keys: [{acme}]}}
    umbrella: {{keys: [{umbrella}], tokens_per_minute: 4000, service_class: batch}}
"""


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def consecutive_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(21000 + os.getpid() % 4000, 60000, 10):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return value


def get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bytes(answer.read())
    except OSError:
        return None


@dataclass
class LiveFleet:
    """The running whole: `with LiveFleet(folder).running()`. An impatient one alerts after a second."""

    folder: Path
    rate: float = 5.0
    impatient: bool = False
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(self) -> Iterator["LiveFleet"]:
        names = ("api", "gateway", "control", "chat_gpu", "code_gpu", "prometheus", "alertmanager")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        first = consecutive_ports(3)
        self.ports |= {"chat": first, "code": first + 2}
        stop = threading.Event()
        load = threading.Thread(target=lambda: asyncio.run(self._load(stop)), daemon=True)
        try:
            self._start_all()
            load.start()
            yield self
        finally:
            stop.set()
            if load.is_alive():
                load.join(60)
            for name in list(self.processes):
                self.stop(name)

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start(self, name: str, *command: str | Path) -> None:
        env = {**os.environ, "API_TOKEN": API_TOKEN, "CONTROL_TOKEN": CONTROL_TOKEN}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=env)

    def start_daemon(self) -> None:
        self.start("daemon", CONTROLPLANE, "run", "controlplane.yaml")
        self._up("daemon", f"{self.api}/readyz")

    def _up(self, name: str, url: str) -> None:
        def answers() -> bool:
            assert self.processes[name].poll() is None, (self.folder / f"{name}.log").read_text()
            return get(url) is not None

        until(answers, f"{name} at {url}")

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.ports['api']}"

    def engine(self, pool: str, index: int = 0) -> str:
        return f"127.0.0.1:{self.ports[pool] + index}"

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of Prometheus."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expr: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return result

    def break_replica(self, pool: str, index: int = 0, **faults: object) -> None:
        body = json.dumps(faults).encode()
        request = urllib.request.Request(
            f"http://{self.engine(pool, index)}/sim/faults", data=body, method="POST"
        )
        urllib.request.urlopen(request, timeout=60).close()

    def _start_all(self) -> None:
        for pool, (engine, replicas) in POOLS.items():
            options = {
                "engine": engine,
                "replicas": replicas,
                "port": self.ports[pool],
                "dcgm-port": self.ports[f"{pool}_gpu"],
                "model": f"acme/{pool}-8b",
                "max-num-seqs": 16,
                "kv-tokens": 12000,
                "max-model-len": 4096,
            }
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            self.start(f"engines-{pool}", CONTROLPLANE, "simulate", "serve", *words)
        targets = {
            pool: ", ".join(f'"http://{self.engine(pool, i)}"' for i in range(n))
            for pool, (_, n) in POOLS.items()
        }
        keys = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in TENANTS.items()}
        (self.folder / "controlplane.yaml").write_text(CONFIG.format(**{**self.ports, **targets, **keys}))
        for pool in POOLS:
            self._up(f"engines-{pool}", f"http://{self.engine(pool)}/health")
        self.start("gateway", CONTROLPLANE, "gateway", "-c", "controlplane.yaml")
        self._up("gateway", f"http://127.0.0.1:{self.ports['gateway']}/health")
        self.start_daemon()
        self._start_prometheus()
        if ALERTMANAGER is not None:
            self._start_alertmanager()

    def _start_prometheus(self) -> None:
        for name, text in alert_files(RenderSettings()).items():
            if name.endswith("-rules.yaml"):
                rules = re.sub(r"( +for): \w+", r"\1: 1s", text) if self.impatient else text
                (self.folder / name).write_text(rules.replace("interval: 15s", "interval: 1s"))
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(self._scrape_config()))
        assert PROMETHEUS is not None
        flags = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn")
        self.start(
            "prometheus", PROMETHEUS, *flags, f"--web.listen-address=127.0.0.1:{self.ports['prometheus']}"
        )
        self._up("prometheus", f"http://127.0.0.1:{self.ports['prometheus']}/-/ready")

    def _start_alertmanager(self) -> None:
        """With the rendered routes; only the daemon is really told, everybody else is a name."""
        config = alertmanager.configuration()
        (hook,) = next(r for r in config["receivers"] if r["name"] == "controlplane")["webhook_configs"]
        config["receivers"] = [{"name": receiver["name"]} for receiver in config["receivers"]]
        hook |= {
            "url": f"{self.api}/api/v1/alerts",
            "http_config": {"authorization": {"credentials": API_TOKEN}},
        }
        next(r for r in config["receivers"] if r["name"] == "controlplane")["webhook_configs"] = [hook]
        for route in config["route"]["routes"]:
            route["group_wait"] = "200ms"
        (self.folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        assert ALERTMANAGER is not None
        flags = ("--config.file=alertmanager.yml", "--storage.path=told", "--cluster.listen-address=")
        address = f"127.0.0.1:{self.ports['alertmanager']}"
        self.start("alertmanager", ALERTMANAGER, *flags, f"--web.listen-address={address}")
        self._up("alertmanager", f"http://{address}/-/ready")

    def _scrape_config(self) -> dict[str, Any]:
        def job(name: str, *targets: tuple[str, dict[str, str]], **more: object) -> dict[str, Any]:
            return {
                "job_name": name,
                "static_configs": [{"targets": [target], "labels": labels} for target, labels in targets],
                **more,
            }

        engines = [
            (self.engine(pool, i), {"pool": pool, "node": f"node-{pool}"})
            for pool, (_, n) in POOLS.items()
            for i in range(n)
        ]
        gpus = [(f"127.0.0.1:{self.ports[f'{pool}_gpu']}", {"node": f"node-{pool}"}) for pool in POOLS]
        token = {"authorization": {"credentials": CONTROL_TOKEN}}
        return {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
            "rule_files": ["recording-rules.yaml", "alert-rules.yaml"],
            "alerting": {
                "alertmanagers": [
                    {"static_configs": [{"targets": [f"127.0.0.1:{self.ports['alertmanager']}"]}]}
                ]
            },
            "scrape_configs": [
                job("llm-engine", *engines),
                job("llm-gpu", *gpus),
                job("controlplane", (f"127.0.0.1:{self.ports['api']}", {})),
                job("controlplane-gateway", (f"127.0.0.1:{self.ports['gateway']}", {}), **token),
                job("prometheus", (f"127.0.0.1:{self.ports['prometheus']}", {})),
            ],
        }

    async def _load(self, stop: threading.Event) -> None:
        """Poisson arrivals to both pools from two tenants; some give up early, some ask for nonsense."""
        rng = random.Random(7)
        tasks: set[asyncio.Task[None]] = set()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            while not stop.is_set():
                await asyncio.sleep(rng.expovariate(self.rate))
                task = asyncio.create_task(self._ask(session, rng))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        pool = rng.choice(("chat", "chat", "code"))
        tenant = rng.choice(("acme", "acme", "umbrella"))
        words = int(rng.lognormvariate(5.0, 0.8)) % 2000 + 5
        body = {
            "model": f"acme/{pool}-8b" if rng.random() > 0.03 else "acme/nonsense",
            "prompt": "common beginning " * 20 + " ".join(f"w{rng.randrange(999)}" for _ in range(words)),
            "max_tokens": min(400, int(rng.lognormvariate(3.5, 0.8)) + 2),
            "stream": rng.random() < 0.9,
        }
        url = f"http://127.0.0.1:{self.ports['gateway']}/v1/completions"
        headers = {"authorization": f"Bearer {TENANTS[tenant]}"}
        patience = 0.3 if rng.random() < 0.1 else 30.0
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with asyncio.timeout(patience), session.post(url, json=body, headers=headers) as answer:
                await answer.read()
