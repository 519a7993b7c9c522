"""The demo as a process of its own, at a terminal or not, and what it prints."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


class Demo:
    """A running demo in a folder of its own. `press` needs one `at_terminal`."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, folder: Path) -> None:
        self.process, self.folder = process, folder
        self._terminal = terminal
        self._rest = ""

    def lines_until(self, pattern: str, seconds: float = 60.0) -> list[str]:
        """What it prints up to the first line that has the pattern."""
        deadline, lines = time.monotonic() + seconds, list[str]()
        while True:
            *whole, self._rest = self._rest.split("\n")
            for number, line in enumerate(whole, 1):
                lines.append(line)
                if re.search(pattern, line):
                    self._rest = "\n".join([*whole[number:], self._rest])
                    return lines
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, left))
            assert ready, f"not within {seconds:.0f} s: {pattern!r} in\n" + "\n".join(lines)
            read = self._read()
            assert read, f"it ended without {pattern!r}:\n" + "\n".join(lines)
            self._rest += read

    def _read(self) -> str:
        """What it has printed since, "" at its end."""
        try:
            return _STYLES.sub("", os.read(self._terminal, 65536).decode().replace("\r\n", "\n"))
        except OSError:
            return ""  # how a terminal says that nobody has it open any more

    def press(self, key: str) -> None:
        os.write(self._terminal, key.encode())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The demo's script, called from the same folder."""
        return subprocess.run(
            [sys.executable, DEMO, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@contextmanager
def demo(folder: Path, *, at_terminal: bool = False) -> Iterator[Demo]:
    """Killed at the end, with all that it started, where it has not ended by then."""
    ours, theirs = pty.openpty() if at_terminal else os.pipe()
    command: list[str | Path] = [sys.executable, DEMO]
    if at_terminal:
        # The first terminal that the leader of a new session opens is its own: Ctrl-C comes from there.
        command = ["sh", "-c", f'exec "$0" "$1" <>{os.ttyname(theirs)} >&0 2>&0', *command]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Demo(process, ours, folder)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


def group(leader: int) -> dict[int, str]:
    """Live processes of a group: id and command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            # "pid (name) state ppid group ...": the name may itself hold blanks and brackets.
            state, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(owner) == leader and state not in "ZX":
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found
