"""Tells people elsewhere what was decided: a chat's webhook (Slack's form), Grafana's annotations.

Only what is decided is told, once, in the decision's own sentence; but not the steps of limits, which move
all the time and would drown the rest. Nobody waits for it: a receiver that is slow or away loses notices
(they are counted, and the journal has them all), never a tick. The address of a chat's webhook is a secret,
so it comes from a file, and is in no log.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, Literal

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.state import State
from controlplane.signals.decision import SET_LIMIT, Decision
from controlplane.signals.snapshot import FleetSnapshot

MOST_WAITING = 200
MOST_TOGETHER = 20
LONGEST_SECONDS = 10.0
LONGEST_SECRET_BYTES = 4096
PAUSE_SECONDS = 1.0
"""Between two messages to a chat: what is decided meanwhile goes into one message, as Slack asks for."""

_log = logging.getLogger(__name__)


class NoticeSettings(BaseModel):
    """One receiver. `url_file` holds a chat's webhook address, or Grafana's base URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["slack", "grafana"]
    url_file: Path = Field(description="file with the address; Slack's is a secret by itself")
    token_file: Path | None = Field(None, description="file with a service account's token, for Grafana")


class Notices:
    """Sends decisions to one receiver, from a task of its own."""

    def __init__(self, state: State, settings: NoticeSettings) -> None:
        self._settings = settings
        self._waiting: list[Decision] = []
        self._news = asyncio.Event()
        self._trouble = ""
        self._unsubscribe = state.subscribe(self._hear)
        self._task = asyncio.create_task(self._run(), name=f"notices to {settings.kind}")
        self.sent = self.lost = 0

    async def close(self) -> None:
        """Stop; what waits is lost."""
        self._unsubscribe()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _hear(self, _: FleetSnapshot, decisions: tuple[Decision, ...]) -> None:
        self._waiting += [decision for decision in decisions if decision.action != SET_LIMIT]
        too_many = len(self._waiting) - MOST_WAITING
        if too_many > 0:
            del self._waiting[:too_many]
            self.lost += too_many
        if self._waiting:
            self._news.set()

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=LONGEST_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    some, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
                    await self._send(session, some)
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, session: aiohttp.ClientSession, decisions: list[Decision]) -> None:
        try:
            url, headers = self._address()
            for body in bodies(self._settings.kind, decisions):
                async with session.post(url, json=body, headers=headers, allow_redirects=False) as answer:
                    if answer.status >= 300:
                        raise OSError(f"it answered {answer.status}")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self.lost += len(decisions)
            self._say(f"notices to {self._settings.kind} are lost: {_why(error)}")
        else:
            self.sent += len(decisions)
            self._trouble = ""

    def _address(self) -> tuple[str, dict[str, str]]:
        """Where to, and with which headers; read anew, so that secrets can be rotated. Raises OSError."""
        url = _secret(self._settings.url_file).rstrip("/")
        if self._settings.kind == "slack":
            return url, {}
        token = self._settings.token_file
        headers = {} if token is None else {"authorization": f"Bearer {_secret(token)}"}
        return f"{url}/api/annotations", headers

    def _say(self, trouble: str) -> None:
        """Log a trouble once, until it is over or another."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning(trouble)


def bodies(kind: Literal["slack", "grafana"], decisions: list[Decision]) -> list[dict[str, Any]]:
    """What is posted: to a chat one message of all sentences, to Grafana an annotation for each."""
    if kind == "slack":
        return [
            {
                "text": "\n".join(
                    f"*{_plain(d.action)} {_plain(d.target)}* {_plain(d.sentence)}" for d in decisions
                )
            }
        ]
    return [
        {
            "time": round(decision.at * 1000),
            "tags": ["controlplane", "decision", decision.action, decision.reason],
            "text": f"{decision.target}: {decision.sentence} ({decision.mode.value}, {decision.outcome})",
        }
        for decision in decisions
    ]


def _plain(text: str) -> str:
    """Without what Slack takes for a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _secret(path: Path) -> str:
    """One line of a file. Raises OSError that names the file, never what is in it."""
    with path.open("rb") as file:
        text = file.read(LONGEST_SECRET_BYTES + 1)
    words = text.split()
    if len(text) > LONGEST_SECRET_BYTES or len(words) != 1 or not words[0].isascii():
        raise OSError(f"{path} does not hold one word of ASCII")
    return words[0].decode()


def _why(error: Exception) -> str:
    """What went wrong, without the address: aiohttp's texts repeat it."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.strerror or 'no such host'})"
    if isinstance(error, TimeoutError):
        return f"no answer within {LONGEST_SECONDS:.0f} s"
    return (
        str(error)
        if isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError)
        else type(error).__name__
    )
