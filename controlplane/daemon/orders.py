"""What people have ordered: the hold and the overrides, both kept in files so that they outlive us.

The hold is one file and nothing else: while it exists, nothing is acted on. So a hold works while the
daemon is down or hangs, and whoever sets it (the command, the API, `touch`), whoever ends it ends it.
Its first line is the reason; a line `by: NAME` says who, else its owner in the file system does. A hold
file that cannot be looked at counts as a hold: not acting is the safe side.

Overrides are a small JSON file beside the journal, replaced as a whole and never half.
"""

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from controlplane.durable import replace_file, sync_directory
from controlplane.policy.limits.law import UNLIMITED
from controlplane.signals.decision import Event, Hold, Mode, Orders, Override, Severity

_HOLD_BYTES = 4096  # of a hold file; the rest of a longer one is not read
_OVERRIDES_BYTES = 4 << 20
_TEXT_CHARS = 500  # of a reason or a name
_MOST_OVERRIDES = 1000

SCOPES = ("pool", "replica", "node")
MOST_SLOTS = int(UNLIMITED)
_SLOTS = re.compile(r"[1-9][0-9]{0,6}")
SETTINGS: dict[str, tuple[str, ...]] = {
    "mode": tuple(Mode),
    "quarantine": ("never", "release", "allow"),  # of a node: hands off; it is well; we may act again
    "limit": (),  # of a pool's replicas, or one: so many sequences at once, 1 to MOST_SLOTS
}
"""What can be overridden, and with which values."""

Key: TypeAlias = tuple[str, str, str]
HOLD_KEY: Key = ("fleet", "", "hold")


class OrdersError(Exception):
    """The overrides file cannot be used; the text is a sentence that names it."""


class OrderBook:
    """The orders that stand, read from and written to their two files."""

    def __init__(self, hold_path: Path, overrides_path: Path) -> None:
        """Raises OrdersError where the overrides file is damaged: a person's word is never dropped."""
        self._hold_path = hold_path
        self._overrides_path = overrides_path
        self._overrides = _read_overrides(overrides_path)

    def read(self, now: float) -> Orders:
        """The orders that stand at Unix time `now`."""
        standing = tuple(o for o in self._overrides if o.until is None or o.until > now)
        return Orders(read_hold(self._hold_path), standing)

    def hold(self, by: str, reason: str) -> None:
        """Begin a hold, or give the one that stands a new reason. Raises OSError."""
        write_hold(self._hold_path, by, reason)

    def release(self) -> None:
        """End the hold, if there is one. Raises OSError."""
        end_hold(self._hold_path)

    def override(self, override: Override, now: float) -> None:
        """Set one override in place of any of the same scope, name and setting.

        Raises ValueError with a sentence for an override that means nothing, OSError.
        """
        _check(override)
        if override.until is not None and override.until <= now:
            raise ValueError(f"the override would end before it begins (until {override.until:.0f})")
        kept = [o for o in self.read(now).overrides if key_of(o) != key_of(override)]
        if len(kept) >= _MOST_OVERRIDES:
            raise ValueError(f"there are {_MOST_OVERRIDES} overrides already")
        self._store((*kept, override))

    def clear(self, scope: str, name: str, setting: str, now: float) -> bool:
        """Take one override back; False where there was none. Raises OSError."""
        standing = self.read(now).overrides
        kept = tuple(o for o in standing if key_of(o) != (scope, name, setting))
        if len(kept) == len(standing):
            return False
        self._store(kept)
        return True

    def adopt(self, before: Orders, orders: Orders) -> None:
        """Let the orders that another daemon has stand here too; `before` are those that were adopted last.

        A hold that somebody has ordered here stays: not acting is the safe side. Raises ValueError, OSError.
        """
        for override in orders.overrides:
            _check(override)
        if orders.overrides != self._overrides:
            self._store(orders.overrides)
        here = read_hold(self._hold_path)
        if orders.hold is not None and not _same(here, orders.hold):
            self.hold(orders.hold.by, orders.hold.reason)
        elif orders.hold is None and before.hold is not None and _same(here, before.hold):
            self.release()

    def _store(self, overrides: tuple[Override, ...]) -> None:
        text = msgspec.json.format(msgspec.json.encode(overrides), indent=2)
        if len(text) >= _OVERRIDES_BYTES:
            raise ValueError(f"all overrides together have at most {_OVERRIDES_BYTES} bytes")
        _replace(self._overrides_path, text + b"\n", 0o600)
        self._overrides = overrides


def _same(one: Hold | None, other: Hold) -> bool:
    return one is not None and (one.by, one.reason) == (other.by, other.reason)


