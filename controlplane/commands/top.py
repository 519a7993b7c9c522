"""`controlplane top`: what a running daemon sees and does, live."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import aiohttp
import click
from pydantic import BaseModel, ValidationError
from rich.console import Console, Group
from rich.live import Live

from controlplane.api import shapes
from controlplane.sources.urls import engine_url
from controlplane.terminal.keyboard import keyboard
from controlplane.terminal.pages import PAGES, screen, whole
from controlplane.terminal.view import View

REFRESH_SECONDS = 2.0
_TIMEOUT_SECONDS = 5.0
_PAGE = 200
_MOST_ITEMS = 2000
_MOST_RECORDS = 3
_MOST_DECISIONS = 50
_LARGEST_ANSWER_BYTES = 64 << 20

_STEPS = {"\t": 1, "\x1b[C": 1, "\x1b[Z": -1, "\x1b[D": -1}
"""Tab and arrow keys, as terminals send them, and how many pages on they go."""

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", shapes.Replicas, shapes.Nodes)


class NoAnswerError(Exception):
    """The daemon did not answer as it should; the text is a sentence without the address."""


@click.command()
@click.option("--url", default="http://127.0.0.1:9090", show_default=True, help="Where the daemon's API is.")
@click.option("--once", is_flag=True, help="Print all pages once and end, as into a pipe.")
def top(url: str, once: bool) -> None:
    """Show the fleet, the worst first: pools and replicas, limits, GPUs, decisions, alerts.

    Goodput is a proven interval against its objective. RUN and WAIT are requests in the engines, KV is the
    fullest KV cache, OUT/s output tokens, TTFT and TPOT 95th percentiles, PRE/s preemptions, FAILS pages that
    were not read, AGE that of the last one; ≥ marks what a part is missing from. Narrow terminals get fewer
    columns. Keys 1 to 5 and tab change the page, q or Ctrl-C ends it.
    """
    try:
        base = engine_url(url, "http", "").rstrip("/")
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    once = once or not sys.stdout.isatty()
    try:
        asyncio.run(_print_once(base) if once else _Watch(base).run())
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
    for line in whole(view, console.width):
        console.print(line, no_wrap=True, crop=False)


class _Watch:
    """The live screen: a look every few seconds, another page at once."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._page = 0
        self._is_over = False
        self._wake = asyncio.Event()

    async def run(self) -> None:
        console = Console(highlight=False)
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession() as session:
            view = await look(session, self._base)
            trouble, last = "", time.monotonic()
            loop.add_signal_handler(signal.SIGWINCH, self._wake.set)
            with (
                Live(console=console, screen=True, auto_refresh=False) as live,
                keyboard(self._pressed) as has_keys,
            ):
                due = time.monotonic() + REFRESH_SECONDS
                while not self._is_over:
                    page, (width, height) = PAGES[self._page], console.size
                    lines = screen(view, width, height, page, trouble=trouble, has_keys=has_keys)
                    live.update(Group(*lines), refresh=True)
                    if await self._woken_within(due - time.monotonic()):
                        continue
                    try:
                        view = await look(session, self._base)
                        trouble, last = "", time.monotonic()
                    except NoAnswerError as error:
                        since = time.monotonic() - last
                        trouble = f"no answer for {since:.0f} s: {error}; this is the last one"
                    due = time.monotonic() + REFRESH_SECONDS

    async def _woken_within(self, seconds: float) -> bool:
        """Whether a key was pressed, or the window changed, in that time."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    def _pressed(self, key: str) -> None:
        numbers = {str(number): number - 1 for number in range(1, len(PAGES) + 1)}
        if key in ("q", "Q"):
            self._is_over = True
        elif key in numbers:
            self._page = numbers[key]
        elif key in _STEPS:
            self._page = (self._page + _STEPS[key]) % len(PAGES)
        self._wake.set()


async def look(session: aiohttp.ClientSession, base: str) -> View:
    """One look at the daemon whose API is at `base`. Raises NoAnswerError."""
    fleet = await _ask(session, f"{base}/api/v1/fleet", shapes.Fleet)
    replicas, total = await _paged(session, f"{base}/api/v1/replicas", shapes.Replicas)
    events, decisions, nodes, alerts = await asyncio.gather(
        _or_none(_ask(session, f"{base}/api/v1/events?since=1h&limit={_MOST_RECORDS}", shapes.Events)),
        _or_none(
            _ask(session, f"{base}/api/v1/decisions?since=1h&limit={_MOST_DECISIONS}", shapes.Decisions)
        ),
        _or_none(_paged(session, f"{base}/api/v1/nodes", shapes.Nodes)),
        _or_none(_ask(session, f"{base}/api/v1/alerts", shapes.Alerts)),
    )
    now = fleet.at + fleet.age_seconds
    # Those of a time that is yet to come are from before the clock was set back.
    decided = [one for one in (decisions.items if decisions else ()) if one.at <= now + 1]
    happened = [one for one in (events.items if events else ()) if one.at <= now + 1]
    records = sorted([*happened, *decided], key=lambda record: record.at)
    return View(
        base,
        now,
        fleet,
        replicas,
        total,
        records[-_MOST_RECORDS:],
        decided,
        nodes[0] if nodes else (),
        alerts.items if alerts else (),
    )


async def _or_none(answer: Awaitable[T]) -> T | None:
    """What is not needed to show the rest: a journal that cannot be read stands among the fleet's troubles
    already, and a daemon of an earlier version has fewer answers."""
    try:
        return await answer
    except NoAnswerError:
        return None


async def _paged(session: aiohttp.ClientSession, url: str, shape: type[P]) -> tuple[list[Any], int]:
    """All items over several pages, up to a bound, and how many there are."""
    items: list[Any] = []
    total = 1
    while len(items) < min(total, _MOST_ITEMS):
        page = await _ask(session, f"{url}?limit={_PAGE}&offset={len(items)}", shape)
        total = page.total
        items += page.items
        if not page.items:
            break
    return items, total


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
