"""The runtime file that Envoy watches: one RTDS answer as JSON, replaced whole.

    {"version_info": "7", "resources": [{"@type": "type.googleapis.com/envoy.service.runtime.v3.Runtime",
      "name": "controlplane", "layer": {"circuit_breakers.vllm.default.max_requests": 58}}]}

Envoy takes the file up when it is renamed into the watched directory; what it cannot read it leaves alone and
goes on with the old values. Keys that are not ours stay as they are.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from controlplane.durable import replace_file

RESOURCE = "controlplane"
"""The name of the resource, which Envoy's configuration gives as that of its runtime layer."""

_TYPE = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
_MOST_BYTES = 1 << 20


class _Runtime(msgspec.Struct, frozen=True):
    type_: str = msgspec.field(name="@type")
    name: str
    layer: dict[str, Any]


class _Document(msgspec.Struct, frozen=True):
    version_info: str
    resources: tuple[_Runtime, ...]


class RuntimeFileError(Exception):
    """The file cannot be read or written; the text is a sentence that names it."""


class RuntimeFile:
    """The file at `path`. One writer: this process; one thread, so that writes come one after the other.

    A write that hangs on a slow disk must not come after one that began later.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runtime-file")

    async def value(self, key: str) -> int | None:
        """The whole number at `key`, None where there is none. Raises RuntimeFileError."""
        value = (await self._in_thread(self._read))[1].get(key)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    async def put(self, key: str, value: int) -> None:
        """Set `key`, on the disk when this returns; nothing is written where it is so already.

        Raises RuntimeFileError, and then the file is as it was.
        """
        await self._in_thread(self._put, key, value)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _read(self) -> tuple[int, dict[str, Any]]:
        """Version and layer; 0 and nothing where there is no file."""
        try:
            with self.path.open("rb") as file:
                text = file.read(_MOST_BYTES + 1)
            document = msgspec.json.decode(text, type=_Document)
        except FileNotFoundError:
            return 0, {}
        except OSError as error:
            raise RuntimeFileError(f"{self.path} cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = _Document("", ())
        if [(each.type_, each.name) for each in document.resources] != [(_TYPE, RESOURCE)]:
            raise RuntimeFileError(
                f"{self.path} is not a runtime file with the one resource {RESOURCE!r}: move it away"
            )
        version = document.version_info
        return int(version) if version.isdecimal() else 0, document.resources[0].layer

    def _put(self, key: str, value: int) -> None:
        version, layer = self._read()
        if layer.get(key) == value:
            return
        try:
            # Envoy looks at renames only, and may run as somebody else, who must be able to read it.
            replace_file(
                self.path,
                content({**layer, key: value}, version + 1),
                0o644,
                beside=self.path.with_name(f".{self.path.name}.new"),
            )
        except OSError as error:
            raise RuntimeFileError(f"{self.path} cannot be written: {error.strerror}") from None


def content(layer: Mapping[str, Any], version: int) -> bytes:
    """The bytes of a runtime file."""
    return msgspec.json.encode(_Document(str(version), (_Runtime(_TYPE, RESOURCE, dict(layer)),)))


def max_requests_key(cluster: str) -> str:
    """The key of the most requests that a cluster may have open at once."""
    return f"circuit_breakers.{cluster}.default.max_requests"
