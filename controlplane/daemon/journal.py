"""The journal of a running daemon: every tick in one transaction, written by a thread of its own.

The loop hands entries over and never waits for the disk. While the disk is slow they queue; while it is
full or broken ticks are lost to the journal, counted, and the loop goes on. What was decided and what
happened in lost ticks is kept and written as soon as something can be written again; then a new segment
begins with a checkpoint, so that what follows can be replayed.

On start the memory is brought back to exactly where the last committed tick left it: from the newest
checkpoint that can be read through the ticks after it. Cumulative counters do the rest: what the engines
counted while no tick was committed is in the difference to the next scrape, once.
"""

import fcntl
import logging
import os
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from controlplane import __version__
from controlplane.daemon import clock
from controlplane.daemon import journal_file as file
from controlplane.daemon.journal_file import JournalError, Matching
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.memory import Memory, rewind
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import SET_LIMIT, Decision, Event
from controlplane.signals.samples import Samples
from controlplane.signals.snapshot import FleetSnapshot

T = TypeVar("T")
TickFunction: TypeAlias = Callable[
    [Samples, Memory, PolicySettings, float], tuple[FleetSnapshot, tuple[Decision, ...], Memory]
]

CHECKPOINT_SECONDS = 60.0
_MOST_APART_SECONDS = 3 * CHECKPOINT_SECONDS  # more between two checkpoints is a stop or a jump of the clock
WELL_AFTER_WRITES = 10
"""Writes in a row after which a journal that failed counts as well: an almost full disk takes a few."""

_MOST_QUEUED = 120  # entries, so two minutes of a stuck disk
_MOST_LOST = 1000  # lost ticks whose decisions and events are kept
_MOST_CUT = 60  # checkpoints a prune may cut off, so that the queue is never held up for long
_MOST_VACUUMED = 5000  # pages a prune may give back to the file system
_TOLD_BYTES = 1024  # of a decision or an event with its indexes, about
_TOLD_SHARE = 4  # each of the two may take so much of the journal's limit: 1 / this

log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """One tick: what went in, what came out, the memory before and after it.

    `events` are the tick's own, `notes` what the daemon itself has to tell.
    """

    at: float
    settings: PolicySettings
    samples: Samples
    decisions: tuple[Decision, ...]
    events: tuple[Event, ...]
    notes: tuple[Event, ...]
    before: Memory
    after: Memory


class Recovered(NamedTuple):
    """Where the last committed tick left the memory, and when (0.0: there is none).

    `chained` says whether all ticks led to it; `damage` is a sentence about what could not be read of the
    journal, empty where all could.
    """

    memory: Memory
    last_at: float
    chained: bool
    damage: str


class _Outcome(msgspec.Struct, frozen=True):
    decision_id: str
    outcome: str


class _Prune(msgspec.Struct, frozen=True):
    now: float


