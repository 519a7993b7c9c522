"""From an answer to a scrape: judged, parsed, translated. What the poller uses, put together."""

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Target
from controlplane.sources.answer import Bad, judge
from controlplane.sources.catalog import Catalog
from controlplane.sources.dialect import Translator
from controlplane.sources.exposition import ExpositionError, Reader
from controlplane.sources.fetch import Answer
from controlplane.sources.ollama import read_loaded_models
from controlplane.sources.poller import PageReader
from controlplane.sources.urls import shown


class Pages:
    """Makes the readers of all targets. `limit_bytes` bounds a page after decompression.

    `dropped_samples` counts the wanted samples that were NaN or infinite, over all targets.
    """

    def __init__(self, catalog: Catalog, limit_bytes: int) -> None:
        self.dropped_samples = 0
        self._catalog = catalog
        self._limit_bytes = limit_bytes

    def reader_for(self, target: Target) -> PageReader:
        """What reads the answers of one target."""
        if target.engine == "ollama":
            return lambda answer, at, seconds: read_loaded_models(target, answer, at, seconds)
        reader, translator = Reader(self._catalog.wanted), Translator(self._catalog)

        def read(answer: Answer, at: float, seconds: float) -> Scrape | ScrapeFailure:
            def failure(detail: str, reason: Reason = Reason.SCRAPE_FAILED) -> ScrapeFailure:
                return ScrapeFailure(target.name, at, reason, f"{shown(target.url)}: {detail}")

            good = judge(answer.status, answer.headers, answer.body, limit_bytes=self._limit_bytes)
            if isinstance(good, Bad):
                return failure(good.detail, good.reason)
            # The format ends each line with a line feed: without the last one, the page is cut in a number.
            if not good.body.endswith(b"\n"):
                return failure("the page was cut short: its last line has no end")
            try:
                page = reader.read(good.body)
            except ExpositionError as error:
                return failure(str(error))
            self.dropped_samples += page.non_finite
            result = translator.translate(
                page, good.body, target=target.name, at=at, seconds=seconds, warnings=good.warnings
            )
            if isinstance(result, ScrapeFailure):
                return failure(result.detail, result.reason)
            return result

        return read
