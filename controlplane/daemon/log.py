"""Log lines for people and machines: one line a message, `key=value` pairs (logfmt), to standard error.

Nothing is logged per evaluation: what is logged is that something began, changed or ended.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@%+,[]")


class Logfmt(logging.Formatter):
    """`time=... level=... msg="..." key=value`; the pairs come from `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        pairs: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            pairs["trace"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_quoted(str(value))}" for key, value in pairs.items())


def _quoted(text: str) -> str:
    """The text on one line: bare where nothing in it could be mistaken, else in quotes with escapes."""
    if text and _BARE.issuperset(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def set_up(stream: TextIO | None = None) -> None:
    """Send everything of level INFO and up to `stream` (standard error) as logfmt."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Logfmt())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # It would log each run of each job; what matters of it is counted by `schedule.py`.
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL + 1)
