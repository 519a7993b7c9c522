"""Holds and overrides: files that outlive the daemon, and mean the same whoever wrote them."""

import os
import pwd
import re
from pathlib import Path

import pytest

from controlplane.daemon.orders import (
    HOLD_KEY,
    OrderBook,
    OrdersError,
    changes,
    end_hold,
    read_hold,
    write_hold,
)
from controlplane.signals.decision import Hold, Orders, Override

NOW = 1_764_000_000.0


@pytest.fixture
def book(tmp_path: Path) -> OrderBook:
    return OrderBook(tmp_path / "hold", tmp_path / "overrides.json")


def override(name: str = "chat", value: str = "enforce", **changes: object) -> Override:
    return Override("pool", name, "mode", value, "ann", "test", NOW, **changes)  # type: ignore[arg-type]


# -- the hold --------------------------------------------------------------------------------------


def test_a_hold_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "hold"
    assert read_hold(path) is None
    write_hold(path, "ann", "  moving\nracks ")
    hold = read_hold(path)
    assert hold == Hold(path.stat().st_mtime, "ann", "moving racks")
    write_hold(path, "bob", "")
    hold = read_hold(path)
    assert hold is not None
    assert (hold.by, hold.reason) == ("bob", "no reason given")
    assert list(path.parent.iterdir()) == [path]
    assert end_hold(path)
    assert read_hold(path) is None
    assert not end_hold(path)


def test_a_touched_file_is_a_hold_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "hold"
    path.touch()
    me = pwd.getpwuid(os.getuid()).pw_name
    assert read_hold(path) == Hold(path.stat().st_mtime, me, "no reason given")
    path.write_text("because\n")
    assert read_hold(path) == Hold(path.stat().st_mtime, me, "because")


@pytest.mark.parametrize(
    ("reason", "read"),
    [("by: somebody else", "by somebody else"), ("x" * 2000, "x" * 500), ("ü\0\x1b[31m", "ü\0\x1b[31m")],
)
def test_odd_reasons_do_not_become_something_else(tmp_path: Path, reason: str, read: str) -> None:
    write_hold(tmp_path / "hold", "ann", reason)
    hold = read_hold(tmp_path / "hold")
    assert hold is not None
    assert (hold.by, hold.reason) == ("ann", read)


def test_a_hold_file_that_cannot_be_read_is_a_hold(tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    hold = read_hold(directory)
    assert hold is not None
    assert hold.reason == f"the hold file {directory} cannot be read: Is a directory"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    hold = read_hold(loop)
    assert hold is not None
    assert "cannot be read" in hold.reason


def test_a_pipe_in_its_place_does_not_make_us_wait(tmp_path: Path) -> None:
    path = tmp_path / "hold"
    os.mkfifo(path)
    assert read_hold(path) is not None


def test_a_huge_or_binary_hold_file_is_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "hold"
    path.write_bytes(b"\xff" * 10_000_000)
    hold = read_hold(path)
    assert hold is not None
    assert len(hold.reason) == 500


# -- overrides -------------------------------------------------------------------------------------


def test_overrides_survive_and_replace_each_other(book: OrderBook, tmp_path: Path) -> None:
    book.override(override("chat"), NOW)
    book.override(override("batch"), NOW)
    book.override(override("chat", "observe"), NOW)
    again = OrderBook(tmp_path / "hold", tmp_path / "overrides.json")
    assert again.read(NOW).overrides == (override("batch"), override("chat", "observe"))
    assert (tmp_path / "overrides.json").stat().st_mode & 0o777 == 0o600
    assert again.clear("pool", "chat", "mode", NOW)
    assert not again.clear("pool", "chat", "mode", NOW)
    assert OrderBook(tmp_path / "hold", tmp_path / "overrides.json").read(NOW).overrides == (
        override("batch"),
    )


def test_an_override_ends_at_its_time(book: OrderBook) -> None:
    book.override(override("chat", until=NOW + 10), NOW)
    assert book.read(NOW + 9.9).overrides
    assert book.read(NOW + 10).overrides == ()
    assert not book.clear("pool", "chat", "mode", NOW + 10)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            Override("rack", "a", "mode", "observe", "x", "y", NOW),
            "for one of pool, replica, node (got 'rack')",
        ),
        (
            Override("pool", "a", "speed", "3", "x", "y", NOW),
            "'speed' cannot be overridden (what can: mode, quarantine, limit)",
        ),
        *(
            (Override("pool", "a", "limit", value, "x", "y", NOW), f"from 1 to 1000000 (got {value!r})")
            for value in ("0", "-3", "1e3", "3.5", "٣", "1000001", "9" * 400)
        ),
        (Override("node", "n1", "limit", "3", "x", "y", NOW), "a node has no limit"),
        (Override("pool", "a", "mode", "off", "x", "y", NOW), "mode is one of observe, enforce (got 'off')"),
        (Override("pool", "a", "mode", "observe", "x", "y", NOW, NOW - 1), "would end before it begins"),
        (
            Override("pool", "a" * 501, "mode", "observe", "x", "y", NOW),
            "the name of an override has at most 500",
        ),
    ],
)
def test_an_override_that_means_nothing_is_refused(book: OrderBook, wrong: Override, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        book.override(wrong, NOW)
    assert book.read(NOW) == Orders()


def test_there_is_an_end_to_overrides(book: OrderBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.daemon.orders._MOST_OVERRIDES", 3)
    for i in range(3):
        book.override(override(str(i)), NOW)
    with pytest.raises(ValueError, match="there are 3 overrides already"):
        book.override(override("3"), NOW)
    book.override(override("2", "observe"), NOW)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"a": 1}',
        b'[{"scope": "pool"}]',
        b'[{"scope":"pool","name":"a","setting":"mode","value":"off","by":"","reason":"","since":0}]',
    ],
)
def test_a_damaged_overrides_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "overrides.json"
    path.write_bytes(content)
    with pytest.raises(OrdersError, match=f"the overrides in {path} are damaged"):
        OrderBook(tmp_path / "hold", path)
    assert path.read_bytes() == content


def test_an_overrides_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    book = OrderBook(tmp_path / "hold", tmp_path / "state" / "overrides.json")
    (tmp_path / "state").touch()
    with pytest.raises(OSError, match="state"):
        book.override(override(), NOW)
    assert book.read(NOW) == Orders()


# -- told --------------------------------------------------------------------------------------------


def test_changes_are_told_once_each_with_who(book: OrderBook) -> None:
    hold = Hold(NOW, "ann", "racks")
    held = Orders(hold, (override("chat"), override("batch")))
    told = changes(Orders(), held, NOW, {})
    assert [(event.kind, event.target) for event in told] == [
        ("hold", "fleet"), ("override", "chat"), ("override", "batch"),
    ]  # fmt: skip
    assert told[0].sentence == "ann ordered a hold: racks"
    assert told[1].sentence == "ann set mode of pool chat to enforce: test"
    assert changes(held, held, NOW, {}) == ()
    ended_by = {HOLD_KEY: "bob", ("pool", "chat", "mode"): "eve"}
    told = changes(held, Orders(), NOW, ended_by)
    assert [event.sentence for event in told] == [
        "the hold is over: taken back by bob",
        "the override of mode on pool chat is over: taken back by eve",
        "the override of mode on pool batch is over",
    ]
    told = changes(held, Orders(Hold(NOW, "bob", "still"), held.overrides), NOW, {})
    assert [event.sentence for event in told] == ["bob ordered a hold: still"]
