"""The parent's side: keeps a child, reads it with a deadline, and knows what to say at any moment.

What it serves is a report while the child speaks, and "cannot see since" once it has been silent for the
deadline. A child in the kernel's hands cannot be killed: it is left behind and counted, and no more than two
of them at a time, for each holds a driver lock that the next would wait for as well.
"""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec

from controlplane.agent.messages import LONGEST_LINE, Beat, Heard, Trouble, read
from controlplane.signals.gpu import GpuEvent, NodeBlind, NodeReport, NodeSample
from controlplane.signals.reading import Reason

SOURCE = "nvml"
MOST_EVENTS = 256
MOST_STUCK = 2
_MOST_COUNTED = 1_000  # kinds of XIDs by GPU
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BACKOFF_SECONDS = (0.2, 1.0, 5.0, 15.0)
_GOODBYE_SECONDS = 1.0
_AT_HAND_SECONDS = 0.1  # what lies in a pipe is read in less


class Counts(msgspec.Struct):
    """What the watch did since its start."""

    looks: int = 0
    events: int = 0
    starts: int = 0
    hangs: int = 0
    bad_lines: int = 0
    look_seconds: float = 0.0


class Watch:
    """One node's NVML, through a child. `run` until cancelled; `sample` at any time, from the same loop."""

    def __init__(
        self,
        node: str,
        interval_seconds: float,
        deadline_seconds: float,
        *,
        command: Sequence[str] | None = None,
        wall: Callable[[], float] = time.time,
        boot_id: str | None = None,
    ) -> None:
        self.counts = Counts()
        self.epoch = uuid4().hex
        self._node = node
        self._deadline = deadline_seconds
        self._command = tuple(
            command or (sys.executable, "-m", "controlplane.agent.child", f"{interval_seconds:g}")
        )
        self._wall = wall
        self._boot_id = _read_boot_id() if boot_id is None else boot_id
        self._beat: Beat | None = None
        self._at = 0.0
        self.xids: dict[tuple[str, int], int] = {}
        self._events: deque[GpuEvent] = deque(maxlen=MOST_EVENTS)
        self._blind_since: float | None = wall()
        self._why = "the first look has not been done"
        self._version = 0
        self._changed = asyncio.Event()
        self._stuck: list[asyncio.subprocess.Process] = []

    @property
    def version(self) -> int:
        """Grows with everything that there is to say."""
        return self._version

    @property
    def last_look_at(self) -> float | None:
        """Unix time of the last look; None before the first."""
        return None if self._beat is None else self._beat.at

    @property
    def stuck(self) -> int:
        """Children that hang in the driver."""
        self._stuck = [child for child in self._stuck if child.returncode is None]
        return len(self._stuck)

    def sample(self) -> NodeSample:
        """What is known now."""
        beat = self._beat
        if self._blind_since is not None or beat is None:
            return NodeBlind(
                self._node, SOURCE, self._wall(), Reason.UNAVAILABLE, self._why, self._blind_since
            )
        return NodeReport(
            node=self._node,
            source=SOURCE,
            at=self._at,
            gpus=beat.gpus,
            events=tuple(self._events),
            driver=beat.driver,
            boot_id=self._boot_id,
            epoch=self.epoch,
            topology=beat.topology,
            warnings=beat.warnings,
        )

    async def changed(self, after: int, seconds: float) -> None:
        """Returns when there is something newer than version `after`, at the latest after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while self._version == after:
                    await self._changed.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        """Keep a child until cancelled."""
        failures = 0
        while True:
            if self.stuck < MOST_STUCK:
                spoke = await self._one_child()
                failures = 0 if spoke else failures + 1
            await asyncio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])

    async def _one_child(self) -> bool:
        """The life of one child; whether it has done a look."""
        self.counts.starts += 1
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
            )
        except OSError as error:
            self._go_blind(f"the child cannot be started: {error.strerror}")
            return False
        looks = self.counts.looks
        try:
            await self._read(child)
        finally:
            await self._end(child)
        return self.counts.looks > looks

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        """Take what the child says until it ends or has not looked for the deadline.

        Events are no sign of life: they may come while the looks hang.
        """
        assert child.stdout is not None
        loop = asyncio.get_running_loop()
        due = loop.time() + self._deadline
        while True:
            try:
                async with asyncio.timeout_at(due):
                    text = await child.stdout.readline()
            except TimeoutError:
                if await self._a_look_is_there(child.stdout):
                    due = loop.time() + self._deadline
                    continue
                self.counts.hangs += 1
                self._go_blind(f"the driver has not answered for {self._deadline:g} s")
                return
            except ValueError:
                self.counts.bad_lines += 1
                self._go_blind(f"the child printed a line of over {LONGEST_LINE} bytes")
                return
            if not text:
                return
            if self._take(text):
                due = loop.time() + self._deadline

    async def _a_look_is_there(self, stdout: asyncio.StreamReader) -> bool:
        """Whether a look lies in the pipe: then it was we who stood still, and not the driver."""
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(_AT_HAND_SECONDS):
                while text := await stdout.readline():
                    if self._take(text):
                        return True
        return False

    def _take(self, text: bytes) -> bool:
        """Take one line over; whether it is a look."""
        try:
            message = read(text)
        except msgspec.DecodeError:
            self.counts.bad_lines += 1
            return False
        if isinstance(message, Trouble):
            self._go_blind(message.detail)
            return False
        # Two messages of one moment must not make reports of one time: the second would pass for the first.
        self._at = max(message.at, self._at + 1e-6)
        if isinstance(message, Heard):
            self.counts.events += 1
            event = GpuEvent(
                self.counts.events, message.at, message.kind, message.code, message.uuid, message.instance
            )
            self._events.append(event)
            if event.kind == "xid" and (
                len(self.xids) < _MOST_COUNTED or (event.uuid, event.code) in self.xids
            ):
                key = event.uuid, event.code
                self.xids[key] = self.xids.get(key, 0) + 1
            self._tell()
            return False
        self.counts.looks += 1
        self.counts.look_seconds = message.seconds
        self._beat, self._blind_since, self._why = message, None, ""
        self._tell()
        return True

    def _go_blind(self, why: str) -> None:
        """Cannot see, since the last look; said once while it lasts."""
        if self._blind_since is None:
            self._blind_since = self._beat.at if self._beat is not None else self._wall()
        if self._why != why:
            self._why = why
            self._tell()

    def _tell(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed.clear()

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Be rid of a child: it ends with its input; one that hangs is killed, or left to the kernel."""
        if child.stdin is not None:
            child.stdin.close()
        if await _ended(child):
            return
        child.kill()
        if not await _ended(child):
            self._stuck.append(child)


async def _ended(child: asyncio.subprocess.Process) -> bool:
    """Whether a child ends within a moment."""
    try:
        async with asyncio.timeout(_GOODBYE_SECONDS):
            await child.wait()
    except TimeoutError:
        return False
    return True


def _read_boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
