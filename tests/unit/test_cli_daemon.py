"""The commands around the daemon, as a user runs them."""

import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from daemon_process import PATIENCE_SECONDS, DaemonProcess, until
from exporters import Exporters

from controlplane import __version__
from controlplane.cli import cli
from controlplane.config import load
from controlplane.daemon.journal import Entry, Journal
from controlplane.daemon.replay import replay
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.samples import Samples, Target

CONFIG = """
pools:
  chat:
    targets: {{static: [{urls}]}}
scrape: {{interval: 500ms, timeout: 400ms}}
policy: {{stale_after: 5s, goodput_cell: 1s, window: 5s, rate_window: 1s}}
daemon: {{tick: 200ms, keep_samples: 1h}}
api: {{listen: "127.0.0.1:0"}}
"""


def controlplane(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fleet() -> Iterator[Exporters]:
    with Exporters(2, seed=1) as exporters:
        exporters.paused.clear()
        yield exporters


def configured(directory: Path, fleet: Exporters, more: str = "") -> Path:
    path = directory / "controlplane.yaml"
    path.write_text(CONFIG.format(urls=", ".join(fleet.urls)) + more)
    return path


# -- sentences ---------------------------------------------------------------------------------------


def test_help_lists_the_commands_without_loading_them() -> None:
    said = controlplane("--help")
    assert said.exit_code == 0
    for name in ("run", "check", "inspect", "top", "replay", "hold", "release"):
        assert f"\n  {name} " in said.output
    script = """if True:
        import sys
        from controlplane.cli import cli
        cli(["--help"], standalone_mode=False)
        heavy = ("controlplane.commands", "fastapi", "pydantic")
        print([name for name in sys.modules if name.startswith(heavy)])
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_each_command_has_help() -> None:
    for name in ("run", "check", "inspect", "top", "replay", "hold", "release"):
        said = controlplane(name, "--help")
        assert (said.exit_code, said.output.startswith("Usage: ")) == (0, True)


def test_version() -> None:
    assert controlplane("--version").output == f"controlplane, version {__version__}\n"


def test_an_unknown_command_is_a_sentence() -> None:
    said = controlplane("rnu")
    assert (said.exit_code, "No such command 'rnu'" in said.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run",), "nothing to watch: give --target URL or CONFIG (there is no controlplane.yaml here)"),
        (("run", "c.yaml", "--target", "h:1"), "either CONFIG (c.yaml) or --target (h:1), not both"),
        (("run", "c.yaml", "-c", "d.yaml"), "either CONFIG (c.yaml) or --config (d.yaml), not both"),
        (("hold", "-c", "d.yaml"), "d.yaml: cannot be read: No such file or directory"),
        (("run", "c.yaml"), "c.yaml: cannot be read: No such file or directory"),
        (
            ("run", "--target", "ftp://h"),
            "pools.default.targets.static: ftp://h: neither http:// nor https://",
        ),
        (("run", "--target", "h:1", "--listen", "9090"),
         "api.listen: listen is HOST:PORT like 127.0.0.1:9090 or [::1]:9090 (got '9090')"),
        (("run", "c.yaml", "--listen", "h:1"),
         "--listen goes with --target; a CONFIG says it under api.listen"),
        (("check",), "controlplane.yaml: cannot be read: No such file or directory"),
        (("hold", "c.yaml"), "c.yaml: cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_sentence(
    here: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    said = controlplane(*arguments)
    assert said.exit_code in (1, 2)
    assert said.stderr.splitlines()[-1] == f"Error: {sentence}"
    assert said.stdout == ""


# -- check -------------------------------------------------------------------------------------------


def test_check_explains_what_is_good(here: Path, fleet: Exporters) -> None:
    configured(here, fleet)
    said = controlplane("check")
    assert said.exit_code == 0
    assert f"pool chat: engines {', '.join(fleet.urls)}" in said.output
    assert said.output.endswith("controlplane.yaml: good\n")
    assert list(here.iterdir()) == [here / "controlplane.yaml"]


def test_check_warns_of_objectives_off_the_edges(here: Path) -> None:
    path = here / "c.yaml"
    path.write_text("pools: {chat: {targets: {static: [h:1]}, slo: {ttft: 2s}}}")
    said = controlplane("check", "c.yaml")
    assert said.exit_code == 0
    assert "warning: pool chat: ttft 2s lies between bucket edges" in said.output


GATEWAY = """\
pools: {chat: {targets: {static: ["http://engine:8000"]}}}
gateway:
  listen: 0.0.0.0:8000
"""


def test_check_says_what_the_gateway_would_do(here: Path) -> None:
    Path("c.yaml").write_text(GATEWAY)
    said = controlplane("check", "c.yaml").output
    assert "0.0.0.0:8000 (plain), refuses nothing and counts what it would refuse (observe)" in said
    assert "anybody may ask" in said
    assert "steered at 127.0.0.1:9101 by nobody: it has no token" in said
    tenant = f"  tenants: {{a: {{keys: [{'a1' * 32}]}}}}\n"
    Path("c.yaml").write_text(GATEWAY + tenant + "  admission: {mode: enforce}\n")
    said = controlplane("check", "c.yaml").output
    assert "refuses what cannot finish in time; 1 tenant is known by keys" in said
    assert "warning" not in said
    Path("c.yaml").write_text(GATEWAY + "  tenants: {a: {}}\n")
    assert "warning: gateway.tenants have no keys" in controlplane("check", "c.yaml").output


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("api2: {}", "unknown key 'api2' (did you mean 'api'?)"),
        ("daemon: {journal: foreign}", "foreign is not a journal of controlplane"),
        ("daemon: {journal: sub/journal.db}", "the overrides in sub/overrides.json are damaged"),
        ("api: {token_file: none}", "token_file none cannot be read"),
    ],
)
def test_check_refuses_what_run_would_refuse(here: Path, more: str, sentence: str) -> None:
    (here / "foreign").write_text("precious")
    (here / "sub").mkdir()
    (here / "sub" / "overrides.json").write_text("{")
    (here / "c.yaml").write_text("pools: {chat: {targets: {static: [h:1]}}}\n" + more)
    checked, run = controlplane("check", "c.yaml"), controlplane("run", "c.yaml")
    for said in (checked, run):
        assert said.exit_code == 1
        assert sentence in said.stderr.splitlines()[-1]
    assert (here / "foreign").read_text() == "precious"


def test_check_and_run_say_the_same_of_a_damaged_journal(here: Path) -> None:
    (here / "c.yaml").write_text("pools: {chat: {targets: {static: [h:1]}}}\ndaemon: {journal: j.db}")
    journal = Journal(load(here / "c.yaml").daemon, tick)
    samples = Samples(targets=(Target("h:1", "chat", "http://h:1"),))
    snapshot, decisions, after = tick(samples, Memory(), PolicySettings(), 1e9)
    journal.append(Entry(1e9, PolicySettings(), samples, decisions, snapshot.events, (), Memory(), after))
    assert journal.close()
    assert controlplane("check", "-c", "c.yaml").exit_code == 0
    with closing(sqlite3.connect(here / "j.db")) as other:
        other.execute("UPDATE checkpoints SET memory = ?", (b"no zlib",))
        other.commit()
    checked, run = controlplane("check", "-c", "c.yaml"), controlplane("run", "-c", "c.yaml")
    assert checked.exit_code == run.exit_code == 1
    assert checked.stderr == run.stderr.splitlines(keepends=True)[-1]
    assert "j.db is damaged (the checkpoint of tick 0 cannot be read" in checked.stderr


# -- hold --------------------------------------------------------------------------------------------


def test_hold_and_release_need_no_daemon(here: Path) -> None:
    said = controlplane("hold", "--reason", "moving racks")
    assert (said.exit_code, said.output) == (0, "hold: nothing is acted on while var/hold exists\n")
    assert (here / "var" / "hold").read_text().startswith("moving racks\nby: ")
    assert controlplane("release").output == "released: var/hold is gone\n"
    assert controlplane("release").output == "there was no hold: var/hold does not exist\n"


def test_hold_goes_where_the_configuration_says(here: Path) -> None:
    (here / "c.yaml").write_text("pools: {chat: {targets: {static: [h:1]}}}\ndaemon: {hold_file: stop/it}")
    assert controlplane("hold", "c.yaml").exit_code == 0
    assert (here / "stop" / "it").exists()


def test_a_hold_file_that_cannot_be_written_is_a_sentence(here: Path) -> None:
    (here / "var").touch()
    said = controlplane("hold")
    assert (said.exit_code, said.stderr) == (
        1,
        "Error: the hold file var/hold cannot be written: File exists\n",
    )


# -- run ---------------------------------------------------------------------------------------------


def test_run_watches_a_target_without_any_file(here: Path, fleet: Exporters) -> None:
    with DaemonProcess(here, "--target", fleet.urls[0], "--listen", "127.0.0.1:0") as daemon:
        daemon.ready()
        daemon.logged("joined pool default")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged("there is no configuration file to read again")
        assert daemon.end(signal.SIGINT) == 0
    assert (here / "var" / "journal.db").exists()


def test_run_from_start_to_stop(here: Path, fleet: Exporters) -> None:
    """Ready; a hold by command; a bad and a good reload; a second daemon; a clean stop; a replay."""
    path = configured(here, fleet)
    good = path.read_text()
    with DaemonProcess(here) as daemon:
        daemon.ready()
        until("both replicas up", lambda: (daemon.get("/api/v1/fleet") or {})["pools"][0]["replicas_up"] == 2)

        assert controlplane("hold", "--reason", "test").exit_code == 0
        until("the hold", lambda: daemon.get("/api/v1/orders")["hold"])
        daemon.logged("ordered a hold: test")
        assert controlplane("release").exit_code == 0
        daemon.logged("the hold is over")

        path.write_text(good.replace("stale_after: 5s", "stale_after: 1s"))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged("stale_after (1s) is under three polling intervals (3 x 500ms)")
        fleet_page = daemon.get("/api/v1/fleet")
        assert "the new configuration is refused, the old one stays: " in str(fleet_page["troubles"])
        path.write_text(good.replace("chat:", "talk:"))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged("left pool chat", times=2)
        daemon.logged("joined pool talk", times=2)
        assert daemon.get("/api/v1/fleet")["troubles"] == []
        path.write_text(good.replace("keep_samples", "journal: other.db, keep_samples"))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged("daemon.journal cannot change while the daemon runs (from var/journal.db to other.db)")
        path.write_text(good.replace("api: {", "api: {token_file: tok, "))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged("api.token_file cannot change while the daemon runs (from nothing to tok): restart it")
        path.write_text(good)

        with DaemonProcess(here) as second:
            assert second.process.wait(PATIENCE_SECONDS) == 1
            assert f"belongs to a running daemon (process {daemon.process.pid})" in second.log
            assert "Traceback" not in second.log

        assert daemon.end() == 0
        assert "Traceback" not in daemon.log
        assert daemon.log.splitlines()[-1].endswith("level=info msg=stopped")
    found = replay(here / "var" / "journal.db", tick)
    assert (found.different, found.segments, found.gaps) == (0, 1, 0)
    assert found.ticks > 5


def test_orders_through_the_api_survive_a_kill(here: Path, fleet: Exporters) -> None:
    configured(here, fleet)
    path = here / "controlplane.yaml"
    path.write_text(path.read_text().replace('127.0.0.1:0"', '127.0.0.1:0", token_file: token'))
    (here / "token").write_text("hush\n")
    with DaemonProcess(here) as daemon:
        daemon.ready()
        body = {"reason": "racks", "by": "ann"}
        assert daemon.send("POST", "/api/v1/hold", body) == 401
        assert daemon.send("POST", "/api/v1/hold", body, token="hush") == 200
        override = {"scope": "pool", "name": "chat", "setting": "mode", "value": "observe", **body}
        assert daemon.send("PUT", "/api/v1/overrides", override, token="hush") == 200
        wrong = {**override, "value": "off"}
        assert daemon.send("PUT", "/api/v1/overrides", wrong, token="hush") == 422
        daemon.process.kill()
    with DaemonProcess(here) as daemon:
        daemon.ready()
        orders = daemon.get("/api/v1/orders")
        assert (orders["hold"]["by"], orders["hold"]["reason"]) == ("ann", "racks")
        assert [(o["name"], o["value"], o["by"]) for o in orders["overrides"]] == [("chat", "observe", "ann")]
        assert controlplane("release").exit_code == 0
        daemon.logged("the hold is over")
        assert daemon.end() == 0
        assert "hush" not in daemon.log


def test_a_port_in_use_is_a_sentence(here: Path, fleet: Exporters) -> None:
    port = fleet.urls[0].rpartition(":")[2]
    configured(here, fleet)
    path = here / "c.yaml"
    path.write_text((here / "controlplane.yaml").read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    with DaemonProcess(here, "c.yaml") as daemon:
        assert daemon.process.wait(PATIENCE_SECONDS) == 1
        assert f"Error: the API cannot listen on 127.0.0.1:{port}: the port is in use" in daemon.log
        assert "Traceback" not in daemon.log


def test_a_journal_that_reaches_the_end_of_the_disk(here: Path, fleet: Exporters) -> None:
    """A real process on a file that the system does not let grow any more, and then does again."""
    configured(here, fleet)
    with DaemonProcess(here) as daemon:
        daemon.ready()
        pid, (_, most) = daemon.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
        size = max(path.stat().st_size for path in (here / "var").iterdir())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))
        daemon.logged("ticks go on without it")
        ticks = daemon.get("/api/v1/fleet")["tick"]
        until("more ticks", lambda: daemon.get("/api/v1/fleet")["tick"] > ticks + 10)
        assert any("ticks go on without it" in trouble for trouble in daemon.get("/api/v1/fleet")["troubles"])
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, most))
        daemon.logged("the journal is written again")
        ticks = daemon.get("/api/v1/fleet")["tick"]
        until("more ticks", lambda: daemon.get("/api/v1/fleet")["tick"] > ticks + 10)
        assert daemon.log.count("ticks go on without it") == 1
        assert daemon.log.count("the journal is written again") == 1
        assert daemon.end() == 0
    with closing(sqlite3.connect(here / "var" / "journal.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found = replay(here / "var" / "journal.db", tick)
    assert (found.different, found.gaps) == (0, 1)


def test_what_is_logged_is_one_line_each_and_holds_no_page(here: Path, fleet: Exporters) -> None:
    configured(here, fleet)
    with DaemonProcess(here) as daemon:
        daemon.ready()
        until("some ticks", lambda: daemon.get("/api/v1/fleet")["tick"] > 60)
        assert daemon.end() == 0
    lines = daemon.log.splitlines()
    assert all(line.startswith("time=") and " level=" in line and " msg=" in line for line in lines)
    kinds = Counter(re.sub(r"\d+", "", line.partition(" level=")[2]) for line in lines)
    assert max(kinds.values()) < 30, "nothing is said per tick"
    assert os.stat(here / "var" / "journal.db").st_mode & 0o777 == 0o600
