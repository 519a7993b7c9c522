"""One page as people and scripts want to see it: every signal that it has, as JSON-ready values.

A signal is `{"value": number}`, a distribution `{"count", "sum", "mean", "p50", "p90", "p95", "p99"}`, and
`{"unknown": reason}` where there is no usable value. Nothing here is NaN or infinite.
"""

import math
from typing import Any

from controlplane.signals.counter import process_restarted, went_back
from controlplane.signals.histogram import Histogram, merge
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Signals
from controlplane.sources.answer import Good, cut, judge
from controlplane.sources.catalog import CORE_SIGNALS, Catalog, extra_row, full
from controlplane.sources.dialect import Translator
from controlplane.sources.dialects import SERVER, Row, dialect
from controlplane.sources.exposition import ExpositionError, Reader
from controlplane.sources.http_file import read_http
from controlplane.sources.plan import combine

Json = dict[str, Any]

_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


def read_page(
    raw: bytes,
    *,
    name: str,
    http: bool = False,
    at: float = 0.0,
    catalog: Catalog | None = None,
) -> Scrape | ScrapeFailure:
    """What a file says: a page (gzip or not), or with `http` a raw HTTP response that should hold one.

    `name` stands for the target, `at` is the Unix time at which the page was taken.
    """
    catalog = catalog or full()
    status, headers, body = 200, {"content-type": "text/plain"}, raw
    if http:
        response = read_http(raw)
        if not isinstance(response, tuple):
            return ScrapeFailure(name, at, response.reason, response.detail)
        status, headers, body = response.status, dict(response.headers), response.body
    answer = judge(status, headers, body)
    if not isinstance(answer, Good):
        return ScrapeFailure(name, at, answer.reason, answer.detail)
    warnings = answer.warnings
    if why := cut(answer.body, headers):
        if http:
            return ScrapeFailure(name, at, Reason.SCRAPE_FAILED, why)
        warnings = (*warnings, why)  # a file may have been cut by an editor
    try:
        page = Reader(catalog.wanted).read(answer.body)
    except ExpositionError as error:
        return ScrapeFailure(name, at, Reason.SCRAPE_FAILED, str(error))
    return Translator(catalog, counted=True).translate(
        page, answer.body, target=name, at=at, seconds=0.0, warnings=warnings
    )


def inspect(
    scrape: Scrape | ScrapeFailure,
    previous: Scrape | ScrapeFailure | None = None,
    interval_seconds: float | None = None,
) -> Json:
    """Everything that one page says; with the page before it, also what happened in between.

    Counters then have `increase` and, where the gap is known, `rate` (per second); distributions have the
    gap's own under `window`; `restarted` says whether everything began again at 0. The gap is
    `interval_seconds`, else the time between the two pages if both carry one. A page that could not be read
    has `error`, and its core signals are unknown for that reason. ValueError for a gap that is not above 0.
    """
    if interval_seconds is not None and not interval_seconds > 0:
        raise ValueError(f"the interval between two pages must be above 0 s (got {interval_seconds})")
    if isinstance(scrape, ScrapeFailure):
        return _failed(scrape)
    warnings = list(scrape.warnings)
    gap = None
    if isinstance(previous, ScrapeFailure):
        warnings.append(f"the page before could not be read: {previous.detail}")
    elif previous is not None and previous.engine != scrape.engine:
        warnings.append(
            f"the page before is one of {previous.engine}: nothing can be said of the time between"
        )
    elif previous is not None:
        gap = _Gap(previous, scrape, interval_seconds)
        warnings += gap.warnings
    scopes = {**scrape.engines, SERVER: scrape.server}
    out: Json = {
        "engine": scrape.engine,
        "version": scrape.version,
        "models": list(scrape.models),
        "signals": _signals(scrape, scopes, gap),
        "engines": {
            engine: _signals(scrape, {engine: signals}, gap) for engine, signals in scrape.engines.items()
        },
        "warnings": warnings,
    }
    if gap is not None:
        out["restarted"] = gap.restarted
        if gap.without:
            warnings.append(
                f"no growth of {', '.join(gap.without)}: a part of it is new, or fell without a restart"
            )
    return out


