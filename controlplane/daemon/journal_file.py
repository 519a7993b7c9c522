"""The journal as a file: its schema, how it is made, recognized and read. Who writes it is `journal.py`.

The journal is event-sourced. A tick is a pure function of memory, samples, settings and time, so a row of
`ticks` (samples, settings, time) is all that is needed to reach the memory after it from the one before;
`decisions` and `events` are what the tick answered, for people and for `controlplane replay` to compare.
Checkpoints are that memory written out now and then, so that neither a start nor a replay has to begin at
the beginning, and so that old ticks can go.

A segment is a run of ticks that follow each other without a gap. It begins with a checkpoint. A daemon
that starts begins one; so does one that could not write for a while, and says so in `gap`.
"""

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from controlplane.durable import sync_directory
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Decision, Event, Evidence
from controlplane.signals.samples import Samples

APPLICATION_ID = 0x43504A4C  # "CPJL", where SQLite keeps the kind of a file
SCHEMA_VERSION = 1
"""Rises with every change of the tables, and of `Samples` or `Memory` that old files cannot be read as."""

_SCHEMA = f"""
PRAGMA auto_vacuum = INCREMENTAL;
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE segments (
    id INTEGER PRIMARY KEY,
    program TEXT NOT NULL,          -- version of the program that wrote it
    gap INTEGER NOT NULL            -- 1: ticks before it are missing
) STRICT;
CREATE TABLE settings (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    policy TEXT NOT NULL            -- PolicySettings as JSON
) STRICT;
CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY,
    segment INTEGER NOT NULL,
    tick INTEGER NOT NULL,          -- the last tick that this memory knows
    at REAL NOT NULL,
    memory BLOB NOT NULL            -- Memory: msgpack, zlib
) STRICT;
CREATE TABLE ticks (
    tick INTEGER PRIMARY KEY,       -- so no tick is ever there twice
    segment INTEGER NOT NULL,
    at REAL NOT NULL,               -- Unix seconds: the `now` of the tick
    settings INTEGER NOT NULL,
    samples BLOB NOT NULL           -- Samples: msgpack, zlib
) STRICT;
CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY,
    tick INTEGER,                   -- NULL: of a tick that could not be recorded
    at REAL NOT NULL,
    id TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    old TEXT NOT NULL,
    new TEXT NOT NULL,
    reason TEXT NOT NULL,
    sentence TEXT NOT NULL,
    evidence TEXT NOT NULL,         -- JSON
    mode TEXT NOT NULL,
    outcome TEXT NOT NULL
) STRICT;
CREATE INDEX decisions_tick ON decisions (tick);
CREATE INDEX decisions_at ON decisions (at);
CREATE INDEX decisions_id ON decisions (id);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    tick INTEGER,                   -- NULL: of such a tick, or told by the daemon itself
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    target TEXT NOT NULL,
    severity TEXT NOT NULL,
    sentence TEXT NOT NULL
) STRICT;
CREATE INDEX events_tick ON events (tick);
CREATE INDEX events_at ON events (at);
COMMIT;
PRAGMA journal_mode = WAL;
"""

_LEADERS = """
CREATE TABLE IF NOT EXISTS leaders (
    term INTEGER PRIMARY KEY,       -- of one daemon, from its start to its end
    at REAL NOT NULL
) STRICT;
"""

_DECISION_COLUMNS = (
    "tick", "at", "id", "action", "target", "old", "new", "reason", "sentence", "evidence", "mode", "outcome"
)  # fmt: skip
_EVENT_COLUMNS = ("tick", "at", "kind", "target", "severity", "sentence")
_LARGEST_BLOB = 1 << 29  # bytes that a blob may unpack to; more is damage

_memory_decoder = msgspec.msgpack.Decoder(Memory)
_samples_decoder = msgspec.msgpack.Decoder(Samples)
_evidence_decoder = msgspec.json.Decoder(tuple[Evidence, ...])


class JournalError(OSError):
    """The journal cannot be used; the text is a sentence that names it."""


class DamageError(Exception):
    """A part of the journal cannot be read; the text names the part."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what can go wrong in reading the journal at `path` into a JournalError that names it."""
    try:
        yield
    except DamageError as damage:
        raise _damaged(path, str(damage)) from None
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise JournalError(f"the journal {path} cannot be read: {why(error)}") from None


class Tick(msgspec.Struct, frozen=True):
    """One recorded tick: what went in. `number` is the tick's own number.

    The settings are as they were written: `policy` reads them.
    """

    number: int
    segment: int
    at: float
    settings: PolicySettings | str
    samples: Samples

    @property
    def policy(self) -> PolicySettings:
        """Raises ValueError where another version of the program wrote them, whose options are not ours."""
        if isinstance(self.settings, str):
            raise ValueError(f"its settings cannot be read: {self.settings}")
        return self.settings


