"""`controlplane run`: the daemon and its API in one process."""

import asyncio
import contextlib
import logging
import resource
import signal
from pathlib import Path

import click
import uvloop

from controlplane import __version__
from controlplane.api.server import ApiServer, ApiStartError
from controlplane.api.settings import TokenError
from controlplane.commands.config_argument import config_argument, load_or_fail
from controlplane.config import DEFAULT_PATH, Config, ConfigError, load, without_file
from controlplane.daemon import log
from controlplane.daemon.clock import Clock
from controlplane.daemon.daemon import Daemon, Running
from controlplane.daemon.inputs import FleetInputs, outcomes_until
from controlplane.daemon.journal import Journal
from controlplane.daemon.journal_file import JournalError
from controlplane.daemon.orders import OrderBook, OrdersError
from controlplane.explain import off_edge
from controlplane.policy.memory import Memory
from controlplane.policy.tick import tick

_log = logging.getLogger(__name__)


@click.command()
@config_argument
@click.option(
    "--target", "targets", multiple=True, metavar="URL", help="An engine to watch, without any CONFIG."
)
@click.option("--listen", metavar="HOST:PORT", help="Where the API listens, with --target only.")
def run(path: Path | None, targets: tuple[str, ...], listen: str | None) -> None:
    """Watch the fleet that CONFIG describes, or the engines at --target (repeatable).

    The default CONFIG is controlplane.yaml here. SIGHUP reads it again, SIGTERM and SIGINT stop.
    """
    if path is not None and targets:
        raise click.UsageError(f"either CONFIG ({path}) or --target ({targets[0]}), not both")
    if path is None and not targets and not DEFAULT_PATH.exists():
        raise click.UsageError(
            f"nothing to watch: give --target URL or CONFIG (there is no {DEFAULT_PATH} here)"
        )
    if listen is not None and not targets:
        raise click.UsageError("--listen goes with --target; a CONFIG says it under api.listen")
    if targets:
        try:
            config = without_file(targets, listen)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
    else:
        config = load_or_fail(path)
    log.set_up()
    _raise_file_limit()
    try:
        uvloop.run(_Process(config).run())
    except (JournalError, OrdersError, ApiStartError, TokenError) as error:
        raise click.ClickException(str(error)) from None


class _Process:
    """The running process: what is put together from a configuration, and what signals do to it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stop = asyncio.Event()
        self._reloading = asyncio.Lock()

    async def run(self) -> None:
        """Run until a signal stops it."""
        config = self._config
        self._listen_to_signals()
        async with self._reloading:  # a reload that comes now waits until there is something to change
            book = OrderBook(config.daemon.hold_path, config.daemon.overrides_path)
            journal = Journal(config.daemon, tick)
            self._clock = Clock(after=journal.last_at)
            first = Running(config.policy, config.daemon, await self._inputs(config, journal.memory))
            self._daemon = Daemon(first, journal, book, clock=self._clock, tick=tick)
            api = ApiServer(self._daemon, config.api)
        try:
            await api.start()
            await self._daemon.start()
            _warn(config)
            _log.info("running", extra={"fields": {"version": __version__, "journal": config.daemon.journal}})
            await self._stop.wait()
        finally:
            await api.stop()
            await self._daemon.stop()
        _log.info("stopped")

    async def _inputs(self, config: Config, memory: Memory) -> FleetInputs:
        targets = {name: pool.targets for name, pool in config.pools.items() if pool.targets is not None}
        inputs = FleetInputs(
            targets,
            config.scrape,
            config.prometheus,
            config.gateways,
            outcomes_after=outcomes_until(memory, config.policy, self._clock.now()),
            now=self._clock.now,
        )
        await inputs.open()
        return inputs

    def _listen_to_signals(self) -> None:
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def reload() -> None:
            task = asyncio.create_task(self._reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        for stopping in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stopping, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, reload)

    async def _reload(self) -> None:
        """Read the configuration again; where it is bad, say so and go on with the old one."""
        async with self._reloading:
            old = self._config
            if old.path is None:
                _log.info("there is no configuration file to read again")
                return
            try:
                new = load(old.path)
                _refuse_what_is_fixed(old, new)
            except ConfigError as error:
                self._daemon.refuse("; ".join(error.sentences))
                return
            running = self._daemon.running
            inputs = running.inputs
            if _sources(new) != _sources(old):
                inputs = await self._inputs(new, self._daemon.memory)
            self._config = new
            await self._daemon.reconfigure(Running(new.policy, new.daemon, inputs))
            _warn(new)


def _refuse_what_is_fixed(old: Config, new: Config) -> None:
    """Raises ConfigError where something differs that only a new start can change."""
    fixed: dict[str, tuple[object, object]] = {
        **{
            f"api.{name}": (getattr(old.api, name), getattr(new.api, name))
            for name in type(new.api).model_fields
        },
        "daemon.journal": (old.daemon.journal, new.daemon.journal),
        "daemon.hold_file": (old.daemon.hold_path, new.daemon.hold_path),
    }
    changed = [
        f"{new.path}: {name} cannot change while the daemon runs (from {_text(before)} to {_text(after)}): "
        "restart it"
        for name, (before, after) in fixed.items()
        if before != after
    ]
    if changed:
        raise ConfigError(*changed)


def _text(value: object) -> str:
    return "nothing" if value is None else str(value)


def _sources(config: Config) -> object:
    """What the inputs are made from; where it stays the same, so do they."""
    targets = {name: pool.targets for name, pool in config.pools.items()}
    return targets, config.scrape, config.gateways, config.prometheus


def _warn(config: Config) -> None:
    for sentence in off_edge(config):
        _log.warning(sentence)


def _raise_file_limit() -> None:
    """A thousand engines are a thousand connections; the usual limit is there for old programs' sake."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
