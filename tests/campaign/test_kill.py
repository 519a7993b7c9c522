"""kill -9, 50 times under load: it starts again each time, and nothing is lost or counted twice."""

import random
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from daemon_process import DaemonProcess, until
from exporters import Exporters

from controlplane.daemon import journal_file as file
from controlplane.daemon.journal import Journal
from controlplane.daemon.replay import replay
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.tick import tick
from controlplane.signals.samples import Scrape

KILLS = 50
ENGINES = 3
SEED = 20

CONFIG = """
pools:
  chat:
    targets: {{static: [{urls}]}}
scrape: {{interval: 500ms, timeout: 450ms}}
policy: {{stale_after: 10s, goodput_cell: 1s, window: 10s, rate_window: 1s, stalled_after: 10m}}
daemon: {{tick: 100ms, journal: journal.db}}
api: {{listen: "127.0.0.1:0"}}
"""


class Fleet:
    """The engines under load, the daemon's directory, and what its journal has seen of them."""

    def __init__(self, directory: Path, engines: Exporters) -> None:
        self.directory, self.engines = directory, engines
        self.journal = directory / "journal.db"
        (directory / "controlplane.yaml").write_text(CONFIG.format(urls=", ".join(engines.urls)))

    def last_tick(self) -> int:
        with closing(file.connect_to_read(self.journal)) as connection:
            return int(connection.execute("SELECT coalesce(max(tick), 0) FROM ticks").fetchone()[0])

    def seen(self, i: int, after_tick: int, since: float) -> bool:
        """Whether a committed tick has a page of engine `i` that was read after Unix time `since`."""
        name = self.engines.urls[i].removeprefix("http://")
        with closing(file.connect_to_read(self.journal)) as connection:
            return any(
                isinstance(scrape, Scrape) and scrape.target == name and scrape.at - scrape.seconds > since
                for row in file.read_ticks(connection, after=after_tick)
                for scrape in row.samples.scrapes
            )

    def committed(self, i: int) -> None:
        """Wait until the journal holds a page of engine `i` that was asked for after now."""
        last, now = self.last_tick(), time.time()
        until(f"a page of engine {i} in the journal", lambda: self.seen(i, last, now))

    def restart_engine(self, i: int) -> None:
        """Another process in its place, at a moment when all that the old one counted has been read.

        What an engine counts between the last page and its death is lost with it; that is not the daemon's.
        """
        self.engines.paused.add(i)
        self.committed(i)
        self.engines.restart(i)
        self.engines.paused.discard(i)

    def check(self) -> None:
        """The journal as a crash left it."""
        with closing(sqlite3.connect(self.journal)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            (count, last) = connection.execute("SELECT count(*), max(tick) FROM ticks").fetchone()
            assert count == last  # each tick once, none missing


@pytest.mark.campaign
def test_fifty_kills_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    luck = random.Random(SEED)
    restarts: Counter[str] = Counter()
    slowest = 0.0
    with Exporters(ENGINES, SEED) as engines:
        fleet = Fleet(tmp_path, engines)
        with DaemonProcess(tmp_path) as daemon:  # the first pages, from which all is counted
            daemon.ready()
            for i in range(ENGINES):
                fleet.committed(i)
            engines.paused.clear()
            daemon.process.kill()
        for round_ in range(KILLS):
            begun = time.monotonic()
            with DaemonProcess(tmp_path) as daemon:
                if luck.random() < 0.2:  # some die before they are up
                    time.sleep(luck.uniform(0.0, 0.8))
                else:
                    daemon.ready()
                    slowest = max(slowest, time.monotonic() - begun)
                    if luck.random() < 0.3:
                        i = luck.randrange(ENGINES)
                        fleet.restart_engine(i)
                        restarts[engines.urls[i].removeprefix("http://")] += 1
                    time.sleep(luck.uniform(0.0, 2.5))
                daemon.process.kill()
            assert "Traceback" not in daemon.log, daemon.log
            fleet.check()
            if round_ % 10 == 9:
                found = replay(fleet.journal, tick)
                assert (found.different, found.gaps) == (0, 0), found
        with DaemonProcess(tmp_path) as daemon:
            daemon.ready()
            engines.paused.update(range(ENGINES))
            for i in range(ENGINES):
                fleet.committed(i)
            last = fleet.last_tick()
            # A cell lasts for a second, a tick for a tenth of it at least.
            until("the end of the open cells", lambda: fleet.last_tick() > last + 30)
            assert daemon.end() == 0
            assert "Traceback" not in daemon.log
        true = {
            name: engines.total(name)
            for name in ("finished", "prompt_tokens", "generation_tokens", "preemptions")
        }

    found = replay(fleet.journal, tick)
    assert (found.different, found.gaps) == (0, 0), found
    with capsys.disabled():
        print(
            f"\n{KILLS} kills: {found.ticks} ticks in {found.segments} segments, {found.events} events, "
            f"{sum(restarts.values())} engine restarts, {true}; slowest start {slowest:.2f} s"
        )
    journal = Journal(DaemonSettings(journal=fleet.journal), tick)
    totals = journal.memory.pools["chat"].totals
    assert {name: getattr(totals, name) for name in true} == true
    assert totals.restarts == sum(restarts.values())
    assert journal.close()

    with closing(file.connect_to_read(fleet.journal)) as connection:
        events = file.read_events(connection, file.Matching())
    told = Counter((event.kind, event.target) for event in events)
    assert {target: count for (kind, target), count in told.items() if kind == "restart"} == restarts
    names = [url.removeprefix("http://") for url in engines.urls]
    assert all(told["replica-joined", name] == 1 for name in names)
    for name in names:  # whatever began ended before it began again
        assert told["scrape-failing", name] - told["scrape-failing-over", name] in (0, 1)
