"""`controlplane inspect`: what the product reads from one metrics page."""

import asyncio
import json
import math
import sys
import time
from pathlib import Path
from typing import BinaryIO

import click
from rich.console import Console

from controlplane.policy.quarantine.needs import blind
from controlplane.signals.gpu import NodeBlind, NodeReport, NodeSample
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Target
from controlplane.sources.answer import LIMIT_BYTES
from controlplane.sources.catalog import Catalog
from controlplane.sources.dcgm_inspect import gpu_file, gpu_page, gpus
from controlplane.sources.fetch import Client, Errand, Failed
from controlplane.sources.inspect import inspect as look
from controlplane.sources.inspect import read_page
from controlplane.sources.pages import Pages
from controlplane.sources.settings import OLLAMA_PATH
from controlplane.sources.urls import engine_url, shown
from controlplane.terminal.gpu_table import gpu_table
from controlplane.terminal.page_table import Edges, page

_TIMEOUT_SECONDS = 10.0
Seen = Scrape | ScrapeFailure | NodeReport | NodeBlind
"""What a page turned out to be: an engine's, none of one, or a GPU exporter's."""


@click.command()
@click.argument("source", metavar="URL|FILE|-")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--previous", metavar="FILE", type=click.Path(path_type=Path), help="An earlier page: adds rates."
)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 86400.0),
    help="Time between the two pages. With a URL alone: read it twice, so far apart.",
)
@click.option("--want", metavar="NAME", multiple=True, help="Also read this metric (repeatable).")
def inspect(
    source: str, as_json: bool, previous: Path | None, interval: float | None, want: tuple[str, ...]
) -> None:
    """Show every signal of one metrics page: at URL, in FILE, or on standard input (-).

    The page may be an engine's or that of NVIDIA's dcgm-exporter. A URL without a path means /metrics. A FILE
    that ends in .http holds a raw HTTP response.
    """
    catalog = Catalog(extra=want)
    before = _read_file(previous, catalog) if previous is not None else None
    url = _url(source)
    if url is not None:
        name = shown(url)
        pages = asyncio.run(_read_url(url, catalog, interval if previous is None else None))
        before, scrape = (pages[0], pages[1]) if len(pages) == 2 else (before, pages[0])
    elif source == "-":
        name, scrape = "standard input", _read(_head(sys.stdin.buffer), "-", catalog, http=False)
    else:
        name, scrape = source, _read_file(Path(source), catalog)
    if isinstance(scrape, NodeReport | NodeBlind):
        _show_gpus(scrape, before, interval, name, as_json=as_json)
        return
    out = look(scrape, before if isinstance(before, Scrape | ScrapeFailure) else None, interval)
    if as_json:
        click.echo(json.dumps(out, indent=2, ensure_ascii=False, allow_nan=False))
    if isinstance(scrape, ScrapeFailure):
        detail = scrape.detail.removeprefix(f"{name}: ")
        raise click.ClickException(f"{name}: {detail}")
    if not as_json:
        Console(highlight=False).print(page(out, name, _edges(scrape)))


def _edges(scrape: Scrape) -> dict[str, Edges]:
    """The first and the last finite bucket edge of each histogram of the page."""
    edges = {}
    for signals in (scrape.server, *scrape.engines.values()):
        for name, histogram in signals.histograms.items():
            bounds = [bound for bound in histogram.bounds if math.isfinite(bound)]
            if bounds:
                edges[name] = (bounds[0], bounds[-1])
    return edges


def _url(source: str) -> str | None:
    """The address that `source` is, None where it is a file or -."""
    if "://" not in source and (":" not in source or Path(source).exists()):
        return None
    try:
        return engine_url(source, "http", "/metrics")
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _show_gpus(
    sample: NodeSample, before: Seen | None, interval: float | None, name: str, *, as_json: bool
) -> None:
    """The GPUs of a page, and which checks of their health would be blind with it."""
    earlier = before if isinstance(before, NodeReport | NodeBlind) else None
    out = gpus(sample, earlier, interval)
    if isinstance(sample, NodeReport):
        out["blind_checks"] = {
            uuid: {check: list(missing) for check, missing in blind({*gpu.numbers, *gpu.unknown}, ()).items()}
            for uuid, gpu in sample.gpus.items()
        }
    if as_json:
        click.echo(json.dumps(out, indent=2, ensure_ascii=False, allow_nan=False))
    if isinstance(sample, NodeBlind):
        raise click.ClickException(f"{name}: {sample.detail}")
    if not as_json:
        Console(highlight=False).print(gpu_table(out, name))


def _read(raw: bytes, name: str, catalog: Catalog, *, http: bool) -> Seen:
    scrape = read_page(raw, name=name, http=http, catalog=catalog)
    if isinstance(scrape, ScrapeFailure) and scrape.reason is Reason.NOT_AN_ENGINE:
        return gpu_file(raw, name=name, http=http) or scrape
    return scrape


def _read_file(path: Path, catalog: Catalog) -> Seen:
    try:
        with path.open("rb") as file:
            raw = _head(file)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from None
    return _read(raw, str(path), catalog, http=path.suffix == ".http")


def _head(file: BinaryIO) -> bytes:
    """All of a file that is not too long; of a longer one enough to say so."""
    return file.read(LIMIT_BYTES + 1)


async def _read_url(url: str, catalog: Catalog, again_after: float | None) -> list[Seen]:
    """The page at `url`; two of them where it is to be read again after so many seconds."""
    ollama = url.endswith(OLLAMA_PATH)
    target = Target(shown(url), "", url, "ollama" if ollama else "auto")
    accept, encoding = ("application/json", "identity") if ollama else ("text/plain;version=0.0.4", "gzip")
    errand = Errand(accept, _TIMEOUT_SECONDS, LIMIT_BYTES, encoding)
    read = Pages(catalog, LIMIT_BYTES, counted=True).reader_for(target)

    async def once(client: Client) -> Seen:
        started = time.monotonic()
        answer = await client.get(url, errand)
        seconds, at = time.monotonic() - started, time.time()
        if isinstance(answer, Failed):
            return ScrapeFailure(target.name, at, Reason.SCRAPE_FAILED, answer.detail)
        scrape = read(answer, at, seconds)
        if isinstance(scrape, ScrapeFailure) and scrape.reason is Reason.NOT_AN_ENGINE:
            page = gpu_page(answer.status, answer.headers, answer.body, name=target.name, at=at)
            return page or scrape
        return scrape

    async with Client() as client:
        pages = [await once(client)]
        if again_after is not None and isinstance(pages[0], Scrape | NodeReport):
            await asyncio.sleep(again_after)
            pages.append(await once(client))
        return pages
