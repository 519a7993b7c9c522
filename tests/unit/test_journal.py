"""The journal: what is committed, what comes back after a crash, what is dropped, what is refused."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemon_fakes import NOON, POLICY, Writer, finished, note, page, settings, small_tick
from hypothesis import given
from hypothesis import strategies as st

from controlplane.daemon import journal as module
from controlplane.daemon import journal_file as file
from controlplane.daemon.clock import LEAP
from controlplane.daemon.journal import Journal, look
from controlplane.daemon.journal_file import JournalError, Matching
from controlplane.daemon.replay import replay
from controlplane.policy.memory import Memory, rewind
from controlplane.policy.settings import PolicySettings, PoolPolicy, Slo
from controlplane.signals.samples import Samples, Target


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@contextmanager
def opened(path: Path, **changes: object) -> Iterator[Journal]:
    journal = Journal(settings(path, **changes), small_tick)
    try:
        yield journal
    finally:
        assert journal.close()


def rows(path: Path, query: str) -> list[tuple]:
    with closing(file.connect_to_read(path)) as connection:
        return connection.execute(query).fetchall()


def written(journal: Journal) -> None:
    """Wait until the journal's thread has taken everything."""
    deadline = time.monotonic() + 60
    while journal.queued and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not journal.queued


# -- what comes back -------------------------------------------------------------------------------


def test_the_memory_comes_back_exactly(path: Path) -> None:
    with opened(path) as journal:
        assert journal.memory == Memory()
        writer = Writer(journal)
        for i in range(150):
            writer.tick(page(float(i), writer.now))
    with opened(path) as journal:
        assert journal.memory == writer.memory
        assert journal.last_at == writer.now
        assert finished(journal.memory) == sum(range(150))


def test_a_start_needs_the_ticks_after_the_last_checkpoint_only(path: Path) -> None:
    with opened(path) as journal:
        writer = Writer(journal)
        for i in range(200):
            writer.tick(page(float(i), writer.now))
    seen = []

    def counting(samples, memory, policy, now):
        seen.append(now)
        return small_tick(samples, memory, policy, now)

    Journal(settings(path), counting).close()
    assert 0 < len(seen) <= module.CHECKPOINT_SECONDS
    assert seen[-1] == writer.now


def test_each_start_begins_a_segment_with_a_checkpoint_and_all_of_it_replays(path: Path) -> None:
    for _ in range(4):
        with opened(path) as journal:
            writer = Writer(journal, now=journal.last_at or NOON)
            for i in range(70):
                writer.tick(page(float(i), writer.now), targets=(Target("a:8000", "chat", "http://a:8000"),))
    found = replay(path, small_tick)
    assert (found.segments, found.gaps, found.ticks) == (4, 0, 280)
    assert found.checkpoints == 8  # each segment: at its start, and after a minute
    assert (found.decisions, found.events, found.different) == (280, 280, 0)


def test_settings_are_kept_with_the_ticks_that_they_were_used_for(path: Path) -> None:
    other = PolicySettings(pools={"chat": PoolPolicy(slo=Slo(ttft="333.25ms"))}, window="7m")
    with opened(path) as journal:
        writer = Writer(journal)
        writer.tick(page(1))
        writer.policy = other
        writer.tick(page(2))
        writer.tick(page(3))
    with closing(file.connect_to_read(path)) as connection:
        used = [tick.settings for tick in file.read_ticks(connection, after=0)]
        assert len(connection.execute("SELECT * FROM settings").fetchall()) == 2
    assert used == [POLICY, other, other]
    assert replay(path, small_tick).different == 0


@given(st.floats(min_value=0, max_value=3600), st.floats(min_value=1e-9, max_value=1e9))
def test_settings_survive_as_the_very_same_numbers(number: float, seconds: float) -> None:
    policy = POLICY.model_copy(update={"window": number, "rate_window": seconds})
    assert PolicySettings.model_construct(**dict(policy)) == policy
    again = PolicySettings.model_validate_json(
        policy.model_copy(update={"window": max(number, 10.0)}).model_dump_json()
    )
    assert (again.window, again.rate_window) == (max(number, 10.0), seconds)


