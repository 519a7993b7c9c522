"""Pages put together again from the answers of Prometheus, so that they are read like scraped ones.

Prometheus keeps all samples of one scrape, and what it notes of the scrape itself (`up`), under one time
stamp. So the page that a target printed at time t is exactly the samples at t. That makes three things right
at once. A series that is gone from the page is absent although an older sample of it is in the window. Two
answers of one round never mix two scrapes, even if a scrape comes in between. And the age of a page is the
age of its scrape, not the five minutes for which an instant vector repeats it. Series that bring time stamps
of their own are absent (no engine prints any), and so are for one round those that a distributed store has
not yet taken in when it already has `up`; Prometheus itself takes in both at once.

Labels that Prometheus put on are taken off again: they are those of the target's `up` series. Where a page
had a label of the same name, Prometheus renamed it to `exported_NAME`, which is undone.
"""

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Final, NamedTuple

from controlplane.signals.samples import Target
from controlplane.sources.catalog import Catalog
from controlplane.sources.dialect import Translator
from controlplane.sources.exposition import Labels, Layout, Page, Series
from controlplane.sources.query_answer import Answer, QuerySeries

_EXPORTED: Final = "exported_"
_SAME_INSTANT_SECONDS: Final = 0.0005
_MEMO_SERIES: Final = 500_000


class Scraped(NamedTuple):
    """A target as Prometheus has it: its labels, and when it was last scraped (Unix seconds, its clock).

    `is_one_of_many`: other targets have the same instance label, so a series must have all labels to be its.
    Else the instance is enough, because relabelling may take labels off series that `up` keeps.
    """

    target: Target
    labels: dict[str, str]
    at: float
    is_one_of_many: bool = False


class Sheet:
    """The samples of one page while they are gathered; `up` and `seconds` are Prometheus's own notes."""

    def __init__(self, scraped: Scraped) -> None:
        self.scraped = scraped
        self.up: float | None = None
        self.seconds: float | None = None
        self.series: list[Series] = []
        self.values: list[float] = []


class Layouts:
    """One layout and one translator for all targets that print alike, which in a fleet most do."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._series: dict[Series, Series] = {}
        self._by_target: dict[str, tuple[Layout, Translator]] = {}

    def one(self, name: str, labels: Labels) -> Series:
        """The one copy of a series' identity."""
        if len(self._series) >= _MEMO_SERIES:
            self._series.clear()
        series = Series(name, labels)
        return self._series.setdefault(series, series)

    def pages(self, sheets: Iterable[Sheet]) -> list[tuple[Sheet, Page, Translator]]:
        """The pages of one round, each with what translates it."""
        shared = {layout.series: (layout, translator) for layout, translator in self._by_target.values()}
        pages = []
        for sheet in sheets:
            name, series = sheet.scraped.target.name, tuple(sheet.series)
            known = self._by_target.get(name)
            if known is None or known[0].series != series:
                if series not in shared:
                    shared[series] = (Layout(series), Translator(self._catalog))
                known = self._by_target[name] = shared[series]
            non_finite = sum(not isfinite(value) for value in sheet.values)
            page = Page(known[0], sheet.values, len(sheet.values), non_finite)
            pages.append((sheet, page, known[1]))
        return pages

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Drop what is remembered of targets that left."""
        self._by_target = {name: self._by_target[name] for name in names if name in self._by_target}


class Sheets:
    """Deals the series of many answers out to the targets that they came from."""

    def __init__(self, scraped: Iterable[Scraped], instance_label: str, layouts: Layouts) -> None:
        self._by_instance = {one.labels.get(instance_label, ""): Sheet(one) for one in scraped}
        self._instance_label = instance_label
        self._layouts = layouts

    @property
    def sheets(self) -> Iterable[Sheet]:
        return self._by_instance.values()

    def add_health(self, answer: Answer) -> None:
        """Take in an answer with the series of the query HEALTH."""
        for sheet, series, value in self._placed(answer):
            if series.labels.get("__name__") == "up":
                sheet.up = value
            else:
                sheet.seconds = value

    def add(self, answer: Answer) -> None:
        """Take in an answer with series of the pages."""
        for sheet, series, value in self._placed(answer):
            labels = _printed(series.labels, sheet.scraped.labels)
            sheet.series.append(self._layouts.one(series.labels.get("__name__", ""), labels))
            sheet.values.append(value)

    def _placed(self, answer: Answer) -> Iterator[tuple[Sheet, QuerySeries, float]]:
        """The series that are on a page, with their value there."""
        for series in answer.series:
            sheet = self._by_instance.get(series.labels.get(self._instance_label, ""))
            if sheet is None:
                continue
            scraped = sheet.scraped
            if scraped.is_one_of_many and not scraped.labels.items() <= series.labels.items():
                continue
            value = _value_at(series, scraped.at)
            if value is not None:
                yield sheet, series, value


def _value_at(series: QuerySeries, at: float) -> float | None:
    for point_at, value in reversed(series.points):
        if abs(point_at - at) < _SAME_INSTANT_SECONDS:
            return value
    return None


def _printed(labels: dict[str, str], target_labels: dict[str, str]) -> Labels:
    """The labels as the page printed them."""
    printed = []
    for name, value in labels.items():
        if name == "__name__" or name in target_labels:
            continue
        bare = name.removeprefix(_EXPORTED)
        printed.append((bare if bare in target_labels else name, value))
    return tuple(sorted(printed))
