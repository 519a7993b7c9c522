#!/usr/bin/env python3
"""A fleet that collapses and recovers: simulated vLLM servers, clients that ask too much, and controlplane.

    make demo        (or: .venv/bin/python scripts/demo.py)

Control is off at first; the key `c`, or `scripts/demo.py on` and `off` from another terminal, switches it.
Needs no GPU, no network and no configuration; what it writes is in var/demo here. Ctrl-C ends all of it.
"""

import asyncio
import contextlib
import json
import signal
import sys
import urllib.error
import urllib.request
from typing import Any

import click
from demo_load import Load, Phase
from demo_screen import Screen
from demo_site import FOLDER, MODEL, POOL, DemoError, Site, command, only_one_here
from demo_switch import KEY, is_on, switch

from controlplane.terminal.keyboard import keyboard

PHASES = (
    Phase("light", 10.0, 0.5, "half of what the fleet can answer"),
    Phase("overload", float("inf"), 2.0, "twice what it can"),
)
LINE_SECONDS = 5.0
START_SECONDS = 30.0


class Demo:
    """All of it. Begins its folder anew. Raises DemoError where ports are short."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._site = Site()
        self._load = Load(self._site.gateway, MODEL, PHASES)
        self._fleet: dict[str, Any] = {}
        self._pressed = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises DemoError where something ends that should not."""
        jobs: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        children = self._site.children
        try:
            await asyncio.gather(*(child.start() for child in children))
            jobs += [asyncio.create_task(child.watch()) for child in children]
            jobs.append(asyncio.create_task(self._show()))
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            # On Ctrl-C in a terminal the children end by themselves too: that is no error then.
            if not stop.is_set():
                for job in done:
                    job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await asyncio.gather(*(child.stop() for child in children))

    async def _show(self) -> None:
        await self._ready()
        with keyboard(self._press) as has_keys:
            self._screen.introduce(self._site, str(command()), has_keys=has_keys)
            jobs = [asyncio.create_task(job) for job in (self._load.run(), self._switched(), self._lines())]
            try:
                done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                for job in done:
                    job.result()
            finally:
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)

    def _press(self, key: str) -> None:
        if key.lower() == KEY:
            self._pressed.set()

    async def _switched(self) -> None:
        """Do what the key asks for."""
        while True:
            await self._pressed.wait()
            self._pressed.clear()
            on = not is_on(await asyncio.to_thread(self._ask))
            try:
                await asyncio.to_thread(switch, on)
            except DemoError as error:
                self._screen.say(f" -- {error}", "red")

    async def _lines(self) -> None:
        """A line now and then, and a heading where something has changed."""
        phase, on = None, False
        for count in range(1, 1 << 62):
            if self._load.phase is not phase:
                phase = self._load.phase
                self._screen.begin(phase, first=phase is PHASES[0])
            while (left := count * LINE_SECONDS - self._load.seconds) > 0:
                await asyncio.sleep(min(left, 0.5))
                if is_on(await asyncio.to_thread(self._ask)) is not on:
                    on = not on
                    self._screen.switched(on)
            pool = next((one for one in self._fleet.get("pools", ()) if one["name"] == POOL), {})
            self._screen.line(self._load.seconds, self._load.window(), pool, on=on)

    async def _ready(self) -> None:
        """Wait until all that was started answers."""
        silent = self._site.probes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while True:
                    silent = [url for url in silent if await asyncio.to_thread(get, url) is None]
                    if not silent:
                        return
                    await asyncio.sleep(0.05)
        raise DemoError(f"no answer from {silent[0]} within {START_SECONDS:.0f} s; see the logs in {FOLDER}")

    def _ask(self) -> dict[str, Any]:
        """What the daemon says of the fleet; what it said last where it says nothing."""
        answer = get(f"{self._site.api}/api/v1/fleet")
        if answer:
            self._fleet = json.loads(answer)
        return self._fleet


def get(url: str) -> bytes | None:
    """The body at a URL of ours; None while there is none."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:  # noqa: S310 - ours, and http
            return bytes(answer.read())
    except (urllib.error.URLError, OSError):
        return None


async def _run(screen: Screen) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    await Demo(screen).run(stop)


@click.command()
@click.argument("control", type=click.Choice(["on", "off"]), required=False)
def main(control: str | None) -> None:
    """Run the demo; with CONTROL, switch control on or off in the one that runs in this folder."""
    screen = Screen()
    try:
        if control is not None:
            switch(control == "on")
            return
        with only_one_here():
            asyncio.run(_run(screen))
    except DemoError as error:
        screen.say(f"demo: {error}", "red")
        sys.exit(1)
    screen.say("\nstopped: nothing of it runs any more")


if __name__ == "__main__":
    main()