class Checkpoint(msgspec.Struct, frozen=True):
    """The memory after tick `tick`."""

    tick: int
    segment: int
    at: float
    memory: Memory


class Segment(msgspec.Struct, frozen=True):
    id: int
    program: str
    gap: bool


class Matching(msgspec.Struct, frozen=True):
    """Which decisions or events: those that match all that is given.

    Those of one tick come in their order, all others newest first, at most `limit` (-1: no limit).
    """

    tick: int | None = None
    since: float | None = None
    target: str | None = None
    action: str | None = None
    kind: str | None = None
    limit: int = -1


def next_term(connection: sqlite3.Connection, now: float) -> int:
    """A term that is higher than all before it, kept before it is returned.

    At least the Unix time, so that it is higher than those of a journal that was lost, too.
    """
    connection.execute(_LEADERS)
    with transaction(connection):
        (last,) = connection.execute("SELECT max(term) FROM leaders").fetchone()
        term = max(int(now), (last or 0) + 1)
        connection.execute("DELETE FROM leaders")
        connection.execute("INSERT INTO leaders (term, at) VALUES (?, ?)", (term, now))
    return term


def create(path: Path) -> None:
    """Make an empty journal at `path`, whole or not at all. Raises JournalError."""
    new = path.with_name(f".{path.name}.new")
    for log in _logs(path):
        if log.exists():
            raise JournalError(f"{log} belongs to a journal that is no longer there: move it aside as well")
    try:
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.executescript(_SCHEMA)
        new.rename(path)
        sync_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"the journal {path} cannot be made: {why(error)}") from None
    finally:
        for left in (new, *_logs(new)):
            left.unlink(missing_ok=True)


def recognize(path: Path) -> None:
    """Raises JournalError where the file at `path` is not a journal of this version; changes nothing."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be read: {why(error)}") from None
    kind, version = int.from_bytes(head[68:72], "big"), int.from_bytes(head[60:64], "big")
    if not head.startswith(b"SQLite format 3\0") or kind != APPLICATION_ID:
        raise JournalError(
            f"{path} is not a journal of controlplane; nothing was changed: "
            "move it aside or name another file"
        )
    if version != SCHEMA_VERSION:
        raise JournalError(
            f"the journal {path} has schema version {version}, this program knows {SCHEMA_VERSION}; "
            "nothing was changed: move it aside or name another file"
        )


def connect(path: Path) -> sqlite3.Connection:
    """A connection that may write. Raises JournalError."""
    recognize(path)
    return _connect(path, f"file:{_uri(path)}?mode=rw")


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, beside a daemon that may. Raises JournalError."""
    recognize(path)
    return _connect(path, f"file:{_uri(path)}?mode=ro")


