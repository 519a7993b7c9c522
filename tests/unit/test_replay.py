"""Replay: the same code reaches the same; any difference is found and put into words."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from daemon_fakes import NOON, POLICY, Writer, page, settings, small_tick

from controlplane.cli import cli
from controlplane.daemon import journal_file as file
from controlplane.daemon.journal import Entry, Journal
from controlplane.daemon.journal_file import JournalError
from controlplane.daemon.replay import replay
from controlplane.policy.tick import tick
from controlplane.signals.decision import Mode
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Samples, ScrapeFailure, Target

TARGETS = (Target("a:8000", "chat", "http://a:8000/metrics"),)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A journal of 130 ticks of the small tick."""
    path = tmp_path / "journal.db"
    journal = Journal(settings(path), small_tick)
    writer = Writer(journal)
    for i in range(130):
        writer.tick(page(float(i % 7), writer.now), targets=TARGETS if i == 3 else None)
    assert journal.close()
    return path


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement, values).rowcount == 1
        connection.commit()


def test_the_same_is_reached_again(recorded: Path) -> None:
    found = replay(recorded, small_tick)
    assert (found.ticks, found.decisions, found.events, found.checkpoints) == (130, 130, 1, 3)
    assert (found.same, found.different, found.first_difference) == (262, 0, "")


def test_the_real_tick_reaches_the_same_again(tmp_path: Path) -> None:
    """From a fresh start through failures, a leaving target and a restart of the daemon."""
    path = tmp_path / "journal.db"
    now, samples = NOON, Samples(targets=TARGETS)
    for _ in range(2):
        journal = Journal(settings(path), tick)
        memory = journal.memory
        for i in range(100):
            now += 1.0
            snapshot, decisions, after = tick(samples, memory, POLICY, now)
            journal.append(Entry(now, POLICY, samples, decisions, snapshot.events, (), memory, after))
            memory = after
            failure = ScrapeFailure("a:8000", now, Reason.SCRAPE_FAILED, "a:8000: connection refused")
            samples = Samples(scrapes=(failure,)) if i % 5 == 0 else Samples()
        samples = Samples(targets=())
        assert journal.close()
    found = replay(path, tick)
    assert (found.segments, found.ticks, found.different) == (2, 200, 0)
    assert found.events >= 3  # it joined, its scrapes fail, it left


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("UPDATE decisions SET new = '99' WHERE id = '7-1'",
         "tick 7, decisions on a:8000: new was '99' and is '21.0' now"),
        ("DELETE FROM decisions WHERE id = '9-1'", "tick 9 recorded 0 decisions and reaches 1 now"),
        ("UPDATE events SET sentence = 'x' WHERE tick = 4",
         "tick 4, events on a:8000: sentence was 'x' and is 'a:8000 joined' now"),
        ("DELETE FROM ticks WHERE tick = 20", "tick 21 follows tick 19"),
    ],
)  # fmt: skip
def test_a_difference_is_put_into_words(recorded: Path, statement: str, difference: str) -> None:
    change(recorded, statement)
    found = replay(recorded, small_tick)
    assert found.different > 0
    assert found.first_difference == difference


def test_what_actuators_made_of_a_decision_is_no_difference(recorded: Path) -> None:
    change(recorded, "UPDATE decisions SET mode = 'enforce', outcome = 'done' WHERE id = '5-1'")
    assert replay(recorded, small_tick).different == 0


def test_another_memory_at_a_checkpoint_is_a_difference(recorded: Path) -> None:
    with closing(file.connect_to_read(recorded)) as connection:
        *_, last = file.read_checkpoints(connection, 1)
    other = msgspec.structs.replace(last.memory, now=1.0)
    change(recorded, "UPDATE checkpoints SET memory = ? WHERE tick = ?", file.pack(other), last.tick)
    found = replay(recorded, small_tick)
    assert (found.different, found.first_difference) == (
        1, f"the checkpoint of tick {last.tick} is another memory"
    )  # fmt: skip


def test_a_segment_that_does_not_continue_the_one_before_is_a_difference(recorded: Path) -> None:
    journal = Journal(settings(recorded), small_tick)
    Writer(journal, now=journal.last_at).tick(page(1.0))
    assert journal.close()
    assert replay(recorded, small_tick).different == 0
    change(recorded, "DELETE FROM ticks WHERE tick = 130")
    change(recorded, "DELETE FROM decisions WHERE tick = 130")
    found = replay(recorded, small_tick)
    assert found.first_difference == "segment 2 begins with another memory than tick 129 ended with"


def test_a_tick_that_raises_now_is_a_difference(recorded: Path) -> None:
    def newer(samples, memory, policy, now):
        if memory.tick == 49:
            raise ZeroDivisionError("oh")
        return small_tick(samples, memory, policy, now)

    found = replay(recorded, newer)
    assert found.first_difference == "tick 50 was recorded and fails now: ZeroDivisionError('oh')"
    assert found.ticks == 129


def test_a_journal_in_use_can_be_replayed(tmp_path: Path) -> None:
    journal = Journal(settings(tmp_path / "journal.db"), small_tick)
    writer = Writer(journal)
    for _ in range(200):
        writer.tick(page(1.0, writer.now))
    found = replay(tmp_path / "journal.db", small_tick)
    writer.tick(page(1.0))
    assert journal.close()
    assert found.different == 0
    assert found.ticks >= 140  # all but those that the patient writer lets wait


def test_a_journal_on_a_read_only_medium_can_be_replayed(recorded: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "journal.db"
    copy.parent.mkdir()
    shutil.copy(recorded, copy)
    copy.chmod(0o400)
    before = copy.read_bytes()
    assert replay(copy, small_tick).ticks == 130
    assert copy.read_bytes() == before
    assert [entry.name for entry in copy.parent.iterdir()] == ["journal.db"]


@pytest.mark.parametrize("content", [b"", b"text", b"SQLite format 3\0" + b"\0" * 100])
def test_what_is_no_journal_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(JournalError, match="is not a journal of controlplane"):
        replay(path, small_tick)


def test_the_command_says_it_in_words_and_in_json(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(settings(path), tick)
    snapshot, decisions, after = tick(Samples(targets=TARGETS), journal.memory, POLICY, NOON)
    journal.append(
        Entry(NOON, POLICY, Samples(targets=TARGETS), decisions, snapshot.events, (), journal.memory, after)
    )
    assert journal.close()
    said = CliRunner().invoke(cli, ["replay", str(path)])
    assert said.exit_code == 0
    assert "ticks                1" in said.output
    assert "different 0" in said.output

    change(path, "UPDATE events SET kind = 'replica-x' WHERE tick = 1")
    said = CliRunner().invoke(cli, ["replay", str(path), "--json"])
    assert said.exit_code == 1
    result = json.loads(said.stdout)
    assert (result["ticks"], result["different"]) == (1, 1)
    assert "kind was 'replica-x' and is 'replica-joined' now" in result["first_difference"]

    said = CliRunner().invoke(cli, ["replay", str(tmp_path / "none")])
    assert (said.exit_code, said.stdout) == (1, "")
    assert (
        said.stderr == f"Error: the journal {tmp_path / 'none'} cannot be read: No such file or directory\n"
    )


def test_modes_are_not_compared(recorded: Path) -> None:
    change(recorded, "UPDATE decisions SET mode = ? WHERE id = '6-1'", Mode.ENFORCE.value)
    assert replay(recorded, small_tick).different == 0
