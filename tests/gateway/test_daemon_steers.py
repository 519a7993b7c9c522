"""Daemon, gateway and engines as processes of their own: the loop closes, and goes on without the daemon.

The engines are simulated; more streams come than they can serve in time, so the law has something to do.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from processes import free_ports, running, until

TOKEN = "let-me-in"
CLIENTS = 32


class Site:
    """A folder with a configuration, and what runs by it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.gateway, self.control, self.api, *self.engines = free_ports(6)
        (folder / "targets.json").write_text("[]")
        (folder / "controlplane.yaml").write_text(
            f"""
pools:
  chat:
    targets: {{file_sd: [targets.json]}}
    slo: {{ttft: 500ms, tpot: 25ms}}
    limits: {{law: slo-gradient, max_limit: 24}}
scrape: {{interval: 1s, timeout: 900ms}}
policy: {{stale_after: 5s}}
daemon: {{journal: journal.db, modes: {{gateway: {{"*": enforce}}}}}}
api: {{listen: "127.0.0.1:{self.api}"}}
gateways:
  - {{url: "http://127.0.0.1:{self.control}", token: {{env: CONTROL_TOKEN}}}}
gateway:
  name: gw
  listen: 127.0.0.1:{self.gateway}
  control: {{listen: "127.0.0.1:{self.control}", token: {{env: CONTROL_TOKEN}}, state_file: state.json}}
  drain: {{settle: 0, deadline: 2s}}
"""
        )

    def start_engine(self, number: int) -> Any:
        port = self.engines[number]
        args = ("simulate", "serve", "--engine", "h100-8b", "--port", str(port), "--model", "m")
        more = ("--speed", "0.6", "--max-model-len", "2048", "--kv-tokens", "40000")
        return self._start(f"engine-{number}", *args, *more, url=f"http://127.0.0.1:{port}/health")

    def start_daemon(self) -> Any:
        name = f"daemon-{time.monotonic_ns()}"
        return self._start(name, "run", "controlplane.yaml", url=f"http://127.0.0.1:{self.api}/healthz")

    def start_gateway(self) -> Any:
        url = f"http://127.0.0.1:{self.gateway}/health"
        return self._start("gateway", "gateway", "-c", "controlplane.yaml", url=url)

    def discover(self, *numbers: int) -> None:
        """Whoever looks for targets finds these engines from now on."""
        targets = [{"targets": [f"127.0.0.1:{self.engines[number]}" for number in numbers]}]
        new = self.folder / "targets.new"
        new.write_text(json.dumps(targets))
        new.rename(self.folder / "targets.json")

    def state(self) -> Any:
        """How the gateway stands."""
        return _get(f"http://127.0.0.1:{self.control}/control/v1/state", f"Bearer {TOKEN}")

    def replica(self, number: int) -> Any:
        """The API's view of a replica; None before there is one."""
        page = _get(f"http://127.0.0.1:{self.api}/api/v1/replicas")
        name = f"127.0.0.1:{self.engines[number]}"
        return next((one for one in (page or {"items": []})["items"] if one["name"] == name), None)

    def is_limited(self, number: int) -> Any:
        """Whether the API knows of a limit in force."""
        replica = self.replica(number)
        return replica and replica["limit"] and replica["limit"]["in_force"]

    def decisions(self) -> Any:
        return _get(f"http://127.0.0.1:{self.api}/api/v1/decisions?action=set-limit&limit=500")["items"]

    def events(self, kind: str) -> list[str]:
        page = _get(f"http://127.0.0.1:{self.api}/api/v1/events?kind={kind}")
        return [event["sentence"] for event in page["items"]]

    def _start(self, name: str, *args: str, url: str) -> Any:
        process = running(self.folder / f"{name}.log", *args, url=url, CONTROL_TOKEN=TOKEN)
        return self._stack.enter_context(process)


