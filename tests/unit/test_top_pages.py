"""The pages of `controlplane top` beside the fleet: limits, GPUs, decisions, alerts; what a terminal gets."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import fleet_fakes as fakes
import msgspec
import pytest
from fleet_fakes import AT, FakeDaemon, fleet, replica
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from top_fakes import served, view

from controlplane.api import shapes
from controlplane.signals.decision import Hold, Mode, Orders, Standing
from controlplane.signals.node import NodeHealth
from controlplane.signals.snapshot import Limit
from controlplane.terminal.keyboard import keyboard
from controlplane.terminal.pages import PAGES, screen, whole
from controlplane.terminal.standing import fleet_standing
from controlplane.terminal.view import View

FLEET, LIMITS, GPUS, DECISIONS, ALERTS = PAGES
CONTROLPLANE = Path(sys.executable).with_name("controlplane")


def body(seen: View, page: object, width: int = 100) -> list[str]:
    """What stands under the head."""
    assert page in PAGES
    shown = [line.plain.rstrip() for line in screen(seen, width, 1_000, page)]
    return shown[shown.index("") + 1 :]


def an_alert(**changes: object) -> shapes.Alert:
    whole = {
        "name": "GoodputBurnFast",
        "severity": "page",
        "team": "serving",
        "summary": "pool chat burns its budget 20 times too fast",
        "runbook_url": "https://example.org/runbooks/GoodputBurnFast.md",
        "labels": {"pool": "chat"},
        "since": AT - 240,
        "heard_at": AT - 5,
    }
    return shapes.Alert.model_validate({**whole, **changes})


def nodes(*seen: NodeHealth) -> list[shapes.Node]:
    return [shapes.Node.model_validate(one) for one in seen]


# -- limits ----------------------------------------------------------------------------------------


def limited(name: str, slots: int, running: float, **changes: object) -> object:
    limit = Limit("slo-gradient", slots, "tpot-near", "a token takes 39 ms", AT - 40, float(slots))
    return replica(name, load=fakes.load(running=running), limit=msgspec.structs.replace(limit, **changes))


def test_limits_say_what_is_in_force_and_why_the_fullest_first() -> None:
    seen = fleet(limited("a", 100, 20), limited("b", 50, 50, in_force=60.0), replica("c", limit=None))
    how = fakes.status(limit_standings={"a": Standing.ENFORCE, "b": Standing.OBSERVE})
    assert body(view(seen, how=how), LIMITS) == [
        "REPLICA RUN LIMIT IN FORCE         FOR WHY",
        "b        50    50       60 observe 40s tpot-near: a token takes 39 ms",
        "a        20   100      100 enforce 40s tpot-near: a token takes 39 ms",
    ]


def test_in_a_narrow_terminal_the_reason_stands_below() -> None:
    shown = body(view(fleet(limited("a", 100, 20))), LIMITS, 40)
    assert shown == [
        "REPLICA LIMIT",
        "a         100 nobody acts",
        "└ tpot-near: a token takes 39 ms",
    ]


def test_no_limits_are_said() -> None:
    shown = body(view(fleet(replica(limit=None))), LIMITS)
    assert shown == ["no replica has a limit: pools.NAME.limits says which law sets one"]


OBSERVE, ENFORCE, HELD = (
    {"gateway": standing} for standing in (Standing.OBSERVE, Standing.ENFORCE, Standing.HELD)
)


@pytest.mark.parametrize(
    ("standings", "words"),
    [
        ({}, "observe"),
        ({"chat": OBSERVE, "code": OBSERVE}, "observe"),
        ({"chat": ENFORCE, "code": ENFORCE}, "enforce"),
        ({"chat": {**OBSERVE, "node": Standing.ENFORCE}, "code": OBSERVE}, "enforce in 1/2 pools"),
        ({"chat": HELD, "code": OBSERVE}, "held"),
    ],
)
def test_the_head_says_whether_anything_is_acted_on(
    standings: dict[str, dict[str, Standing]], words: str
) -> None:
    both = fleet(replica("a", "chat"), replica("b", "code"))
    seen = view(both, how=fakes.status(pool_standings=standings))
    assert fleet_standing(seen.fleet).plain == words
    assert f" up  {words}  tick" in screen(seen, 120, 20, LIMITS)[0].plain
    assert screen(seen, 45, 20, LIMITS)[0].plain == f"2/2 up  {words}  tick 7, 0s ago"


def test_the_head_says_that_people_hold_it_or_that_another_daemon_leads() -> None:
    held = view(fleet(), Orders(Hold(AT - 5, "ann", "deploy")), fakes.status(leads=False))
    assert fleet_standing(held.fleet).plain == "hold"
    assert fleet_standing(view(fleet(), how=fakes.status(leads=False)).fleet).plain == "follows"


def test_a_pool_says_what_may_be_done_in_it() -> None:
    seen = view(fleet(), how=fakes.status(pool_standings={"chat": ENFORCE}))
    (row,) = (line for line in body(seen, FLEET, 140) if line.startswith("chat"))
    assert "enforce" in row.split()


# -- GPUs ------------------------------------------------------------------------------------------


def test_gpus_the_taken_node_first_and_the_well_ones_as_one_line() -> None:
    held = fakes.verdict(why="it would be the second node of the hour")
    seen = view(fleet())._replace(
        nodes=nodes(
            fakes.node("n1"),
            fakes.node("n2", blind_since=AT - 90),
            fakes.node("n3", verdicts=(held,)),
            fakes.node("n4", verdicts=(fakes.verdict(stage="placed"),), quarantined=fakes.mark()),
            fakes.node("n5", gpus=1),
        )
    )
    assert body(seen, GPUS, 80) == [
        "n4  8 GPUs  quarantined (taint) for 10m: drain-and-reset",
        "  placed for 20s  GPU-5f3c  xid, hardware-fatal → drain-and-reset",
        "  └ XID 79: the GPU has fallen off the bus",
        "n3  8 GPUs",
        "  held-down for 20s  GPU-5f3c  xid, hardware-fatal → drain-and-reset",
        "  └ XID 79: the GPU has fallen off the bus",
        "  └ not acted on: it would be the second node of the hour",
        "n2  8 GPUs  nobody sees its GPUs for 90s",
        "2 nodes with 9 GPUs: nothing is held against them",
    ]
    assert body(view(fleet()), GPUS) == ["no GPUs are watched: the section `gpus` says where they are"]


# -- decisions and alerts --------------------------------------------------------------------------


def test_decisions_the_newest_first_with_outcome_and_readings() -> None:
    older = fakes.decision(at=AT - 60, sentence="vllm-0 may run 40", outcome="done", mode=Mode.ENFORCE)
    newer = fakes.decision(
        at=AT, sentence="vllm-0 may run 36", outcome="failed: no gateway answers", evidence=()
    )
    told = [shapes.Decision.model_validate(one) for one in (older, newer)]
    shown = body(view(fleet())._replace(decisions=told), DECISIONS)
    assert [line[9:] for line in shown] == [
        "OUTCOME WHAT AND WHY",
        "failed  vllm-0 may run 36 (no gateway answers)",
        "done    vllm-0 may run 40",
        "ng 3, kv_usage unknown, stale (40s old)",
    ]
    assert shown[-1].startswith("  └ waiting 3, ")
    assert body(view(fleet()), DECISIONS) == ["nothing was decided in the last hour"]


def test_alerts_with_their_runbooks_and_pages_on_every_page() -> None:
    seen = view(fleet())._replace(
        alerts=[an_alert(), an_alert(name="GpuHot", severity="ticket", team="hardware", summary="hot")]
    )
    assert body(seen, ALERTS) == [
        "SEVERITY TEAM     ALERT           FOR WHAT",
        "page     serving  GoodputBurnFast  4m pool chat burns its budget 20 times too fast",
        "  └ https://example.org/runbooks/GoodputBurnFast.md",
        "ticket   hardware GpuHot           4m hot",
        "  └ https://example.org/runbooks/GoodputBurnFast.md",
    ]
    head = [line.plain for line in screen(seen, 80, 24, GPUS)]
    assert head[1] == "! GoodputBurnFast for 4m: pool chat burns its budget 20 times too fast"
    assert not any("GpuHot" in line for line in head)
    assert body(view(fleet()), ALERTS)[0].startswith("no alert fires")


def test_the_last_line_says_which_keys_there_are_and_where_to_look() -> None:
    seen = view(fleet())._replace(alerts=[an_alert()], nodes=nodes(fakes.node(verdicts=(fakes.verdict(),))))
    shown = screen(seen, 80, 24, LIMITS, has_keys=True)
    assert len(shown) == 24
    assert shown[-1].plain.rstrip() == (
        " 1 fleet  2 limits  3 GPUs (1)  4 decisions  5 alerts (1)  tab next  q quit"
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seen=fakes.fleets,
    orders=fakes.orders,
    told=st.lists(fakes.decisions, max_size=4),
    verdicts=st.lists(
        st.builds(fakes.verdict, fakes.texts, sentence=fakes.texts, why=fakes.texts), max_size=3
    ),
    text=fakes.texts,
    width=st.integers(20, 160),
    height=st.integers(6, 60),
)
def test_any_page_fits_any_terminal(
    *, seen: object, orders: Orders, told: object, verdicts: object, text: str, width: int, height: int
) -> None:
    shown = view(seen, orders)._replace(
        decisions=[shapes.Decision.model_validate(one) for one in told],
        nodes=nodes(fakes.node(text, verdicts=tuple(verdicts), blind_since=1.0), fakes.node(text)),
        alerts=[an_alert(name=text, summary=text, runbook_url=text, team=text)],
    )
    for page in PAGES:
        lines = screen(shown, width, height, page, has_keys=True)
        assert len(lines) <= height
        for line in lines:
            assert cell_len(line.plain) <= width
            assert line.plain.isprintable()
    for line in whole(shown, width):
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable()


def test_all_pages_below_each_other_without_the_empty_ones() -> None:
    shown = [line.plain for line in whole(view(fleet()), 80)]
    assert "limits" in shown
    assert not {"GPUs", "decisions", "alerts", "fleet"} & set(shown)


# -- in a terminal ---------------------------------------------------------------------------------


class Terminal:
    """A terminal that a command runs in; `text` is what it shows, without styles."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._shown = b""

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._shown.decode(errors="replace"))

    def press(self, keys: str) -> None:
        self._shown = b""
        os.write(self._descriptor, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self._shown = b""
        ioctl(self._descriptor, TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, words: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.text:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{words!r} is not in {self.text!r}"
            try:
                read = os.read(self._descriptor, 65536)
            except OSError:  # nobody has the terminal open any more
                read = b""
            assert read, f"it ended without {words!r}: {self.text!r}"
            self._shown += read


@contextmanager
def terminal(*command: str | Path, columns: int = 100, lines: int = 30) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    ioctl(ours, TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    # The first terminal that the leader of a new session opens is its own.
    shell = ["sh", "-c", f'exec "$0" "$@" <>{os.ttyname(theirs)} >&0 2>&0', *command]
    # COLUMNS and LINES, which test runners set, would stand above the terminal's own size.
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        shell, start_new_session=True, stdin=subprocess.DEVNULL, env={**env, "TERM": "xterm"}
    )
    try:
        yield Terminal(process, ours)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_keys_and_sizes_change_the_page_and_q_ends_it() -> None:
    sick = fakes.node(verdicts=(fakes.verdict(),))
    with (
        served(FakeDaemon(fleet(nodes={sick.name: sick}))) as url,
        terminal(CONTROLPLANE, "top", "--url", url) as shown,
    ):
        shown.until("goal: 95% of requests")
        shown.press("3")
        shown.until("fallen off the bus")
        shown.press("\t")
        shown.until("WHAT AND WHY")
        shown.press("\x1b[D")
        shown.until("fallen off the bus")
        shown.press("2")
        shown.until("tpot-near: a token takes 39 ms")
        shown.resize(40, 12)
        shown.until("└ tpot-near")
        shown.press("q")
        assert shown.process.wait(60) == 0


def test_ctrl_c_ends_it_and_gives_the_terminal_back() -> None:
    with served(FakeDaemon()) as url, terminal(CONTROLPLANE, "top", "--url", url) as shown:
        shown.until("goal: 95% of requests")
        shown.press("\x03")
        assert shown.process.wait(60) == 0


def test_into_a_pipe_it_prints_once() -> None:
    with served(FakeDaemon()) as url:
        done = subprocess.run(
            [CONTROLPLANE, "top", "--url", url],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "COLUMNS": "100"},
        )
    assert "goal: 95% of requests" in done.stdout
    assert "goodput is low" in done.stdout
    assert "\x1b" not in done.stdout


def test_there_is_no_keyboard_where_input_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        for stdin in (nothing, None):
            monkeypatch.setattr(sys, "stdin", stdin)
            with keyboard(print) as has_keys:
                assert not has_keys