def test_a_tick_that_fails_now_is_left_out_and_what_follows_is_after_a_gap(path: Path) -> None:
    with opened(path) as journal:
        writer = Writer(journal)
        for i in range(1, 6):
            writer.tick(page(float(i)))

    def newer(samples, memory, policy, now):
        if memory.tick + 1 == 3:
            raise ZeroDivisionError
        return small_tick(samples, memory, policy, now)

    journal = Journal(settings(path), newer)
    assert (journal.memory.tick, finished(journal.memory)) == (5, 1 + 2 + 4 + 5)
    Writer(journal, now=journal.last_at).tick(page(1))
    assert journal.close()
    assert [gap for (gap,) in rows(path, "SELECT gap FROM segments ORDER BY id")] == [0, 1]


def test_an_upgrade_that_knows_an_option_no_more_starts_and_leaves_out_the_ticks_of_it(path: Path) -> None:
    with opened(path) as journal:
        writer = Writer(journal)
        for i in range(1, 4):
            writer.tick(page(float(i)))
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE settings SET policy = json_set(policy, '$.gone', 1)")
        other.commit()
    with opened(path) as journal:
        assert journal.memory.tick == 3
        Writer(journal, now=journal.last_at).tick(page(7.0))
        written(journal)
    found = replay(path, small_tick)
    assert (found.ticks, found.different) == (1, 3)
    assert "its settings cannot be read" in found.first_difference


# -- kill -9 ---------------------------------------------------------------------------------------

_KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from daemon_fakes import *
journal = Journal(settings(Path(sys.argv[1])), small_tick)
writer = Writer(journal, now=journal.last_at or NOON)
for i in range(10**6):
    writer.tick(page(1.0, writer.now))
    if journal.writes % 7 == 1:
        print(journal.writes, flush=True)
"""


def test_after_kill_9_nothing_is_lost_or_there_twice(path: Path) -> None:
    """Whatever the moment, what comes back is a whole number of ticks, and their sum."""
    script = _KILLED.format(here=str(Path(__file__).parent))
    for round_ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(3 + 4 * round_):
                assert process.stdout.readline()
            process.kill()
        with opened(path) as journal:
            ticks = rows(path, "SELECT count(*), max(tick) FROM ticks")[0]
            assert ticks == (journal.memory.tick, journal.memory.tick)
            assert finished(journal.memory) == journal.memory.tick  # one finished request a tick
    found = replay(path, small_tick)
    assert (found.different, found.gaps) == (0, 0)
    assert found.ticks == found.decisions == journal.memory.tick


# -- the disk --------------------------------------------------------------------------------------


class Disk:
    """A disk that can be full, for the connections of the journal's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most_pages = 1 << 30
        self._connections: list[sqlite3.Connection] = []
        connect = file.connect

        def limited(path: Path) -> sqlite3.Connection:
            connection = connect(path)
            connection.execute(f"PRAGMA max_page_count = {self.most_pages}")
            self._connections.append(connection)
            return connection

        monkeypatch.setattr(file, "connect", limited)

    def set(self, pages: int) -> None:
        self.most_pages = pages
        for connection in self._connections:
            try:
                connection.execute(f"PRAGMA max_page_count = {pages}")
            except sqlite3.ProgrammingError:  # closed after a failure
                continue


def test_a_full_disk_costs_the_ticks_of_that_time_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    with opened(path) as journal:
        writer = Writer(journal)
        for i in range(5):
            writer.tick(page(float(i)))
        written(journal)
        assert (journal.error, journal.writes, journal.failures) == ("", 5, 0)

        disk.set(1)  # SQLite takes it as: not one page more
        big = tuple(page(float(i), target=f"{i}:8000") for i in range(500))
        for i in range(3):
            writer.tick(*big, notes=(note(f"while-full-{i}"),))
        written(journal)
        assert journal.error == f"the journal {path} cannot be written: database or disk is full"
        assert (journal.writes, journal.failures) == (5, 3)

        disk.set(1 << 30)
        for i in range(module.WELL_AFTER_WRITES):
            assert journal.error != ""
            writer.tick(page(float(i)))
            written(journal)
        assert (journal.error, journal.writes, journal.failures) == ("", 15, 3)
        # What was decided and told meanwhile is there, in its order.
        assert [event.kind for event in journal.events(Matching(limit=3))][::-1] == [
            f"while-full-{i}" for i in range(3)
        ]
        assert len(journal.decisions(Matching())) == 15 + 3 * 500
    assert [gap for (gap,) in rows(path, "SELECT gap FROM segments ORDER BY id")] == [0, 1]
    assert [tick for (tick,) in rows(path, "SELECT tick FROM ticks ORDER BY tick")] == [
        *range(1, 6),
        *range(9, 19),
    ]
    found = replay(path, small_tick)
    assert (found.ticks, found.gaps, found.different) == (15, 1, 0)
    with opened(path) as journal:
        assert journal.memory == writer.memory  # the totals of the lost ticks are in the checkpoint


