"""Runs a journal through `policy.tick` again: it must reach the same decisions, events and checkpoints."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import msgspec

from controlplane import __version__
from controlplane.daemon import journal_file as file
from controlplane.daemon.journal import TickFunction
from controlplane.daemon.journal_file import Matching
from controlplane.policy.memory import Memory
from controlplane.signals.decision import Decision, Event, Mode

Told: TypeAlias = Sequence[Decision | Event]


class Replayed(msgspec.Struct):
    """What a replay has found. `first_difference` is a sentence, empty where all was the same."""

    journal: str
    program: str = __version__
    recorded_by: tuple[str, ...] = ()
    segments: int = 0
    gaps: int = 0
    checkpoints: int = 0
    ticks: int = 0
    decisions: int = 0
    events: int = 0
    same: int = 0
    different: int = 0
    first_difference: str = ""

    def compare(self, same: bool, sentence: str) -> None:
        self.same += same
        self.different += not same
        if not same and not self.first_difference:
            self.first_difference = sentence


def replay(path: Path, tick: TickFunction) -> Replayed:
    """Replay the journal at `path`, which may be in use. Raises JournalError where it cannot be read."""
    found = Replayed(str(path))
    with file.naming(path), closing(file.connect_to_replay(path)) as connection:
        file.check(connection, path)
        # One transaction: what a running daemon writes or drops meanwhile is not seen.
        connection.execute("BEGIN")
        segments = file.read_segments(connection)
        found.recorded_by = tuple(dict.fromkeys(segment.program for segment in segments))
        memory: Memory | None = None
        for segment in segments:
            found.segments += 1
            found.gaps += segment.gap
            memory = _replay_segment(connection, segment, memory, tick, found)
    return found


def _replay_segment(
    connection: sqlite3.Connection,
    segment: file.Segment,
    before: Memory | None,
    tick: TickFunction,
    found: Replayed,
) -> Memory:
    """The memory at the end of a segment; `before` is that at the end of the one before it."""
    checkpoints = file.read_checkpoints(connection, segment.id)
    opening = next(checkpoints, None)
    if opening is None:
        raise file.DamageError(f"its segment {segment.id} has no checkpoint to begin at")
    found.checkpoints += 1
    memory = opening.memory
    if before is not None and not segment.gap:
        found.compare(
            _same_memory(memory, before),
            f"segment {segment.id} begins with another memory than tick {before.tick} ended with",
        )
    checkpoint = next(checkpoints, None)
    for row in file.read_ticks(connection, after=opening.tick, segment=segment.id):
        if row.number != memory.tick + 1:
            found.compare(False, f"tick {row.number} follows tick {memory.tick}")
        try:
            snapshot, decisions, memory = tick(row.samples, memory, row.policy, row.at)
        except Exception as error:
            found.compare(False, f"tick {row.number} was recorded and fails now: {error!r}")
            memory = msgspec.structs.replace(memory, tick=row.number)
            continue
        found.ticks += 1
        matching = Matching(tick=row.number)
        recorded_decisions = file.read_decisions(connection, matching)
        recorded_events = file.read_events(connection, matching)
        found.decisions += len(recorded_decisions)
        found.events += len(recorded_events)
        for sentence in (
            _difference(row.number, "decisions", _policys(recorded_decisions), _policys(decisions)),
            _difference(row.number, "events", recorded_events, snapshot.events),
        ):
            found.compare(not sentence, sentence)
        if checkpoint is not None and checkpoint.tick == row.number:
            found.checkpoints += 1
            found.compare(
                _same_memory(memory, checkpoint.memory),
                f"the checkpoint of tick {row.number} is another memory",
            )
            checkpoint = next(checkpoints, None)
    return memory


def _policys(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions as policy made them: mode and outcome come after it, from settings and actuators."""
    return [
        msgspec.structs.replace(decision, mode=Mode.OBSERVE, outcome="recorded") for decision in decisions
    ]


def _difference(tick: int, what: str, recorded: Told, reached: Told) -> str:
    """The first difference in words; empty where there is none."""
    if len(recorded) != len(reached):
        return f"tick {tick} recorded {len(recorded)} {what} and reaches {len(reached)} now"
    for old, new in zip(recorded, reached, strict=True):
        # As they are written, so that a NaN is equal to itself and to how it was kept.
        if msgspec.json.encode(old) != msgspec.json.encode(new):
            fields = [name for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name)]
            name = fields[0] if fields else what
            return (
                f"tick {tick}, {what} on {old.target}: {name} was {getattr(old, name, '')!r} "
                f"and is {getattr(new, name, '')!r} now"
            )
    return ""


def _same_memory(one: Memory, other: Memory) -> bool:
    # Equal values may be written differently (a set has no order), and a NaN is not equal to itself.
    return one == other or file.pack(one) == file.pack(other)
