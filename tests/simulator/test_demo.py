"""`make demo`, as a newcomer runs it."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from .demo_process import Demo, demo, group

CAPACITY_PER_SECOND = 24.0
LINE = re.compile(r"^ *\d+:\d\d (?P<control>on|off) +\d+/s +(?P<good>[\d.]+)/s ")


def fetched(url: str) -> bytes | None:
    try:
        with urlopen(url, timeout=30) as answer:
            return bytes(answer.read())
    except (URLError, OSError):
        return None


def address(intro: list[str], name: str) -> str:
    return next(line.split()[1] for line in intro if line.split()[:1] == [name])


def ends_clean(running: Demo, asked: float) -> None:
    """Within 3 s of being asked to, with all that it started."""
    assert running.process.wait(60) == 0
    assert time.monotonic() - asked < 3.0
    assert group(running.process.pid) == {}


@contextmanager
def taken_port(port: int) -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # where somebody else has it, that is as good
            taken.bind(("127.0.0.1", port))
            taken.listen()
        yield


def test_it_says_where_to_look_is_switched_by_a_command_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    with taken_port(8001), demo(tmp_path, at_terminal=True) as running:
        intro = running.lines_until("-- light")
        api, engine, gateway = (address(intro, name) for name in ("daemon", "engines", "gateway"))
        assert engine != "http://127.0.0.1:8000"
        assert fetched(f"{engine}/metrics")
        assert b'"data"' in (fetched(f"{gateway}/v1/models") or b"")
        assert (tmp_path / "var" / "demo" / "token").stat().st_mode & 0o077 == 0

        second = running.command()
        assert (second.returncode, second.stdout) == (1, "demo: another demo runs here and uses var/demo\n")

        assert running.lines_until(r"^ 0:05 ")[-1].split()[1] == "off"
        assert running.command("on").returncode == 0
        running.lines_until("-- control on")
        orders = json.loads(fetched(f"{api}/api/v1/orders") or b"{}")
        assert [one["value"] for one in orders["overrides"]] == ["enforce"]
        assert running.command("off").returncode == running.command("off").returncode == 0
        running.lines_until("-- control off")
        nodes = json.loads(fetched(f"{api}/api/v1/nodes") or b"{}")["items"]
        assert [(one["name"], one["gpus"]) for one in nodes] == [("gpu-node-1", 6)]

        asked = time.monotonic()
        running.press("\x03")  # to all of them, as a terminal does
        running.lines_until("stopped: nothing of it runs any more")
        ends_clean(running, asked)
        assert fetched(f"{engine}/health") is None
        over = running.command("on")
        assert (over.returncode, over.stdout) == (1, "demo: no demo runs in this folder (var/demo)\n")
    files = {path.name for path in (tmp_path / "var" / "demo").iterdir()}
    assert files >= {"controlplane.yaml", "journal.db", "fleet.log", "gateway.log", "daemon.log"}


def test_where_a_part_of_it_dies_it_says_which_and_ends(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.lines_until("-- light")
        (fleet,) = [pid for pid, args in group(running.process.pid).items() if "simulate serve" in args]
        os.kill(fleet, signal.SIGKILL)
        running.lines_until("demo: the fleet ended with code -9")
        assert running.process.wait(60) == 1
        assert group(running.process.pid) == {}


@pytest.mark.campaign
def test_goodput_collapses_without_control_and_recovers_with_it(tmp_path: Path) -> None:
    """Thresholds leave room for a busy machine: a quiet one shows under 0.5 and over 20 a second."""

    def good(line: str) -> float:
        found = LINE.match(line)
        assert found is not None, line
        return float(found["good"])

    with demo(tmp_path, at_terminal=True) as running:
        intro = running.lines_until("-- overload")
        assert any("the key c" in line for line in intro)
        running.lines_until("nearly nobody is answered in time. Turn control on: press c", 60)
        off = good(running.lines_until(LINE.pattern)[-1])
        assert off < 0.25 * CAPACITY_PER_SECOND
        running.press("c")
        running.lines_until("-- control on", 10)
        deadline = time.monotonic() + 75
        while (on := good(running.lines_until(LINE.pattern)[-1])) < 0.5 * CAPACITY_PER_SECOND:
            assert time.monotonic() < deadline, f"{off:g}/s without control, {on:g}/s with it"
        assert on > 3 * off
        running.press("c")
        running.lines_until("-- control off", 10)
        asked = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        running.lines_until("stopped: nothing of it runs any more")
        ends_clean(running, asked)