class Journal:
    """An open journal. All its methods may be called in the loop; `events` and `decisions` read the disk.

    `memory` is what was brought back, `last_at` the time of its tick, `damage` what could not be read of it.
    `error` is the sentence of what keeps it from writing, empty where all is well; `writes` and `failures`
    count the ticks that were kept and lost. `settings` may be replaced; what they say about retention counts
    from then on.
    """

    def __init__(self, settings: DaemonSettings, tick: TickFunction) -> None:
        """Open or make the journal, bring the memory back. Raises JournalError with a sentence."""
        self._path = settings.journal
        self.settings = settings
        self.error = ""
        self.writes = 0
        self.failures = 0
        self._writes_in_a_row = 0
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"the journal {self._path} cannot be made: {file.why(error)}") from None
        self._lock = _lock(self._path)
        try:
            if not self._path.is_symlink() and not self._path.exists():
                file.create(self._path)
            self._connection: sqlite3.Connection | None = file.connect(self._path)
            with _closed_on_error(self._connection):
                file.check(self._connection, self._path)
                self.memory, self.last_at, self._chained, self.damage = recover(
                    self._connection, self._path, tick
                )
        except BaseException:
            os.close(self._lock)
            raise
        self._segment: int | None = None
        self._last_tick = self.memory.tick
        self._last_tick_at = self.last_at
        self._last_settings: tuple[int, PolicySettings] | None = None
        self._checkpoint_at = 0.0
        self._lost: deque[Entry] = deque(maxlen=_MOST_LOST)
        self._queue: queue.Queue[Entry | _Outcome | _Prune | None] = queue.Queue(_MOST_QUEUED)
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """What waits to be written or is being written."""
        return self._queue.unfinished_tasks

    def append(self, entry: Entry) -> None:
        """Have one tick written. Where too many wait already, it is lost as on a full disk."""
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._failed(entry, self._cannot_write(f"{_MOST_QUEUED} ticks wait for the disk already"))

    def lead(self, now: float) -> int:
        """The term of a daemon that begins to steer at Unix time `now`: higher than all before it.

        Raises JournalError where it cannot be kept: two daemons of one term could not be told apart.
        """
        with file.naming(self._path), closing(file.connect(self._path)) as connection:
            return file.next_term(connection, now)

    def outcome(self, decision_id: str, outcome: str) -> None:
        """Have the outcome of a decision that was pending written; the decision is in the queue before it."""
        self._put(_Outcome(decision_id, outcome))

    def prune(self, now: float) -> None:
        """Have dropped what is older at Unix time `now` or larger than the settings allow."""
        self._put(_Prune(now))

    def decisions(self, matching: Matching) -> list[Decision]:
        """Recorded decisions. Raises JournalError."""
        return self._read(lambda connection: file.read_decisions(connection, matching))

    def events(self, matching: Matching) -> list[Event]:
        """Recorded events. Raises JournalError."""
        return self._read(lambda connection: file.read_events(connection, matching))

    def close(self, timeout_seconds: float = 10.0) -> bool:
        """Write what waits, then let go of the file. Returns False where the time was not enough."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=timeout_seconds)
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        os.close(self._lock)
        return True

    def _put(self, item: _Outcome | _Prune) -> None:
        # Neither is worth a report of its own: where the queue is full, ticks are lost too and that is told.
        with suppress(queue.Full):
            self._queue.put_nowait(item)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        # A connection of its own each time: one that stays open would keep the log from being emptied.
        with file.naming(self._path), closing(file.connect_to_read(self._path)) as connection:
            return read(connection)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._carry_out(item)
            except Exception as error:  # whatever it is, the daemon goes on without its journal
                sentence = error if isinstance(error, JournalError) else self._cannot_write(file.why(error))
                self._failed(item if isinstance(item, Entry) else None, str(sentence))
                self._let_go()
            self._queue.task_done()
        self._let_go()

    def _carry_out(self, item: Entry | _Outcome | _Prune) -> None:
        """Do it, at a second try if need be: where the log found no more room, closing it makes some."""
        if self._connection is not None:
            try:
                self._do(item, self._connection)
                return
            except sqlite3.Error:
                self._let_go()
        self._connection = file.connect(self._path)
        if isinstance(item, Entry) and file.has_tick(self._connection, item.after.tick):
            # The disk failed after the commit was written: it counts, with all that was written with it.
            self._segment, self._last_tick, self._last_tick_at = None, item.after.tick, item.at
            self.writes += 1
            self._lost.clear()
            return
        self._do(item, self._connection)

    def _do(self, item: Entry | _Outcome | _Prune, connection: sqlite3.Connection) -> None:
        match item:
            case Entry():
                self._write(connection, item)
                self.writes += 1
                self._writes_in_a_row += 1
                if self._writes_in_a_row >= WELL_AFTER_WRITES:
                    self.error = ""
            case _Outcome():
                connection.execute(
                    "UPDATE decisions SET outcome = ? WHERE id = ?", (item.outcome, item.decision_id)
                )
            case _Prune():
                self._prune(connection, item.now)

    def _let_go(self) -> None:
        """Close the connection: after a failure nothing is known of its state."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _cannot_write(self, why: str) -> str:
        return f"the journal {self._path} cannot be written: {why}"

    def _failed(self, lost: Entry | None, sentence: str) -> None:
        if lost:
            # The large parts would fill the memory instead of the disk; only what people ask for is kept.
            self._lost.append(
                msgspec.structs.replace(lost, samples=Samples(), before=Memory(), after=Memory())
            )
            self.failures += 1
        self._writes_in_a_row = 0
        self.error = sentence

    def _write(self, connection: sqlite3.Connection, entry: Entry) -> None:
        """Commit one tick. What is known of the file changes only when it is committed."""
        tick = entry.after.tick
        segment, settings, checkpoint_at = self._segment, self._last_settings, self._checkpoint_at
        lost = [self._lost.popleft() for _ in range(len(self._lost))]
        with self._kept_on_error(lost), file.transaction(connection):
            # Where time went back the memory began anew: nothing leads from the tick before to this one.
            gap = entry.before.tick != self._last_tick or entry.at < self._last_tick_at
            if segment is None or gap:
                gap = gap or not self._chained
                segment = _insert(connection, "segments (program, gap)", __version__, gap)
                _checkpoint(connection, segment, entry.at, entry.before)
                checkpoint_at = entry.at
            if settings is None or settings[1] != entry.settings:
                policy = entry.settings.model_dump_json()
                settings = _insert(connection, "settings (at, policy)", entry.at, policy), entry.settings
            _insert(
                connection, "ticks (tick, segment, at, settings, samples)",
                tick, segment, entry.at, settings[0], file.pack(entry.samples),
            )  # fmt: skip
            for missed in lost:
                for decision in missed.decisions:
                    file.insert_decision(connection, None, decision)
                for event in (*missed.notes, *missed.events):
                    file.insert_event(connection, None, event)
            for decision in entry.decisions:
                file.insert_decision(connection, tick, decision)
            for event in entry.notes:
                file.insert_event(connection, None, event)
            for event in entry.events:
                file.insert_event(connection, tick, event)
            if entry.at - checkpoint_at >= CHECKPOINT_SECONDS:
                _checkpoint(connection, segment, entry.at, entry.after)
                checkpoint_at = entry.at
        self._segment, self._last_settings, self._checkpoint_at = segment, settings, checkpoint_at
        self._last_tick, self._last_tick_at, self._chained = tick, entry.at, True

    @contextmanager
    def _kept_on_error(self, lost: list[Entry]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._lost.extendleft(reversed(lost))
            raise

    def _prune(self, connection: sqlite3.Connection, now: float) -> None:
        """Drop what is too old or too much. Samples go up to a checkpoint, so that the rest replays.

        Ages are of recorded time: a clock that jumps makes nothing older.
        """
        checkpoints = connection.execute(
            "SELECT id, tick, segment, at FROM checkpoints ORDER BY id"
        ).fetchall()
        ages = _ages([at for *_, at in checkpoints], now)
        for (id_, tick, segment, _), age in list(zip(checkpoints, ages, strict=True))[1 : _MOST_CUT + 1]:
            if age < self.settings.keep_samples and _bytes_used(connection) <= self.settings.journal_limit:
                break
            with file.transaction(connection):
                connection.execute("DELETE FROM ticks WHERE tick <= ?", (tick,))
                connection.execute("DELETE FROM checkpoints WHERE id < ?", (id_,))
                connection.execute("DELETE FROM segments WHERE id < ?", (segment,))
                connection.execute("DELETE FROM settings WHERE id < (SELECT min(settings) FROM ticks)")
        first = connection.execute("SELECT min(tick) FROM ticks").fetchone()[0]
        if first is not None:
            # Limits move all the time: they are kept as long as the samples that moved them, not for weeks.
            with file.transaction(connection):
                connection.execute("DELETE FROM decisions WHERE tick < ? AND action = ?", (first, SET_LIMIT))
        # What belongs to a tick that can still be replayed stays, however old it is.
        done = "(tick IS NULL OR ?1 IS NULL OR tick < ?1)"
        oldest = now - self.settings.keep_decisions
        most = self.settings.journal_limit // _TOLD_SHARE // _TOLD_BYTES
        leapt = _leapt(connection, oldest, now)
        for table in ("decisions", "events"):
            with file.transaction(connection):
                if not leapt:
                    connection.execute(f"DELETE FROM {table} WHERE {done} AND at < ?2", (first, oldest))  # noqa: S608 - names of our own
                counted = connection.execute(f"SELECT count(*) FROM {table} WHERE {done}", (first,))  # noqa: S608
                connection.execute(
                    f"DELETE FROM {table} WHERE seq IN "  # noqa: S608
                    f"(SELECT seq FROM {table} WHERE {done} ORDER BY seq LIMIT ?2)",
                    (first, max(0, counted.fetchone()[0] - most)),
                )
        # The free pages that the next minutes will need stay; giving them back and taking them again is work.
        surplus = _pragma(connection, "freelist_count") - _pragma(connection, "page_count") // 20
        if surplus > 0:
            # As a script, because each step of this statement frees one page and `execute` takes but one.
            connection.executescript(f"PRAGMA incremental_vacuum({min(surplus, _MOST_VACUUMED)})")


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _lock(path: Path) -> int:
    """A descriptor that holds the lock of the journal at `path`. Raises JournalError."""
    # Not on the journal itself: closing any descriptor of a file drops the locks SQLite has on it.
    beside = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"the journal's lock {beside} cannot be opened: {file.why(error)}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise JournalError(f"the journal {path} belongs to a running daemon (process {pid})") from None
    except OSError as error:
        os.close(descriptor)
        raise JournalError(f"the journal's lock {beside} cannot be taken: {file.why(error)}") from None
    return descriptor


def look(path: Path, tick: TickFunction) -> str:
    """What is damaged of the journal at `path` though a start would go on from it, "" where nothing is.

    Changes nothing. Raises JournalError where a start would.
    """
    with file.naming(path), closing(file.connect_to_replay(path)) as connection:
        file.check(connection, path)
        return recover(connection, path, tick).damage


def recover(connection: sqlite3.Connection, path: Path, tick: TickFunction) -> Recovered:
    """The state after the last committed tick. Raises JournalError."""
    with file.naming(path):
        checkpoint, damage = file.newest_checkpoint(connection)
        if damage:
            damage = f"the journal {path} is damaged: {damage}; an earlier one is used"
        memory = checkpoint.memory if checkpoint else Memory()
        last_at, chained = (checkpoint.at if checkpoint else 0.0), not damage
        for row in file.read_ticks(connection, after=memory.tick):
            try:
                if row.at < memory.now:
                    memory = rewind(memory, row.at)
                _, _, memory = tick(row.samples, memory, row.policy, row.at)
            except Exception:
                # It went well when it was recorded, so this program is not the one that recorded it.
                fields = {"tick": row.number}
                log.exception("a recorded tick fails now and is left out", extra={"fields": fields})
                memory, chained = msgspec.structs.replace(memory, tick=row.number), False
            last_at = row.at
    return Recovered(memory, last_at, chained, damage)


def _ages(times: list[float], now: float) -> list[float]:
    """How much recorded time (seconds) lies between each checkpoint and `now`; all are in their order."""
    ages, age, later = [], 0.0, now
    for at in reversed(times):
        age += min(max(0.0, later - at), _MOST_APART_SECONDS)
        ages.append(age)
        later = at
    return ages[::-1]


def _leapt(connection: sqlite3.Connection, since: float, now: float) -> bool:
    """Whether the clock leapt in that time: then the times from before it say nothing of an age."""
    leap = "SELECT 1 FROM events WHERE kind = ? AND at BETWEEN ? AND ?"
    return connection.execute(leap, (clock.LEAP, since, now)).fetchone() is not None


def _insert(connection: sqlite3.Connection, into: str, *values: object) -> int:
    marks = ", ".join("?" * len(values))
    cursor = connection.execute(f"INSERT INTO {into} VALUES ({marks})", values)  # noqa: S608 - names of our own
    return int(cursor.lastrowid or 0)


def _checkpoint(connection: sqlite3.Connection, segment: int, at: float, memory: Memory) -> None:
    _insert(
        connection, "checkpoints (segment, tick, at, memory)", segment, memory.tick, at, file.pack(memory)
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _bytes_used(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")