def _get(url: str, authorization: str = "") -> Any:
    headers = {"Authorization": authorization} if authorization else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


class Load:
    """Clients that each stream one answer after the other; `good` answers ended well."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._stop = threading.Event()
        self.good = 0
        self.others: dict[int, int] = {}
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self) -> None:
        fields = {
            "model": "m",
            "prompt": "a b c " * 200,
            "max_tokens": 40,
            "stream": True,
            "ignore_eos": True,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, json.dumps(fields).encode(), headers)
        while not self._stop.is_set():
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    is_whole = answer.read().rstrip().endswith(b"[DONE]")
                self.good += is_whole
            except urllib.error.HTTPError as error:
                self.others[error.code] = self.others.get(error.code, 0) + 1
                time.sleep(0.2)
            except (OSError, ValueError):
                self.others[0] = self.others.get(0, 0) + 1
                time.sleep(0.2)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_the_loop_goes_on_while_the_daemon_is_dead_and_a_replica_is_replaced(site: Site) -> None:
    site.discover(0, 1)
    engines = [site.start_engine(number) for number in range(2)]
    site.start_gateway()
    daemon = site.start_daemon()

    with Load(site.gateway) as load:
        # Steered: the law's limits arrive, and the journal says that they did.
        steered = until("steering", lambda: (s := site.state()) and not s["alone"] and s["limits"] and s)
        assert steered["mode"] == "enforce"
        names = [f"127.0.0.1:{port}" for port in site.engines[:2]]
        until("a limit in force", lambda: site.is_limited(0))
        until("decisions that were done", lambda: {d["outcome"] for d in site.decisions()} >= {"done"})
        assert site.replica(0)["limit"]["standing"] == "enforce"
        until("answers", lambda: load.good > 20)

        # Dead, and a replica replaced: the gateway finds the new one, and limits it by the same law.
        os.kill(daemon.pid, signal.SIGKILL)
        alone = until("being alone", lambda: (s := site.state()) and s["alone"] and s)
        assert set(alone["limits"]) == set(names)
        engines[0].terminate()
        site.start_engine(2)
        site.discover(1, 2)
        new = f"127.0.0.1:{site.engines[2]}"
        until("the new replica", lambda: new in site.state()["limits"])
        good = load.good
        until("answers by the gateway alone", lambda: load.good > good + 20)
        moved = site.state()["limits"]
        assert set(moved) == {names[1], new}
        assert all(1 <= limit <= 24 for limit in moved.values()), "max_limit is a ceiling here, too"

        # Back: a higher term, and the limits that the gateway has found.
        site.start_daemon()
        back = until("steering again", lambda: (s := site.state()) and not s["alone"] and s)
        assert back["term"] > steered["term"]
        assert set(back["limits"]) == {names[1], new}
        good = load.good
        until("answers", lambda: load.good > good + 20)
        until("the new limit", lambda: site.is_limited(2))

    begun = [d["target"] for d in site.decisions() if d["reason"] == "start"]
    assert sorted(begun) == sorted(names), "the one that came back goes on from what the gateway has found"
    terms = [int(sentence.rsplit(" ", 1)[1]) for sentence in site.events("leading")]
    assert len(terms) == 2
    assert terms[0] == back["term"] > terms[1] == steered["term"]
    assert any(new in sentence for sentence in site.events("replica-joined"))
    assert load.others.get(0, 0) < CLIENTS, "a cut stream for each client at most, when its engine died"

    # Every limit change is in the journal, and a replay reaches the same.
    with closing(sqlite3.connect(f"file:{site.folder / 'journal.db'}?mode=ro", uri=True)) as journal:
        (changes,) = journal.execute("SELECT count(*) FROM decisions WHERE action = 'set-limit'").fetchone()
    assert changes >= 3
    command = [sys.executable, "-c", "from controlplane.cli import main; main()", "replay"]
    done = subprocess.run(
        [*command, str(site.folder / "journal.db")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