def connect_to_replay(path: Path) -> sqlite3.Connection:
    """As `connect_to_read`, also where nothing at all can be written, not even SQLite's shared memory.

    The connection may be blind to what is written after it was made.
    """
    recognize(path)
    # Without a log of a writer beside it the file is all there is.
    alone = not any(log.exists() for log in _logs(path))
    return _connect(path, f"file:{_uri(path)}?mode=ro{'&immutable=1' if alone else ''}")


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises JournalError where the file is damaged."""
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        found = why(error)
    if found != "ok":
        raise _damaged(path, found)


def pack(value: Memory | Samples) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(value), level=1)


def read_segments(connection: sqlite3.Connection) -> list[Segment]:
    rows = connection.execute("SELECT id, program, gap FROM segments ORDER BY id")
    return [Segment(id_, program, bool(gap)) for id_, program, gap in rows]


def read_checkpoints(connection: sqlite3.Connection, segment: int) -> Iterator[Checkpoint]:
    """Checkpoints of one segment, oldest first; that which opened the segment is the first."""
    rows = connection.execute(
        "SELECT tick, segment, at, memory FROM checkpoints WHERE segment = ? ORDER BY id", (segment,)
    )
    return map(_checkpoint, rows)


def newest_checkpoint(connection: sqlite3.Connection) -> tuple[Checkpoint | None, str]:
    """The newest checkpoint that can be read, and what is wrong with one that is newer; None of none."""
    damage = ""
    for row in connection.execute("SELECT tick, segment, at, memory FROM checkpoints ORDER BY id DESC"):
        try:
            return _checkpoint(row), damage
        except DamageError as error:
            damage = damage or str(error)
    if damage:
        raise DamageError(damage)
    return None, ""


def read_ticks(connection: sqlite3.Connection, *, after: int, segment: int | None = None) -> Iterator[Tick]:
    """Ticks whose number is over `after`, of one segment or of all, in their order."""
    settings: dict[int, PolicySettings | str] = {}
    rows = connection.execute(
        "SELECT tick, segment, at, settings, samples FROM ticks "
        "WHERE tick > ?1 AND (?2 IS NULL OR segment = ?2) ORDER BY tick",
        (after, segment),
    )
    for number, of, at, settings_id, samples in rows:
        if settings_id not in settings:
            settings[settings_id] = _read_settings(connection, settings_id)
        unpacked = _unpack(samples, _samples_decoder, f"tick {number}")
        yield Tick(number, of, at, settings[settings_id], unpacked)


def has_tick(connection: sqlite3.Connection, number: int) -> bool:
    return connection.execute("SELECT 1 FROM ticks WHERE tick = ?", (number,)).fetchone() is not None


def read_decisions(connection: sqlite3.Connection, matching: Matching) -> list[Decision]:
    return [_decision(row) for row in _select(connection, "decisions", _DECISION_COLUMNS, matching)]


def read_events(connection: sqlite3.Connection, matching: Matching) -> list[Event]:
    return [
        msgspec.convert(dict(zip(_EVENT_COLUMNS[1:], row, strict=True)), Event, strict=True)
        for row in _select(connection, "events", _EVENT_COLUMNS, matching)
    ]


def insert_decision(connection: sqlite3.Connection, tick: int | None, decision: Decision) -> None:
    values = msgspec.structs.asdict(decision) | {
        "tick": tick,
        "mode": decision.mode.value,
        "evidence": msgspec.json.encode(decision.evidence).decode(),
    }
    _insert(connection, "decisions", _DECISION_COLUMNS, values)


def insert_event(connection: sqlite3.Connection, tick: int | None, event: Event) -> None:
    values = msgspec.structs.asdict(event) | {"tick": tick, "severity": event.severity.value}
    _insert(connection, "events", _EVENT_COLUMNS, values)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what is written inside."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _insert(
    connection: sqlite3.Connection, table: str, columns: tuple[str, ...], values: dict[str, Any]
) -> None:
    marks = ", ".join("?" * len(columns))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608 - names of our own
        [values[column] for column in columns],
    )


def _select(
    connection: sqlite3.Connection, table: str, columns: tuple[str, ...], matching: Matching
) -> sqlite3.Cursor:
    """The columns after the first of the rows that match."""
    given = {
        "tick = ?": matching.tick,
        "at >= ?": matching.since,
        "target = ?": matching.target,
        "action = ?": matching.action,
        "kind = ?": matching.kind,
    }
    terms = {term: value for term, value in given.items() if value is not None}
    where = f"WHERE {' AND '.join(terms)}" if terms else ""
    # By the order of recording: times may have gone back, and the newest are not to stand behind them.
    order = "seq" if matching.tick is not None else "seq DESC"
    return connection.execute(
        f"SELECT {', '.join(columns[1:])} FROM {table} {where} ORDER BY {order} LIMIT ?",  # noqa: S608
        (*terms.values(), matching.limit),
    )


def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    tick, segment, at, memory = row
    return Checkpoint(tick, segment, at, _unpack(memory, _memory_decoder, f"the checkpoint of tick {tick}"))


def _connect(path: Path, uri: str) -> sqlite3.Connection:
    try:
        # One connection may be opened in one thread and used in another, never in two at a time.
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    except sqlite3.Error as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _damaged(path, why(error)) from None
        raise JournalError(f"the journal {path} cannot be opened: {why(error)}") from None
    return connection


def _damaged(path: Path, what: str) -> JournalError:
    return JournalError(
        f"the journal {path} is damaged ({' '.join(what.split())}); "
        "nothing was changed: move it aside or name another file"
    )


def _read_settings(connection: sqlite3.Connection, id_: int) -> PolicySettings | str:
    """The settings, or why they are not ours."""
    row = connection.execute("SELECT policy FROM settings WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise DamageError(f"it misses its settings {id_}")
    try:
        return PolicySettings.model_validate_json(row[0])
    except ValueError as error:
        return " ".join(str(error).split())


def _decision(row: tuple[Any, ...]) -> Decision:
    values = dict(zip(_DECISION_COLUMNS[1:], row, strict=True))
    values["evidence"] = _evidence_decoder.decode(values["evidence"])
    return msgspec.convert(values, Decision, strict=True)


def _unpack(blob: bytes, decoder: Any, what: str) -> Any:
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(blob, _LARGEST_BLOB)
        if not unzip.eof:
            raise DamageError(f"{what} is cut short or too large")
        return decoder.decode(data)
    except (zlib.error, msgspec.DecodeError) as error:
        raise DamageError(f"{what} cannot be read: {error}") from None


def _logs(path: Path) -> tuple[Path, Path]:
    """What SQLite keeps beside a database that is, or was, being written."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def _uri(path: Path) -> str:
    return path.absolute().as_uri().removeprefix("file://")


def why(error: Exception) -> str:
    """What went wrong with a file or in SQLite, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
