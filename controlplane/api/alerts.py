"""What Alertmanager says fires, shown beside what was decided.

Alertmanager posts to `/api/v1/alerts` as to any webhook (version 4 of its payload). It repeats what still
fires and tells once what has ended; an alert that nobody has spoken of for `FORGET_SECONDS` is forgotten,
because the word of its end may be lost. Nothing is decided from alerts: they are for people.
"""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from controlplane.api.shapes import Alert, Alerts
from controlplane.api.state import State

MOST_ALERTS = 1_000
LONGEST_TEXT_CHARS = 1_000
MOST_LABELS = 64
FORGET_SECONDS = 3 * 3600.0
"""Three times the repeat interval that alerts/alertmanager.yaml has for this receiver."""


def _short(text: object) -> object:
    """A text from outside on one line and not without end; what is no text is left to be refused."""
    if not isinstance(text, str):
        return text
    line = " ".join(text[: 2 * LONGEST_TEXT_CHARS].split())
    return "".join(c for c in line if c.isprintable())[:LONGEST_TEXT_CHARS]


Text = Annotated[str, BeforeValidator(_short)]
Texts = Annotated[dict[Text, Text], Field(max_length=MOST_LABELS)]


class Told(BaseModel):
    """One alert as Alertmanager tells it. What it says beyond this is ignored."""

    model_config = ConfigDict(frozen=True)

    status: Literal["firing", "resolved"]
    labels: Texts
    annotations: Texts = {}
    startsAt: AwareDatetime  # noqa: N815 - its name in the payload
    fingerprint: Annotated[str, Field(min_length=1, max_length=64)]


class Payload(BaseModel):
    """What Alertmanager posts; `truncatedAlerts` counts those it left out."""

    version: Literal["4"]
    alerts: Annotated[list[Told], Field(max_length=MOST_ALERTS)]
    truncatedAlerts: int = Field(0, ge=0)  # noqa: N815


_RANKS = {"page": 0, "ticket": 1, "info": 2}


class Board:
    """The alerts that fire, as far as we were told; at most `MOST_ALERTS`, the newest word counts."""

    def __init__(self) -> None:
        self._firing: dict[str, Alert] = {}
        self.truncated = 0

    def hear(self, payload: Payload, now: float) -> None:
        """Take in what Alertmanager says at Unix time `now`."""
        self.truncated = payload.truncatedAlerts
        for told in payload.alerts:
            self._firing.pop(told.fingerprint, None)
            if told.status == "firing":
                self._firing[told.fingerprint] = _alert(told, now)
        while len(self._firing) > MOST_ALERTS:
            self._firing.pop(next(iter(self._firing)))

    def firing(self, now: float) -> list[Alert]:
        """What fires at Unix time `now`: pages first, the oldest of each kind first."""
        self._firing = {k: a for k, a in self._firing.items() if now - a.heard_at < FORGET_SECONDS}
        return sorted(self._firing.values(), key=lambda alert: (_RANKS.get(alert.severity, 3), alert.since))


def _alert(told: Told, now: float) -> Alert:
    labels = dict(told.labels)
    return Alert(
        name=labels.get("alertname", ""),
        severity=labels.get("severity", ""),
        team=labels.get("team", ""),
        summary=told.annotations.get("summary", ""),
        runbook_url=_link(told.annotations.get("runbook_url", "")),
        labels=labels,
        since=_unix(told.startsAt),
        heard_at=now,
    )


def _link(url: str) -> str:
    """A link that a browser may follow, or "": an alert's text could name a script."""
    return url if url.startswith(("https://", "http://")) else ""


def _unix(at: datetime) -> float:
    return max(0.0, at.timestamp())


def routes(state: State, board: Board) -> APIRouter:
    """`GET` is open like all reading, `POST` is behind the guard like all writing."""
    router = APIRouter(prefix="/api/v1", tags=["alerts"])

    @router.get("/alerts")
    async def alerts() -> Alerts:
        """What Alertmanager says fires."""
        return Alerts(items=board.firing(state.now()), truncated=board.truncated)

    @router.post("/alerts", dependencies=[Depends(HTTPBearer(auto_error=False))])
    async def hear(payload: Payload) -> Alerts:
        """Alertmanager's webhook."""
        board.hear(payload, state.now())
        return await alerts()

    return router
