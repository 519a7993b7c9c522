"""What the child says to its parent: one JSON object a line."""

from typing import TypeAlias

import msgspec

from controlplane.signals.gpu import Gpu

LONGEST_LINE = 4 * 1024 * 1024
Topology: TypeAlias = dict[str, dict[str, str]]


class Beat(msgspec.Struct, frozen=True, tag_field="is", tag="beat"):
    """One look at all GPUs, done at Unix time `at` in `seconds`."""

    at: float
    seconds: float
    driver: str
    gpus: dict[str, Gpu]
    topology: Topology = {}
    warnings: tuple[str, ...] = ()


class Heard(msgspec.Struct, frozen=True, tag_field="is", tag="heard"):
    """An event of the driver; `kind` and `code` as in `GpuEvent`."""

    at: float
    kind: str
    code: int
    uuid: str = ""
    instance: str = ""


class Trouble(msgspec.Struct, frozen=True, tag_field="is", tag="trouble"):
    """NVML cannot be used; the child ends after it."""

    at: float
    detail: str


Message: TypeAlias = Beat | Heard | Trouble

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def line(message: Message) -> bytes:
    return _encoder.encode(message) + b"\n"


def read(text: bytes) -> Message:
    """The message of a line. msgspec.DecodeError where it is none."""
    return _decoder.decode(text)
