"""The last control message, kept on disk, so that a gateway that starts again knows what it was told."""

import logging
from pathlib import Path

from controlplane.durable import replace_file
from controlplane.signals.control import ControlMessage, UnreadableError, read_message

_LARGEST_BYTES = 64 << 20
_log = logging.getLogger(__name__)


def load(path: Path) -> ControlMessage | None:
    """The kept message; None where there is none that can be read, which is said where it should be there."""
    try:
        with path.open("rb") as file:
            body = file.read(_LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning(f"{path}: the last control message cannot be read: {error.strerror}")
        return None
    try:
        return read_message(body)
    except UnreadableError as error:
        _log.warning(f"{path}: {error}")
        return None


def keep(path: Path, body: bytes) -> None:
    """Replace the kept message, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, body, 0o666)
