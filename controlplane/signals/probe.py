"""What came of asking an engine whether it works: its health page, or a trial."""

from enum import StrEnum

import msgspec


class ProbeKind(StrEnum):
    HEALTH = "health"  # its health page: the server lives, and thinks that its engine does
    TRIAL = "trial"  # a completion of one token: the engine works


class ProbeResult(StrEnum):
    """How it ended. What cannot be asked so says nothing about whether the engine works."""

    OK = "ok"
    TIMEOUT = "timeout"
    REFUSED = "refused"  # no connection, or one that was closed without an answer
    ERROR = "error"  # an answer, but that of a server at fault (5xx)
    NO_VERDICT = "no-verdict"  # there is no such page, we may not see it, or the fault is ours


class Probe(msgspec.Struct, frozen=True):
    """One that has ended at `at` (Unix seconds) and took `seconds`; `detail` says what went wrong."""

    target: str
    at: float
    seconds: float
    kind: ProbeKind
    result: ProbeResult
    detail: str = ""

    @property
    def begun_at(self) -> float:
        return self.at - self.seconds