def test_a_disk_that_does_not_answer_never_holds_up_who_ticks(path: Path) -> None:
    with opened(path) as journal, closing(sqlite3.connect(path, isolation_level=None)) as other:
        writer = Writer(journal)
        writer.tick(page(1.0))
        written(journal)
        other.execute("BEGIN IMMEDIATE")  # nobody else can write now
        writer.patient = False
        took = []
        for _ in range(module._MOST_QUEUED + 10):
            begun = time.monotonic()
            writer.tick(page(1.0), notes=(note("n"),))
            took.append(time.monotonic() - begun)
        assert min(took[-8:]) < 1.0, "not each of those that find no more room waits"
        assert "wait for the disk already" in journal.error
        assert journal.failures >= 8
        other.execute("COMMIT")
        written(journal)
        for _ in range(module.WELL_AFTER_WRITES):
            writer.tick(page(1.0))
        written(journal)
        assert journal.error == ""
        assert len(journal.events(Matching())) == module._MOST_QUEUED + 10
    with opened(path) as journal:
        assert journal.memory == writer.memory
    assert replay(path, small_tick).different == 0


def test_a_journal_that_breaks_while_it_is_used_is_told_and_stays_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as journal:
        writer = Writer(journal)
        writer.tick(page(1.0))
        written(journal)

        def broken(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(file, "insert_decision", broken)
            writer.tick(page(1.0))
            written(journal)
            assert journal.error == f"the journal {path} cannot be written: disk I/O error"
        for _ in range(module.WELL_AFTER_WRITES):
            writer.tick(page(1.0))
        written(journal)
        assert journal.error == ""
    assert [tick for (tick,) in rows(path, "SELECT tick FROM ticks")] == [1, *range(3, 13)]


def test_a_write_that_goes_well_at_the_second_try_is_no_failure(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, failures = file.insert_decision, iter([sqlite3.OperationalError("database or disk is full")])

    def fails_once(*arguments: Any) -> None:
        if error := next(failures, None):
            raise error
        insert(*arguments)

    monkeypatch.setattr(file, "insert_decision", fails_once)
    with opened(path) as journal:
        writer = Writer(journal)
        for _ in range(3):
            writer.tick(page(1.0))
        written(journal)
        assert (journal.error, journal.writes, journal.failures) == ("", 3, 0)
    assert replay(path, small_tick).ticks == 3


def test_a_commit_that_seemed_to_fail_counts_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = file.transaction

    @contextmanager
    def fails_after_commit(connection: sqlite3.Connection) -> Iterator[None]:
        with transaction(connection):
            yield
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")

    with opened(path) as journal:
        writer = Writer(journal)
        writer.tick(page(1.0))
        written(journal)
        monkeypatch.setattr(file, "transaction", fails_after_commit)
        for _ in range(3):
            writer.tick(page(1.0), notes=(note("n"),))
        written(journal)
        assert (journal.error, journal.failures) == ("", 0)
        assert len(journal.events(Matching())) == 3
    found = replay(path, small_tick)
    assert (found.ticks, found.gaps, found.different) == (4, 0, 0)


def test_reading_before_anything_is_written_does_not_blind_later_readers(path: Path) -> None:
    with opened(path) as journal:
        assert journal.events(Matching()) == []
        Writer(journal).tick(notes=(note("n"),))
        written(journal)
        assert len(journal.events(Matching())) == 1


# -- reading back ----------------------------------------------------------------------------------


def test_decisions_and_events_are_found_by_what_they_are(path: Path) -> None:
    with opened(path) as journal:
        writer = Writer(journal)
        for i in range(1, 4):
            writer.tick(page(float(i), target="a:1"), page(float(i), target="b:1"), notes=(note(f"k{i}"),))
        written(journal)
        everything = journal.decisions(Matching())
        assert [decision.id for decision in everything] == ["3-2", "3-1", "2-2", "2-1", "1-2", "1-1"]
        assert everything[-1].evidence[0].value == 1.0
        assert [d.target for d in journal.decisions(Matching(target="b:1", limit=2))] == ["b:1", "b:1"]
        assert journal.decisions(Matching(action="scale")) == []
        assert len(journal.decisions(Matching(since=NOON + 2.0))) == 4
        assert [event.kind for event in journal.events(Matching(kind="k2"))] == ["k2"]
        journal.outcome("2-1", "done")
        written(journal)
        assert {d.id for d in journal.decisions(Matching()) if d.outcome == "done"} == {"2-1"}


# -- retention -------------------------------------------------------------------------------------


def test_time_that_goes_back_begins_a_segment_that_replays(path: Path) -> None:
    with opened(path) as journal:
        writer = Writer(journal, now=NOON + 365 * 86400.0)
        writer.tick(page(1.0))
        writer.now, writer.memory = NOON, rewind(writer.memory, NOON)
        for _ in range(3):
            writer.tick(page(1.0))
        written(journal)
        assert [event.kind for event in journal.events(Matching())] == []
    with opened(path) as journal:
        assert journal.memory == writer.memory
        assert journal.last_at == writer.now
    assert rows(path, "SELECT gap FROM segments") == [(0,), (1,)]
    found = replay(path, small_tick)
    assert (found.ticks, found.different) == (4, 0)


def test_a_clock_that_leaps_makes_nothing_older(path: Path) -> None:
    with opened(path, keep_samples=600.0, keep_decisions=86400.0) as journal:
        writer = Writer(journal)
        for i in range(300):
            writer.tick(page(float(i)), notes=(note("early", writer.now),) if i == 0 else ())
        writer.now += 365 * 86400.0
        for i in range(120):
            writer.tick(page(float(i)), notes=(note(LEAP, writer.now),) if i == 0 else ())
        written(journal)
        journal.prune(writer.now)
        written(journal)
        assert rows(path, "SELECT min(tick) FROM ticks") == [(1,)]
        assert [event.kind for event in journal.events(Matching())] == [LEAP, "early"]
        journal.prune(writer.now + 100.0)
        written(journal)
        assert rows(path, "SELECT min(tick) FROM ticks") == [(1,)]
        for i in range(400):
            writer.tick(page(float(i)))
        written(journal)
        journal.prune(writer.now)
        written(journal)
        assert rows(path, "SELECT min(tick) FROM ticks")[0][0] > 100, "600 s of recorded time are kept"
        journal.prune(writer.now + 2 * 86400.0)
        written(journal)
        assert [event.kind for event in journal.events(Matching())] == [], "the leap itself is too old now"


def test_old_samples_go_up_to_a_checkpoint_and_the_rest_replays(path: Path) -> None:
    with opened(path, keep_samples=300.0) as journal:
        writer = Writer(journal)
        for i in range(1000):
            writer.tick(page(float(i % 10), writer.now))
            written(journal)
        journal.prune(writer.now)
        written(journal)
        assert journal.error == ""
        first, count = rows(path, "SELECT min(tick), count(*) FROM ticks")[0]
        assert 300 <= count <= 300 + module.CHECKPOINT_SECONDS
        assert rows(path, "SELECT min(tick) FROM checkpoints") == [(first - 1,)]
        assert len(journal.decisions(Matching())) == 1000  # they have an age of their own
    found = replay(path, small_tick)
    assert (found.ticks, found.different) == (count, 0)
    with opened(path) as journal:
        assert journal.memory == writer.memory


def test_decisions_and_events_go_by_age_but_not_before_their_ticks(path: Path) -> None:
    with opened(path, keep_samples=300.0, keep_decisions=10.0) as journal:
        writer = Writer(journal)
        for i in range(500):
            writer.tick(page(float(i % 10), writer.now), notes=(note("n", writer.now),))
            written(journal)
        journal.prune(writer.now)
        written(journal)
        (count,) = rows(path, "SELECT count(*) FROM ticks")[0]
        assert len(journal.decisions(Matching())) == count
        assert len(journal.events(Matching())) == 10
    assert replay(path, small_tick).different == 0


def test_a_journal_that_is_too_large_loses_its_oldest_samples_and_shrinks(path: Path) -> None:
    limit = 1 << 20
    with opened(path, journal_limit=limit) as journal:
        writer = Writer(journal)
        noise = os.urandom(30_000).hex()
        for _ in range(400):
            writer.tick(page(1.0, writer.now, model=noise[writer.memory.tick : 20_000 + writer.memory.tick]))
            written(journal)
        before = path.stat().st_size
        journal.prune(writer.now)
        written(journal)
        assert before > 4 * limit
    assert path.stat().st_size <= limit * 1.1  # some free pages stay
    (count,) = rows(path, "SELECT count(*) FROM ticks")[0]
    assert 0 < count < 200
    assert replay(path, small_tick).different == 0


def test_what_is_told_too_often_goes_before_it_fills_the_disk_and_leaves_room_for_samples(path: Path) -> None:
    limit = 1 << 20
    with opened(path, journal_limit=limit) as journal:
        writer = Writer(journal)
        for _ in range(10):
            notes = tuple(note("n" * 800, writer.now) for _ in range(300))
            writer.tick(page(1.0, writer.now), notes=notes)
        written(journal)
        journal.prune(writer.now)
        written(journal)
        assert len(journal.events(Matching())) == limit // 4 // 1024
        assert rows(path, "SELECT count(*) FROM ticks") == [(10,)]
        journal.prune(writer.now)
        written(journal)
    assert path.stat().st_size <= limit * 1.1
    assert replay(path, small_tick).different == 0


def test_pruning_an_empty_journal_is_nothing(path: Path) -> None:
    with opened(path) as journal:
        journal.prune(NOON)
        written(journal)
        assert (journal.error, journal.failures) == ("", 0)


# -- what is refused -------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(JournalError) as error:
        Journal(settings(path), small_tick)
    assert path.read_bytes() == before
    return str(error.value)


def test_a_foreign_file_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    for content in (b"", b"precious", b"\0" * 5000):
        path.write_bytes(content)
        assert refusal(path).startswith(f"{path} is not a journal of controlplane; nothing was changed")
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE precious (x)")
    assert "is not a journal of controlplane" in refusal(path)


def test_a_journal_of_another_schema_is_refused(path: Path) -> None:
    with opened(path) as journal:
        Writer(journal).tick(page(1.0))
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    assert refusal(path).startswith(f"the journal {path} has schema version 99, this program knows 1")


def test_a_damaged_journal_is_refused_and_left_alone(path: Path) -> None:
    with opened(path) as journal:
        writer = Writer(journal)
        for _ in range(50):
            writer.tick(*(page(1.0, target=f"{i}") for i in range(50)))
    size = path.stat().st_size
    with path.open("r+b") as damaged:
        damaged.seek(size // 2)
        damaged.write(os.urandom(size // 4))
    assert refusal(path).startswith(f"the journal {path} is damaged (")
    path.write_bytes(path.read_bytes()[: size // 3])
    assert f"the journal {path} is damaged" in refusal(path)


def test_a_checkpoint_that_cannot_be_read_is_refused_in_a_sentence(path: Path) -> None:
    with opened(path) as journal:
        Writer(journal).tick(page(1.0))
    for blob in (b"no zlib", file.pack(Samples())[:-3], file.zlib.compress(b"\x93\x01\x02\x03")):
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE checkpoints SET memory = ?", (blob,))
            other.commit()
        assert f"the journal {path} is damaged (the checkpoint of tick 0 " in refusal(path)


def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_is_used(path: Path) -> None:
    with opened(path) as journal:
        writer = Writer(journal)
        for i in range(130):
            writer.tick(page(float(i), writer.now))
    with closing(sqlite3.connect(path)) as other:
        (number,) = other.execute("SELECT tick FROM checkpoints ORDER BY id DESC LIMIT 1").fetchone()
        other.execute("UPDATE checkpoints SET memory = ? WHERE tick = ?", (b"no zlib", number))
        other.commit()
    told = look(path, small_tick)
    assert told.startswith(f"the journal {path} is damaged: the checkpoint of tick {number} cannot be read")
    assert told.endswith("; an earlier one is used")
    with opened(path) as journal:
        assert journal.memory == writer.memory
        assert journal.damage == told
        Writer(journal).tick(page(1.0))
    with opened(path) as journal:
        assert journal.damage == "", "the new segment has begun with a good one"


def test_a_damaged_tick_is_refused_with_the_name_of_the_file(path: Path) -> None:
    with opened(path) as journal:
        Writer(journal).tick(page(1.0))
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE ticks SET samples = ?", (b"no zlib",))
        other.commit()
    sentence = refusal(path)
    assert sentence.startswith(f"the journal {path} is damaged (tick 1 cannot be read: ")
    for also in (look, replay):
        with pytest.raises(JournalError) as error:
            also(path, small_tick)
        assert str(error.value) == sentence


def test_a_second_daemon_on_the_same_journal_is_refused(path: Path) -> None:
    with opened(path), pytest.raises(JournalError) as error:
        Journal(settings(path), small_tick)
    assert str(error.value) == f"the journal {path} belongs to a running daemon (process {os.getpid()})"
    with opened(path):
        pass  # the lock went with its owner


def test_logs_of_a_journal_that_was_moved_away_are_not_mixed_into_a_new_one(path: Path) -> None:
    path.parent.mkdir()
    log = path.with_name("journal.db-wal")
    log.write_bytes(b"frames of another file")
    with pytest.raises(JournalError, match="belongs to a journal that is no longer there"):
        Journal(settings(path), small_tick)
    assert log.read_bytes() == b"frames of another file"


def test_only_the_owner_may_read_it(path: Path) -> None:
    with opened(path) as journal:
        Writer(journal).tick(page(1.0))
        written(journal)
        for name in ("journal.db", "journal.db-wal", "journal.db.lock"):
            assert path.with_name(name).stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_place_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be made: "):
        Journal(settings(tmp_path / "file" / "journal.db"), small_tick)
    (tmp_path / "journal.db").mkdir()
    with pytest.raises(JournalError, match="cannot be read: Is a directory"):
        Journal(settings(tmp_path / "journal.db"), small_tick)


# -- leaders --------------------------------------------------------------------------------------


def test_terms_grow_over_restarts_and_kill_9_and_whatever_the_clock_does(path: Path) -> None:
    terms = []
    for now in (NOON, NOON, NOON + 0.5, NOON + 100, NOON - 10_000):
        with opened(path) as journal:
            terms.append(journal.lead(now))
    assert terms == [NOON, NOON + 1, NOON + 2, NOON + 100, NOON + 101]


def test_a_journal_that_was_lost_leads_with_a_higher_term_all_the_same(path: Path) -> None:
    with opened(path) as journal:
        first = journal.lead(NOON)
    for file_ in path.parent.iterdir():
        file_.unlink()
    with opened(path) as journal:
        assert journal.lead(NOON + 3600) > first


def test_the_many_decisions_on_limits_go_with_their_samples_and_others_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(samples, memory, policy, now):
        snapshot, decisions, after = small_tick(samples, memory, policy, now)
        limit = msgspec.structs.replace(decisions[0], id=f"{after.tick}-2", action="set-limit")
        return snapshot, (*decisions, limit), after

    monkeypatch.setattr("daemon_fakes.small_tick", both)
    with opened(path, keep_samples=300.0) as journal:
        writer = Writer(journal)
        for i in range(600):
            writer.tick(page(float(i), writer.now))
        journal.prune(writer.now)
        written(journal)
        limits, others = (
            len(journal.decisions(Matching(action=action))) for action in ("set-limit", "limit")
        )
    assert 300 <= limits <= 420
    assert others == 600
