"""The queries that read a whole fleet from Prometheus: one a signal, whatever engine and version has it."""

import json
import math
import re
from collections import defaultdict
from typing import NamedTuple

from controlplane.sources.catalog import Catalog


class FleetQuery(NamedTuple):
    """One query: `subject` says for people what it is for, `signals` which signals are lost without it."""

    subject: str
    names: tuple[str, ...]
    signals: frozenset[str]

    def promql(self, selector: str, window_seconds: float) -> str:
        """The samples of all engines over a window: with their own times, which an instant vector hides.

        Old and new names of a signal are in one pattern of plain words, which Prometheus looks up in its
        index without matching anything.
        """
        pattern = json.dumps("|".join(map(re.escape, self.names)))
        return f"{{__name__=~{pattern},{selector}}}[{math.ceil(window_seconds * 1000)}ms]"


HEALTH = FleetQuery("health", ("up", "scrape_duration_seconds"), frozenset())
"""What Prometheus itself records of each scrape, under the time stamp of the page."""


def fleet_queries(catalog: Catalog) -> tuple[FleetQuery, ...]:
    """All queries for the names of a catalog, each name in one of them.

    Names that only tell the version (see `catalog`) are asked for together, by engine.
    """
    names: dict[str, list[str]] = defaultdict(list)
    signals: dict[str, set[str]] = defaultdict(set)
    for name, uses in catalog.uses.items():
        told = [use.row.signal for use in uses if use.role != "witness"]
        subject = told[0] if told else f"version of {uses[0].dialect.engine}"
        names[subject].append(name)
        signals[subject].update(told)
    return tuple(FleetQuery(subject, tuple(names[subject]), frozenset(signals[subject])) for subject in names)


def scrape_times(selector: str) -> str:
    """The time of the newest scrape of each target that Prometheus still has, and by its labels the target.

    An instant vector, because that leaves out at once what is marked stale (a target that was taken away).
    """
    return f"timestamp(up{{{selector}}})"
