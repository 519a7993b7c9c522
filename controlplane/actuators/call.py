"""How actuators reach what is outside: one HTTP request, handed in by whoever puts them together."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec

_LONGEST_RETRY_AFTER = 7  # digits


class Call(msgspec.Struct, frozen=True):
    """One HTTP request. Redirects are not followed: what acts goes nowhere but where it was told."""

    method: str
    url: str
    timeout_seconds: float
    max_body_bytes: int
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""


class Reply(msgspec.Struct, frozen=True):
    """The whole answer, whatever its status. The names of `headers` are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after_seconds(self) -> float:
        """What its Retry-After asks for; 0 where it names no seconds, or over eleven days of them."""
        asked = self.headers.get("Retry-After", "")
        return float(asked) if asked.isdecimal() and len(asked) < _LONGEST_RETRY_AFTER else 0.0


class CallFailedError(Exception):
    """No answer that helps; the text is a sentence that names the URL and the cause and holds no secret.

    `asked_seconds`: so long it should be left alone, as its server asks or as the cause has it.
    """

    def __init__(self, sentence: str, asked_seconds: float = 0.0) -> None:
        super().__init__(sentence)
        self.asked_seconds = asked_seconds


Send: TypeAlias = Callable[[Call], Awaitable[Reply]]
"""Raises CallFailedError."""
