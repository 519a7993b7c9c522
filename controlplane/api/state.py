"""What the API needs from the daemon. The daemon is one such thing, a test's fake another.

All methods are called in the daemon's own event loop, so none of them needs a lock; the coroutines
may wait for the journal's thread.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from controlplane.signals.decision import Decision, Event, Hold, Orders, Override
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.signals.status import Status

TickListener = Callable[[FleetSnapshot, tuple[Decision, ...]], None]


class State(Protocol):
    """The daemon as the API sees it."""

    def now(self) -> float:
        """Unix time in seconds: the clock that ages are told against."""
        ...

    def snapshot(self) -> FleetSnapshot | None:
        """What the last tick saw; None before the first one."""
        ...

    def status(self) -> Status:
        """How the daemon itself fares."""
        ...

    def orders(self) -> Orders:
        """The hold and the overrides that stand now (the next tick will see them)."""
        ...

    def subscribe(self, listener: TickListener) -> Callable[[], None]:
        """Call `listener` after each tick, in the loop; it must not wait. Returns what ends that."""
        ...

    async def decisions(
        self, *, since: float | None, target: str | None, action: str | None, limit: int
    ) -> Sequence[Decision]:
        """Decisions of the journal from Unix time `since` on, newest first, at most `limit`.

        Raises OSError where the journal cannot be read.
        """
        ...

    async def events(
        self, *, since: float | None, target: str | None, kind: str | None, limit: int
    ) -> Sequence[Event]:
        """Events of the journal, in the manner of `decisions`."""
        ...

    async def hold(self, hold: Hold) -> None:
        """Freeze every actuator; durable when this returns. Raises OSError where it cannot be."""
        ...

    async def release(self, by: str) -> None:
        """End the hold; nothing happens where there is none. Raises as `hold`."""
        ...

    async def override(self, override: Override) -> None:
        """Set one override, in place of one of the same scope, name and setting. Raises as `hold`.

        Raises ValueError with a sentence for a setting or a value that does not exist.
        """
        ...

    async def clear_override(self, scope: str, name: str, setting: str, by: str) -> bool:
        """Take one override back; False where there was none. Raises as `hold`."""
        ...