def changes(old: Orders, new: Orders, at: float, ended_by: Mapping[Key, str]) -> tuple[Event, ...]:
    """What people have changed between two states of the orders, as events at Unix time `at`.

    `ended_by` says who took an order back, where that is known: an override may also have run out, and
    anybody may remove the hold file.
    """
    events = []

    def tell(kind: str, target: str, severity: Severity, sentence: str) -> None:
        events.append(Event(at, kind, target, severity, sentence))

    if new.hold is not None and new.hold != old.hold:
        tell("hold", "fleet", Severity.WARNING, f"{new.hold.by} ordered a hold: {new.hold.reason}")
    elif old.hold is not None and new.hold is None:
        tell("hold-over", "fleet", Severity.INFO, f"the hold is over{_by(HOLD_KEY, ended_by)}")
    for override in new.overrides:
        if override not in old.overrides:
            what = f"{override.by} set {override.setting} of {override.scope} {override.name}"
            tell(
                "override", override.name, Severity.WARNING, f"{what} to {override.value}: {override.reason}"
            )
    standing = {key_of(override) for override in new.overrides}
    for override in old.overrides:
        if key_of(override) not in standing:
            what = f"the override of {override.setting} on {override.scope} {override.name} is over"
            tell("override-over", override.name, Severity.INFO, what + _by(key_of(override), ended_by))
    return tuple(events)


def read_hold(path: Path) -> Hold | None:
    """The hold that the file at `path` stands for; None where there is no such file."""
    try:
        # Not to wait for a writer, should it be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stat = os.fstat(descriptor)
            text = os.read(descriptor, _HOLD_BYTES).decode(errors="replace")
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # Also a directory of that name, or one that we may not look into.
        return Hold(0.0, "unknown", f"the hold file {path} cannot be read: {error.strerror}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    by = next((line[3:].strip() for line in lines if line.startswith("by:")), "") or _owner(stat.st_uid)
    reason = next((line for line in lines if not line.startswith("by:")), "no reason given")
    return Hold(stat.st_mtime, by[:_TEXT_CHARS], reason[:_TEXT_CHARS])


def write_hold(path: Path, by: str, reason: str) -> None:
    """Make the hold file; durable when this returns. Raises OSError.

    Anybody may read it: it may be one user who orders the hold and another whom the daemon runs as.
    """
    text = " ".join(reason.split())[:_TEXT_CHARS] or "no reason given"
    # A reason that looks like the other line would be read as that.
    text = text.replace("by:", "by", 1) if text.startswith("by:") else text
    _replace(path, f"{text}\nby: {' '.join(by.split())[:_TEXT_CHARS]}\n".encode(), 0o644)


def _replace(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, content, mode)


def end_hold(path: Path) -> bool:
    """Remove the hold file; False where there was none. Durable when this returns. Raises OSError."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    sync_directory(path.parent)
    return True


def _read_overrides(path: Path) -> tuple[Override, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_OVERRIDES_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise OrdersError(f"the overrides in {path} cannot be read: {error.strerror}") from None
    if len(text) > _OVERRIDES_BYTES:
        raise OrdersError(f"the overrides in {path} are larger than {_OVERRIDES_BYTES} bytes")
    try:
        overrides = msgspec.json.decode(text, type=tuple[Override, ...])
        for override in overrides:
            _check(override)
        return overrides
    except (msgspec.DecodeError, ValueError) as error:
        raise OrdersError(f"the overrides in {path} are damaged ({error}); mend or remove the file") from None


def _check(override: Override) -> None:
    """Raises ValueError with a sentence for an override that means nothing."""
    if override.scope not in SCOPES:
        raise ValueError(f"an override is for one of {', '.join(SCOPES)} (got {override.scope!r})")
    if override.setting not in SETTINGS:
        raise ValueError(f"{override.setting!r} cannot be overridden (what can: {', '.join(SETTINGS)})")
    if override.setting == "limit":
        _check_limit(override)
    elif override.value not in SETTINGS[override.setting]:
        values = ", ".join(SETTINGS[override.setting])
        raise ValueError(f"{override.setting} is one of {values} (got {override.value!r})")
    for what, text in (("name", override.name), ("by", override.by), ("reason", override.reason)):
        if len(text) > _TEXT_CHARS:
            raise ValueError(f"the {what} of an override has at most {_TEXT_CHARS} characters")


def _check_limit(override: Override) -> None:
    if override.scope == "node":
        raise ValueError(f"a node has no limit: name a pool or a replica (got node {override.name!r})")
    if not _SLOTS.fullmatch(override.value) or int(override.value) > MOST_SLOTS:
        raise ValueError(f"a limit is a whole number from 1 to {MOST_SLOTS} (got {override.value!r})")


def key_of(override: Override) -> Key:
    """What there can be one override of."""
    return override.scope, override.name, override.setting


def _by(key: Key, ended_by: Mapping[Key, str]) -> str:
    return f": taken back by {ended_by[key]}" if key in ended_by else ""


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