class _Gap:
    """The time between two pages of one server.

    Rules as in the daemon. The start times say whether the process is another one, and only where one of them
    is not known a counter that fell does. Within one process a counter that fell (a series left the page) or
    was not there before has no growth; nothing is known of a sum of which a part has none.
    """

    def __init__(self, before: Scrape, after: Scrape, interval_seconds: float | None) -> None:
        self.before = {**before.engines, SERVER: before.server}
        self.seconds = interval_seconds or max(0.0, after.at - before.at) or None
        self.warnings: list[str] = []
        if self.seconds is None:
            self.warnings.append("rates are unknown: the time between the two pages is not known")
        starts = [page.server.numbers.get("start_time") for page in (before, after)]
        self.without: dict[str, None] = {}  # signals that some engine has no growth of
        self.restarted = process_restarted(*starts)
        if self.restarted:
            self.warnings.append(f"restarted: the process start time went from {starts[0]} to {starts[1]}")
        if None not in starts:
            return
        fallen = self._fallen(after)
        self.restarted = fallen is not None
        if fallen:
            self.warnings.append(f"restarted: {fallen}")

    def increase(self, scope: str, signal: str, value: float) -> float | None:
        """Growth of a counter; None where it is not known."""
        if self.restarted:
            return value
        then = self.before.get(scope, Signals()).numbers.get(signal)
        return None if then is None or went_back(then, value) else value - then

    def growth(self, scope: str, signal: str, histogram: Histogram) -> Histogram | None:
        """What was observed in between; None where it is not known."""
        if self.restarted:
            return histogram
        then = self.before.get(scope, Signals()).histograms.get(signal)
        return None if then is None else histogram.minus(then)

    def _fallen(self, after: Scrape) -> str | None:
        """The first counter that is lower than before: a process that died takes all of them with it."""
        for scope, signals in {**after.engines, SERVER: after.server}.items():
            then = self.before.get(scope, Signals())
            for signal, value in signals.numbers.items():
                before = then.numbers.get(signal)
                if before is not None and _rule(after, signal).kind == "counter" and went_back(before, value):
                    return f"{signal} fell from {before:g} to {value:g}"
            for signal, histogram in signals.histograms.items():
                known = then.histograms.get(signal)
                if known is not None and went_back(known.count, histogram.count):
                    return f"the count of {signal} fell from {known.count:g} to {histogram.count:g}"
        return None


def _failed(failure: ScrapeFailure) -> Json:
    return {
        "engine": None,
        "version": None,
        "models": [],
        "signals": {signal: {"unknown": failure.reason.value} for signal in CORE_SIGNALS},
        "engines": {},
        "warnings": [],
        "error": failure.detail,
    }


def _rule(scrape: Scrape, signal: str) -> Row:
    """How the parts of a signal are to be combined."""
    return dialect(scrape.engine).rule(signal) or dialect(SERVER).rule(signal) or extra_row(signal)


def _signals(scrape: Scrape, scopes: dict[str, Signals], gap: _Gap | None) -> Json:
    """All signals of these scopes, each combined over them, in the order of the engine's table."""
    names: dict[str, None] = {}
    for part in scopes.values():
        names |= dict.fromkeys((*part.numbers, *part.by, *part.histograms, *part.unknown))
    order = {
        row.signal: i for i, row in enumerate((*dialect(scrape.engine).metrics, *dialect(SERVER).metrics))
    }
    return {
        name: _signal(name, _rule(scrape, name), scopes, gap)
        for name in sorted(names, key=lambda name: order.get(name, len(order)))
    }


def _signal(name: str, rule: Row, scopes: dict[str, Signals], gap: _Gap | None) -> Json:
    out = _figure(name, rule, scopes, gap)
    by = [part.by[name] for part in scopes.values() if name in part.by]
    if by:
        labels = dict.fromkeys(label for part in by for label in part)
        out["by"] = {label: sum(part.get(label, 0.0) for part in by) for label in labels}
        if rule.value_of in out["by"] and "unknown" not in out:
            out["value"] = out["by"][rule.value_of]
    return out


def _figure(name: str, rule: Row, scopes: dict[str, Signals], gap: _Gap | None) -> Json:
    """The signal as one figure, or why there is none: a part that cannot be read makes the whole unknown."""
    reasons = [part.unknown[name] for part in scopes.values() if name in part.unknown]
    broken = [reason for reason in reasons if reason is not Reason.ABSENT]
    if broken:
        return {"unknown": broken[0].value}
    histograms = {scope: part.histograms[name] for scope, part in scopes.items() if name in part.histograms}
    if histograms:
        return _distribution(name, histograms, gap)
    numbers = {scope: part.numbers[name] for scope, part in scopes.items() if name in part.numbers}
    if numbers:
        return _number(name, rule, numbers, gap)
    return {"unknown": Reason.ABSENT.value} if reasons else {}


def _number(name: str, rule: Row, numbers: dict[str, float], gap: _Gap | None) -> Json:
    values = list(numbers.values())
    out: Json = {"value": combine(rule.over, values)}
    if name == "kv_usage" and len(values) > 1:
        out["mean"] = combine("mean", values)
    if gap is not None and rule.kind == "counter":
        increases = [gap.increase(scope, name, value) for scope, value in numbers.items()]
        known = [grown for grown in increases if grown is not None]
        if len(known) < len(increases):
            gap.without[name] = None
        elif known:
            out["increase"] = sum(known)
            if gap.seconds:
                out["rate"] = sum(known) / gap.seconds
    return out


def _distribution(name: str, histograms: dict[str, Histogram], gap: _Gap | None) -> Json:
    out = _quantiles(merge(histograms.values()))
    if gap is not None:
        growths = [gap.growth(scope, name, histogram) for scope, histogram in histograms.items()]
        known = [growth for growth in growths if growth is not None]
        if len(known) < len(growths):
            gap.without[name] = None
        elif known:
            out["window"] = _quantiles(merge(known))
    return out


def _quantiles(histogram: Histogram | None) -> Json:
    if histogram is None:
        return {"count": 0.0, "sum": 0.0, "mean": None} | {name: None for name, _ in _QUANTILES}
    figures = {"count": histogram.count, "sum": histogram.total, "mean": histogram.mean}
    figures |= {name: histogram.quantile(q) for name, q in _QUANTILES}
    # A page may hold counts so small that dividing by them overflows.
    return {
        name: figure if figure is None or math.isfinite(figure) else None for name, figure in figures.items()
    }
