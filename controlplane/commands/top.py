"""`controlplane top`: pools and replicas of a running daemon, live."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import TypeVar

import aiohttp
import click
from pydantic import BaseModel, ValidationError
from rich.console import Console, Group
from rich.live import Live

from controlplane.api import shapes
from controlplane.sources.urls import engine_url
from controlplane.terminal.fleet_table import View, screen

REFRESH_SECONDS = 2.0
_TIMEOUT_SECONDS = 5.0
_PAGE = 200
_MOST_REPLICAS = 2000
_MOST_RECORDS = 3
_LARGEST_ANSWER_BYTES = 64 << 20

M = TypeVar("M", bound=BaseModel)


class NoAnswerError(Exception):
    """The daemon did not answer as it should; the text is a sentence without the address."""


@click.command()
@click.option("--url", default="http://127.0.0.1:9090", show_default=True, help="Where the daemon's API is.")
@click.option("--once", is_flag=True, help="Print once and end, also into a pipe.")
def top(url: str, once: bool) -> None:
    """Show pools and replicas, the worst first: goodput as a proven interval against its objective.

    RUN and WAIT are requests in the engines, KV is the fullest KV cache, OUT/s output tokens, TTFT and TPOT
    95th percentiles, PRE/s preemptions, FAILS pages that were not read, AGE that of the last one; ≥ marks
    what a part is missing from. Narrow terminals get fewer columns. Ctrl-C ends it.
    """
    try:
        base = engine_url(url, "http", "").rstrip("/")
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    try:
        asyncio.run(_print_once(base) if once else _watch(base))
    except NoAnswerError as error:
        raise click.ClickException(
            f"no daemon to show at {base}: {error} (start one with `controlplane run`, or give its --url)"
        ) from None
    except KeyboardInterrupt:
        sys.exit(0)


async def _print_once(base: str) -> None:
    async with aiohttp.ClientSession() as session:
        view = await look(session, base)
    console = Console(highlight=False)
    for line in screen(view, console.width, None):
        console.print(line, no_wrap=True, crop=False)


async def _watch(base: str) -> None:
    console = Console(highlight=False)
    async with aiohttp.ClientSession() as session:
        view = await look(session, base)
        trouble, last = "", time.monotonic()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                lines = screen(view, console.width, console.height, trouble)
                live.update(Group(*lines), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)
                try:
                    view = await look(session, base)
                    trouble, last = "", time.monotonic()
                except NoAnswerError as error:
                    trouble = f"no answer for {time.monotonic() - last:.0f} s: {error}; this is the last one"


async def look(session: aiohttp.ClientSession, base: str) -> View:
    """One look at the daemon whose API is at `base`. Raises NoAnswerError."""
    fleet = await _ask(session, f"{base}/api/v1/fleet", shapes.Fleet)
    replicas: list[shapes.Replica] = []
    total = 1
    while len(replicas) < min(total, _MOST_REPLICAS):
        page = await _ask(
            session, f"{base}/api/v1/replicas?limit={_PAGE}&offset={len(replicas)}", shapes.Replicas
        )
        total = page.total
        replicas += page.items
        if not page.items:
            break
    records: list[shapes.Event | shapes.Decision] = []
    try:
        newest = f"since=1h&limit={_MOST_RECORDS}"
        records += (await _ask(session, f"{base}/api/v1/events?{newest}", shapes.Events)).items
        records += (await _ask(session, f"{base}/api/v1/decisions?{newest}", shapes.Decisions)).items
    except NoAnswerError:
        pass  # a journal that cannot be read stands among the fleet's troubles already
    now = fleet.at + fleet.age_seconds
    # Those of a time that is yet to come are from before the clock was set back.
    past = sorted((record for record in records if record.at <= now + 1), key=lambda record: record.at)
    return View(base, now, fleet, replicas, total, past[-_MOST_RECORDS:])


async def _ask(session: aiohttp.ClientSession, url: str, shape: type[M]) -> M:
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            body = b"".join([chunk async for chunk in _bounded(response)])
    except TimeoutError:
        raise NoAnswerError(f"no answer within {_TIMEOUT_SECONDS:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise NoAnswerError(_cause(error)) from None
    except aiohttp.ClientError as error:
        raise NoAnswerError(f"not an answer over HTTP ({type(error).__name__})") from None
    try:
        if response.status != 200:
            raise NoAnswerError(shapes.Error.model_validate_json(body).error.message)
        return shape.model_validate_json(body)
    except ValidationError:
        raise NoAnswerError(
            f"what answers there (HTTP status {response.status}) is not this controlplane"
        ) from None


async def _bounded(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > _LARGEST_ANSWER_BYTES:
            raise NoAnswerError(f"its answer is over {_LARGEST_ANSWER_BYTES} bytes")
        yield chunk


def _cause(error: aiohttp.ClientConnectorError) -> str:
    """Why there is no connection, in the system's words: `connection refused`."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted here"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} has no address"
    code = error.os_error.errno
    return os.strerror(code).lower() if code else "it cannot be reached"
