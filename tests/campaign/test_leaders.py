"""Two daemons as processes, one Lease: killed, paused and stopped leaders; what a gateway hears of whom."""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from daemon_process import DaemonProcess, until
from kube_api import KubeApi

pytestmark = pytest.mark.campaign

LEASE_SECONDS = 3.0
CONFIG = """
pools: {{chat: {{targets: {{static: [127.0.0.1:1]}}}}}}
scrape: {{interval: 1s, timeout: 900ms}}
policy: {{stale_after: 5s}}
daemon: {{journal: {name}/journal.db, tick: 200ms}}
api: {{listen: 127.0.0.1:0}}
kubernetes: {{kubeconfig: kubeconfig, nodes: false, lease: {{duration: 3s}}}}
gateways: [{{url: "{gateway}", token: {{env: TOKEN}}}}]
"""


class Gateway:
    """Takes every message, whatever its term, and notes when it came: so that nothing but the daemon itself
    keeps a late one back."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, int]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"gateway": "gw"} if "state" in self.path else {"windows": []})

            def do_PUT(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                gateway.taken.append((time.monotonic(), message["term"]))
                self._answer({"judgement": "taken", "term": message["term"], "version": message["version"]})

            def _answer(self, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def last_term(self) -> int:
        return self.taken[-1][1] if self.taken else 0


class Site:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.there = stack.enter_context(KubeApi().in_thread())
        self.there.call(self.there.api.have_namespace, "default")
        self.there.api.kubeconfig(folder / "kubeconfig")
        self.gateway = Gateway()
        stack.callback(self.gateway.server.shutdown)
        self.url = f"http://127.0.0.1:{self.gateway.server.server_port}"
        self.terms: dict[str, int] = {}

    def start(self, name: str) -> DaemonProcess:
        (self.folder / name).mkdir(exist_ok=True)
        path = self.folder / f"{name}.yaml"
        path.write_text(CONFIG.format(name=name, gateway=self.url))
        return self._stack.enter_context(DaemonProcess(self.folder, str(path), TOKEN="x"))

    def leader_after(self, term: int) -> float:
        """When a gateway first heard of a later term."""
        until("a new leader", lambda: self.gateway.last_term() > term)
        return next(at for at, later in self.gateway.taken if later > term)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_killed_leaders_are_replaced_in_time(site: Site) -> None:
    leader = site.start("d0")
    site.leader_after(0)
    took = []
    for number in range(1, 6):
        follower = site.start(f"d{number}")
        until("the follower ticks", lambda one=follower: (one.get("/api/v1/fleet") or {}).get("tick", 0) > 3)
        time.sleep(0.37 * number)  # at any moment between two renewals
        term = site.gateway.last_term()
        died = time.monotonic()
        leader.process.kill()
        took.append(site.leader_after(term) - died)
        leader = follower
    terms = [term for _, term in site.gateway.taken]
    assert terms == sorted(terms), "two led at once"
    print(f"hand-over after kill -9, lease of {LEASE_SECONDS:g} s: {', '.join(f'{t:.2f}' for t in took)} s")
    assert max(took) < 2 * LEASE_SECONDS


def test_a_paused_leader_writes_nothing_late(site: Site) -> None:
    a, b = site.start("a"), None
    site.leader_after(0)
    b = site.start("b")
    until("the follower ticks", lambda: (b.get("/api/v1/fleet") or {}).get("tick", 0) > 3)
    paused, following = a, b
    for _ in range(3):
        term = site.gateway.last_term()
        paused.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        at = site.leader_after(term)
        assert at - began < 2 * LEASE_SECONDS
        paused.process.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        paused, following = following, paused
    terms = [term for _, term in site.gateway.taken]
    assert terms == sorted(terms), "a leader that was paused has written when another led"
    assert len(set(terms)) == 4


def test_a_leader_that_is_stopped_hands_over_at_once(site: Site) -> None:
    a = site.start("a")
    site.leader_after(0)
    b = site.start("b")
    until("the follower ticks", lambda: (b.get("/api/v1/fleet") or {}).get("tick", 0) > 3)
    assert b.get("/readyz") is not None
    (site.folder / "a" / "hold").write_text("a deploy\nby: ann\n")
    until("the hold stands with the follower", (site.folder / "b" / "hold").exists)
    assert (site.folder / "b" / "hold").read_text() == "a deploy\nby: ann\n"
    term, stopped = site.gateway.last_term(), time.monotonic()
    a.process.send_signal(signal.SIGTERM)
    took = site.leader_after(term) - stopped
    print(f"hand-over after SIGTERM: {took:.2f} s")
    assert took < LEASE_SECONDS
