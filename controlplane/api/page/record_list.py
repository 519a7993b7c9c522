"""Decisions, alerts and events as markup, side by side: what fires beside what was decided."""

from collections.abc import Sequence

from htpy import Node, a, details, h2, li, ol, p, section, span, strong, summary, time, ul

from controlplane.api.page.cells import Tone
from controlplane.api.page.places import badge, mark
from controlplane.api.page.records import TONES, Entry, evidence
from controlplane.api.shapes import Alert
from controlplane.signals.decision import Decision, Event, Severity
from controlplane.terminal.figures import age, moment, plain

_MOST_OTHERS = 20  # decisions unfolded under the newest of their kind


def decisions(entries: Sequence[Entry], trouble: str, now: float) -> Node:
    """What was decided, the newest first, each to be unfolded to what it rests on."""
    there = ol(".records")[[_entry(one, now) for one in entries]]
    return section("#decisions")[
        h2["Decided in the last hour, and why"],
        p(".bad")[plain(trouble)] if trouble else None,
        there if entries else p(".dim")["Nothing was decided."],
    ]


def alerts(firing: Sequence[Alert], now: float) -> Node:
    return section("#alerts")[
        h2["Firing alerts"],
        ul(".records")[[_alert(one, now) for one in firing]]
        if firing
        else p(".dim")["None that Alertmanager has told of."],
    ]


def events(happened: Sequence[Event], now: float) -> Node:
    return section("#events")[
        h2["Happened"],
        ul(".records")[[_event(one, now) for one in happened]] if happened else p(".dim")["Nothing."],
    ]


def _entry(entry: Entry, now: float) -> Node:
    first = entry.first
    return li(id=f"decision-{mark(first.id)}")[
        details[
            summary[
                _when(first.at, now),
                span(class_=["label", badge(TONES[entry.label])])[entry.label],
                span(".sentence")[plain(entry.sentence)],
            ],
            p(".facts")[plain(_facts(first))],
            ul(".facts")[[li[plain(evidence(one))] for one in first.evidence]],
            ul(".facts")[[_other(one, now) for one in entry.others[:_MOST_OTHERS]]],
        ]
    ]


def _facts(one: Decision) -> str:
    change = f" from {one.old or 'nothing'} to {one.new or 'nothing'}" if one.old or one.new else ""
    return f"{one.action} {one.target}{change}; reason {one.reason}; {one.mode}: {one.outcome}"


def _other(one: Decision, now: float) -> Node:
    return li[plain(f"{age(max(0.0, now - one.at))} ago: {one.sentence}")]


def _alert(alert: Alert, now: float) -> Node:
    tone: Tone = "bad" if alert.severity == "page" else "warn"
    runbook = a(href=alert.runbook_url, rel="noreferrer noopener", target="_blank")["runbook"]
    return li[
        _when(alert.since, now),
        span(class_=["label", badge(tone)])[plain(alert.severity) or "alert"],
        span(".sentence")[strong[plain(alert.name)], " ", plain(alert.summary), " "],
        runbook if alert.runbook_url else None,
    ]


def _event(event: Event, now: float) -> Node:
    tone = "warn" if event.severity is Severity.WARNING else "dim"
    return li[_when(event.at, now), span(class_=["sentence", tone])[plain(event.sentence)]]


def _when(at: float, now: float) -> Node:
    return time(datetime=moment(at), title=moment(at))[f"{age(max(0.0, now - at))} ago"]
