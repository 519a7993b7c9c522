"""Files that are whole after a crash: the old content or the new one, and on the disk when we say so."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int, *, beside: Path | None = None) -> None:
    """Put `content` at `path`, in a directory that is there. Raises OSError, and then nothing has changed.

    It is written `beside` it first: by default under a name of this process, as several may write the file.
    `mode` is that of a new file, less the umask.
    """
    new = beside or path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make what was created, renamed or removed in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
