"""From a page to a scrape: which engine printed it, which version that can be, and what it says."""

import re
from collections.abc import Iterable

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Signals
from controlplane.sources.catalog import Catalog
from controlplane.sources.compiler import Stranger, compile_plan, some
from controlplane.sources.dialects import engines
from controlplane.sources.exposition import Layout, Page
from controlplane.sources.plan import ABSURD, Plan, not_measured

_FIRST_NAMES = 3
_LONGEST_NAME = 80
_NAME = re.compile(rb"^[ \t]*([A-Za-z_:][\w:]*)[ \t]*[{ \t]", re.MULTILINE)


class Translator:
    """Translates the pages of one target. What a layout means is worked out once and kept while it lasts.

    Warnings say how many series or samples they are about only where they are `counted`: the daemon tells
    each text once, so there they must come from a small set.
    """

    def __init__(self, catalog: Catalog, *, counted: bool = False) -> None:
        self._catalog = catalog
        self._counted = counted
        self._layout: Layout | None = None
        self._plan: Plan | Stranger = Stranger("")

    def translate(
        self,
        page: Page,
        body: bytes,
        *,
        target: str,
        at: float,
        seconds: float,
        warnings: tuple[str, ...] = (),
    ) -> Scrape | ScrapeFailure:
        """The page as a scrape of `target` that arrived at Unix time `at` after `seconds`.

        `body` is the text of the page, looked at only if no known engine printed it: the failure then names
        the first metrics on it. `warnings` are what was odd about the answer.
        """
        if page.layout is not self._layout:
            self._plan = compile_plan(self._catalog, page.layout, counted=self._counted)
            self._layout = page.layout
        plan = self._plan
        if isinstance(plan, Stranger):
            return ScrapeFailure(target, at, Reason.NOT_AN_ENGINE, _no_engine(page, body, plan))
        bad: frozenset[int] = frozenset()
        if page.non_finite or max(page.values) > ABSURD or min(page.values) < -ABSURD:
            bad = not_measured(page.values)
            count = some(len(bad), self._counted)
            warnings = (*warnings, f"{count} samples are NaN or infinite and were left out")
        engines = {name: scope.signals(page.values, bad) for name, scope in plan.engines.items()}
        server = plan.server.signals(page.values, bad)
        return Scrape(
            target=target,
            at=at,
            seconds=seconds,
            engine=plan.dialect.engine,
            version=plan.version,
            models=plan.models,
            engines=engines,
            server=server,
            warnings=warnings + _impossible((*engines.values(), server)) + plan.warnings,
            loose=plan.loose,
            gauges_lag=plan.dialect.gauges_lag,
        )


def _impossible(scopes: Iterable[Signals]) -> tuple[str, ...]:
    """A warning for each signal with a value that cannot be."""
    signals = dict.fromkeys(
        signal for scope in scopes for signal, reason in scope.unknown.items() if reason is Reason.IMPOSSIBLE
    )
    return tuple(
        f"{signal} is left out: a value is impossible (below 0, too large, or buckets that fall)"
        for signal in signals
    )


def _no_engine(page: Page, body: bytes, stranger: Stranger) -> str:
    """A sentence that says what the page has instead of engine metrics."""
    names: dict[str, None] = {}
    for match in _NAME.finditer(body):
        names.setdefault(match[1][:_LONGEST_NAME].decode())
        if len(names) == _FIRST_NAMES:
            break
    known = [table for table in engines() if table.metrics]
    others = ", ".join(table.title for table in known[1:])
    noted = [table for table in engines() if table.note]
    hints = [table.note for table in noted if any(name.startswith(table.spellings) for name in names)]
    begins = f", beginning with {', '.join(names)}" if names else ""
    sentence = f"not a {known[0].title} page, nor one of {others}: {page.samples} samples{begins}"
    return "; ".join(filter(None, (sentence, stranger.detail, *hints)))
