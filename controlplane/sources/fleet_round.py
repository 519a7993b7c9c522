"""One round of questions to Prometheus about a whole fleet, from the queries to the pages read.

Synchronous, for a worker thread; what is remembered between rounds are only the layouts of pages.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.samples import Scrape, ScrapeFailure, Signals, Target
from controlplane.sources.catalog import Catalog
from controlplane.sources.dialect import Translator
from controlplane.sources.dialects import SERVER, dialect
from controlplane.sources.exposition import Page
from controlplane.sources.fleet_pages import Layouts, Scraped, Sheet, Sheets
from controlplane.sources.fleet_queries import HEALTH, fleet_queries, scrape_times
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.query_answer import CLOCK_TOLERANCE_SECONDS, Answer, Retry
from controlplane.sources.query_client import QueryClient
from controlplane.sources.targets import LIMIT
from controlplane.sources.urls import engine_url

LOOK_BACK_SECONDS: Final = 60.0
"""Pages older than this are not asked for: they would be stale when they arrive."""

_MARGIN_SECONDS: Final = 1.0  # the older end of a window is outside of it in Prometheus 3
_T = TypeVar("_T")


@dataclass
class Heard:
    """What a round heard. With a `failure` it ended early and nothing of it counts but `failed`.

    `targets` are all that Prometheus has but for `left_out` ones too many, `doubled` the names that several
    of them share. `scrapes` are the pages that are news, `dropped_samples` what was NaN or infinite on them,
    `read` the times of their scrapes (server's clock) by target. `failed` are the queries of signals that
    failed, `answered` those that did not, by subject. `notes` are the warnings of `partial` answers.
    """

    failure: Unknown | None = None
    retry: Retry = Retry.BACKOFF
    targets: tuple[Target, ...] = ()
    doubled: tuple[str, ...] = ()
    left_out: int = 0
    scrapes: list[Scrape | ScrapeFailure] = field(default_factory=list)
    read: dict[str, float] = field(default_factory=dict)
    dropped_samples: int = 0
    failed: dict[str, tuple[Unknown, Retry]] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    clock_ahead_seconds: float = 0.0
    partial: bool = False
    notes: tuple[str, ...] = ()


class Questioner:
    """Asks rounds, one at a time."""

    def __init__(
        self,
        settings: PrometheusSettings,
        catalog: Catalog,
        client: QueryClient,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client = client
        self._monotonic = monotonic
        self._queries = fleet_queries(catalog)
        self._layouts = Layouts(catalog)

    def ask(self, read: Mapping[str, float], waiting: Mapping[str, Reason], clock_ahead: float) -> Heard:
        """One round. `read` says which scrape of each target is no news, `waiting` which subjects are not to
        be asked for and why, `clock_ahead` by how many seconds the server's clock was ahead of ours.
        """
        heard = Heard(clock_ahead_seconds=clock_ahead)
        deadline = self._monotonic() + self._settings.timeout
        try:
            at, scraped = self._scrape_times(heard, deadline)
            oldest = at - LOOK_BACK_SECONDS
            news = [one for one in scraped if one.at != read.get(one.target.name) and one.at >= oldest]
            if news:
                self._read_pages(heard, at, news, waiting, deadline)
            self._layouts.forget_all_but(target.name for target in heard.targets)
        except _RoundEndedError as ended:
            heard.failure, heard.retry = ended.failure, ended.retry
        return heard

    def _query(self, heard: Heard, promql: str, deadline: float, at: float | None = None) -> Answer:
        """Ask with half of the time that is left, so that one slow query does not cost all others."""
        now = self._monotonic()
        answer = self._client.query(promql, now + (deadline - now) / 2, at)
        if answer.partial:
            heard.partial = True
            heard.notes = tuple(dict.fromkeys((*heard.notes, *answer.notes)))
        return answer

    def _scrape_times(self, heard: Heard, deadline: float) -> tuple[float, list[Scraped]]:
        """The time of evaluation for the whole round, and when each target was scraped (server's clock)."""
        answer = _good(self._query(heard, scrape_times(self._settings.selector), deadline))
        if not answer.series:
            failure = Unknown(Reason.NO_DATA, answer.at, f"no target matches {{{self._settings.selector}}}")
            raise _RoundEndedError(failure)
        newest: dict[str, Scraped] = {}
        doubled: dict[str, None] = {}
        for series in answer.series:
            name = series.labels.get(self._settings.instance_label, "")
            at = series.points[-1][1] if series.points else math.nan
            if not name or not math.isfinite(at):
                continue
            if name in newest:
                doubled[name] = None
            if name not in newest or at > newest[name].at:
                newest[name] = Scraped(self._target(name, series.labels), series.labels, at)
        for name in doubled:
            newest[name] = newest[name]._replace(is_one_of_many=True)
        scraped = list(newest.values())[:LIMIT]
        heard.targets = tuple(one.target for one in scraped)
        heard.doubled = tuple(doubled)
        heard.left_out = len(newest) - len(scraped)
        ahead = answer.clock_ahead_seconds or 0.0
        if abs(ahead - heard.clock_ahead_seconds) > CLOCK_TOLERANCE_SECONDS:
            heard.clock_ahead_seconds = ahead if abs(ahead) > CLOCK_TOLERANCE_SECONDS else 0.0
        return answer.at + ahead, scraped

    def _target(self, name: str, labels: Mapping[str, str]) -> Target:
        pool = labels.get(self._settings.pool_label or "") or self._settings.pool
        try:
            url = engine_url(name, "http", "/metrics")
        except ValueError:  # an instance label may be any name
            url = name
        return Target(name, pool, url)

    def _read_pages(
        self,
        heard: Heard,
        at: float,
        news: list[Scraped],
        waiting: Mapping[str, Reason],
        deadline: float,
    ) -> None:
        window = at - min(one.at for one in news) + _MARGIN_SECONDS
        selector = self._settings.selector
        sheets = Sheets(news, self._settings.instance_label, self._layouts)
        health = _good(self._query(heard, HEALTH.promql(selector, window), deadline, at))
        sheets.add_health(health)
        lost: dict[str, Reason] = {}
        why = ""
        for query in self._queries:
            reason = waiting.get(query.subject)
            if reason is None:
                answer = self._query(heard, query.promql(selector, window), deadline, at)
                if answer.failure is None:
                    heard.answered.append(query.subject)
                    sheets.add(answer)
                    continue
                heard.failed[query.subject] = answer.failure, answer.retry
                reason, why = answer.failure.reason, f": {answer.failure.detail}"
            lost |= dict.fromkeys(query.signals, reason)
        if not heard.answered:
            reason = next(iter(lost.values()), Reason.QUERY_FAILED)
            raise _RoundEndedError(Unknown(reason, health.at, f"no query for a signal is answered{why}"))
        for sheet, page, translator in self._layouts.pages(sheets.sheets):
            if sheet.up is None:  # no note of this scrape: another round will have it
                continue
            target, arrived = sheet.scraped.target.name, _arrival(sheet, heard.clock_ahead_seconds)
            heard.read[target] = sheet.scraped.at
            heard.dropped_samples += page.non_finite
            if sheet.up != 1:
                detail = "Prometheus could not scrape it"
                heard.scrapes.append(ScrapeFailure(target, arrived, Reason.SCRAPE_FAILED, detail))
                continue
            scrape = _translated(sheet, page, translator, arrived)
            heard.scrapes.append(_honest(scrape, lost, partial=heard.partial))


class _RoundEndedError(Exception):
    """The server cannot be asked further in this round."""

    def __init__(self, failure: Unknown, retry: Retry = Retry.BACKOFF) -> None:
        super().__init__()
        self.failure = failure
        self.retry = retry


def _good(answer: Answer) -> Answer:
    """An answer without which there is no round."""
    if answer.failure is not None:
        raise _RoundEndedError(answer.failure, answer.retry)
    return answer


def _arrival(sheet: Sheet, clock_ahead_seconds: float) -> float:
    """When Prometheus had the whole page, in our clock; its time stamp is the beginning of the scrape."""
    return sheet.scraped.at + (sheet.seconds or 0.0) - clock_ahead_seconds


def _translated(sheet: Sheet, page: Page, translator: Translator, arrived: float) -> Scrape | ScrapeFailure:
    target = sheet.scraped.target.name
    try:
        return translator.translate(page, b"", target=target, at=arrived, seconds=sheet.seconds or 0.0)
    except Exception as error:  # one odd page must not cost the others
        detail = f"cannot be read: {type(error).__name__}"
        return ScrapeFailure(target, arrived, Reason.SCRAPE_FAILED, detail)


def _honest(
    scrape: Scrape | ScrapeFailure, lost: Mapping[str, Reason], *, partial: bool
) -> Scrape | ScrapeFailure:
    """The scrape without what it only seems to say because signals were `lost` or answers `partial`."""
    if isinstance(scrape, ScrapeFailure):
        if scrape.reason is not Reason.NOT_AN_ENGINE or not (lost or partial):
            return scrape
        detail = "Prometheus gave only a part of its page"
        return ScrapeFailure(scrape.target, scrape.at, Reason.QUERY_FAILED, detail)
    engine, server = dialect(scrape.engine), dialect(SERVER)
    of_engine: dict[str, Reason] = {}
    of_server: dict[str, Reason] = {}
    for signal, reason in lost.items():
        row = engine.rule(signal) or server.rule(signal)
        if row is not None:
            (of_server if row.scope == "server" else of_engine)[signal] = reason
    return msgspec.structs.replace(
        scrape,
        engines={name: _without(signals, of_engine) for name, signals in scrape.engines.items()},
        server=_without(scrape.server, of_engine | of_server),
        partial=partial,
    )


def _without(signals: Signals, lost: Mapping[str, Reason]) -> Signals:
    def kept(values: dict[str, _T]) -> dict[str, _T]:
        return {signal: value for signal, value in values.items() if signal not in lost}

    if not lost:
        return signals
    unknown = {**signals.unknown, **lost}
    return Signals(kept(signals.numbers), kept(signals.by), kept(signals.histograms), unknown)
