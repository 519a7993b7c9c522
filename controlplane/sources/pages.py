"""From an answer to a scrape: judged, parsed, translated. What the poller uses, put together."""

from threading import Lock

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Target
from controlplane.sources.answer import Bad, cut, judge
from controlplane.sources.catalog import Catalog
from controlplane.sources.dialect import Translator
from controlplane.sources.exposition import ExpositionError, Reader
from controlplane.sources.fetch import Answer
from controlplane.sources.ollama import read_loaded_models
from controlplane.sources.poller import PageReader
from controlplane.sources.urls import shown


class Pages:
    """Makes the readers of all targets. `limit_bytes` bounds a page after decompression.

    `dropped_samples` counts the wanted samples that were NaN or infinite, over all targets; warnings have
    numbers in them only where they are `counted`. Several targets may be read in several threads at once,
    each by one at a time.
    """

    def __init__(self, catalog: Catalog, limit_bytes: int, *, counted: bool = False) -> None:
        self.dropped_samples = 0
        self._counting = Lock()
        self._catalog = catalog
        self._counted = counted
        self._limit_bytes = limit_bytes

    def reader_for(self, target: Target) -> PageReader:
        """What reads the answers of one target."""
        if target.engine == "ollama":

            def read_api(
                answer: Answer, at: float, seconds: float, *, quickly: bool = False
            ) -> Scrape | ScrapeFailure:
                return read_loaded_models(target, answer, at, seconds)

            return read_api
        reader, translator = Reader(self._catalog.wanted), Translator(self._catalog, counted=self._counted)

        def read(
            answer: Answer, at: float, seconds: float, *, quickly: bool = False
        ) -> Scrape | ScrapeFailure:
            def failure(detail: str, reason: Reason = Reason.SCRAPE_FAILED) -> ScrapeFailure:
                return ScrapeFailure(target.name, at, reason, f"{shown(target.url)}: {detail}")

            good = judge(answer.status, answer.headers, answer.body, limit_bytes=self._limit_bytes)
            if isinstance(good, Bad):
                return failure(good.detail, good.reason)
            if why := cut(good.body, answer.headers):
                return failure(why)
            try:
                page = reader.read(good.body, quickly=quickly)
            except ExpositionError as error:
                return failure(str(error))
            with self._counting:
                self.dropped_samples += page.non_finite
            result = translator.translate(
                page, good.body, target=target.name, at=at, seconds=seconds, warnings=good.warnings
            )
            if isinstance(result, ScrapeFailure):
                return failure(result.detail, result.reason)
            return result

        return read
