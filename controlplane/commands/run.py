"""`controlplane run`: the daemon and its API in one process."""

import asyncio
import contextlib
import logging
import resource
import secrets
import signal
import socket
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
import uvloop

from controlplane import __version__
from controlplane.actuators.gateway import GatewayActuator
from controlplane.agent.watch import Watch
from controlplane.api.server import ApiServer, ApiStartError
from controlplane.api.settings import TokenError
from controlplane.commands.actuators import InCluster, actuators, gateway_links, in_cluster
from controlplane.commands.config_argument import config_argument, load_or_fail
from controlplane.config import DEFAULT_PATH, Config, ConfigError, load, without_file
from controlplane.daemon import log
from controlplane.daemon.clock import Clock
from controlplane.daemon.daemon import Daemon, Running
from controlplane.daemon.handover import Handover
from controlplane.daemon.inputs import FleetInputs, outcomes_until
from controlplane.daemon.journal import Journal
from controlplane.daemon.journal_file import JournalError
from controlplane.daemon.leader import Alone, ByLease, Leader
from controlplane.daemon.orders import OrderBook, OrdersError
from controlplane.explain import off_edge
from controlplane.policy.memory import Memory
from controlplane.policy.shares import Shares
from controlplane.policy.tick import tick
from controlplane.signals.decision import Mode
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.sources.fetch import Client
from controlplane.sources.gpu_settings import NodeAgentSettings
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_fleet import Cluster

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
        try:
            _refuse_what_is_missing(config)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
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
        self._kubernetes: KubernetesApi | None = None

    async def run(self) -> None:
        """Run until a signal stops it."""
        config = self._config
        self._listen_to_signals()
        async with self._reloading:  # a reload that comes now waits until there is something to change
            book = OrderBook(config.daemon.hold_path, config.daemon.overrides_path)
            journal = Journal(config.daemon, tick)
            self._clock = Clock(after=journal.last_at)
            if config.kubernetes is not None:
                self._kubernetes = KubernetesApi(config.kubernetes)
            first = Running(config.policy, config.daemon, await self._inputs(config, journal.memory))
            client = Client()  # of the actuators
            now = self._clock.now()
            self._leader = self._leader_of(config, journal)
            self._handover = Handover(self._leader, book)
            self._links = partial(gateway_links, client=client, seconds_left=self._leader.seconds_left)
            term = self._leader.term
            self._gateways = GatewayActuator(
                self._links(config.gateways),
                None if term is None else Shares(term=term, now=now),
                term,
                now=self._clock.now,
            )
            in_cluster = self._in_cluster(config)
            self._daemon = Daemon(
                first,
                journal,
                book,
                clock=self._clock,
                tick=tick,
                actuators=(
                    *actuators(config, client, self._snapshot, self._leader.seconds_left),
                    *(() if in_cluster is None else in_cluster.actuators),
                ),
                gateways=self._gateways,
                leader=self._leader,
                upkeep=None if in_cluster is None else in_cluster.upkeep,
                handover=self._handover,
            )
            api = ApiServer(self._daemon, config.api)
        async with client:
            await self._serve(api, config)
        _log.info("stopped")

    async def _serve(self, api: ApiServer, config: Config) -> None:
        try:
            await api.start()
            await self._daemon.start()
            _warn(config)
            fields = {"version": __version__, "journal": config.daemon.journal, "term": self._leader.term}
            _log.info("running", extra={"fields": fields})
            await self._stop.wait()
        finally:
            await api.stop()
            await self._daemon.stop()
            if self._kubernetes is not None:
                await self._kubernetes.close()

    async def _inputs(self, config: Config, memory: Memory) -> FleetInputs:
        targets = {name: pool.targets for name, pool in config.pools.items() if pool.targets is not None}
        # Where nothing is acted on, no engine is given work either.
        acts_on = {
            name
            for name in config.pools
            if Mode.ENFORCE in (config.daemon.mode("gateway", name), config.daemon.mode("pod", name))
        }
        inputs = FleetInputs(
            targets,
            config.scrape,
            config.prometheus,
            config.gateways,
            outcomes_after=outcomes_until(memory, config.policy, self._clock.now()),
            now=self._clock.now,
            gpus=config.gpus,
            local_gpus=partial(_local_gpus, config.node_agent),
            cluster=self._cluster(config),
            known=[replica.target for replica in memory.replicas.values()],
            placed=memory.quarantine.placements,
            trial_pools=acts_on,
        )
        await inputs.open()
        return inputs

    def _leader_of(self, config: Config, journal: Journal) -> Leader:
        """By a lease where there is a cluster, else this daemon has no other beside it."""
        lease = None if config.kubernetes is None else config.kubernetes.lease
        if lease is None:
            return Alone(journal.lead(self._clock.now()))
        assert self._kubernetes is not None
        leader = ByLease(self._kubernetes, lease, f"{socket.gethostname()}/{secrets.token_hex(4)}")
        leader.open()
        return leader

    def _cluster(self, config: Config) -> Cluster | None:
        settings = config.kubernetes
        if settings is None:
            return None
        assert self._kubernetes is not None
        targets = {name: pool.targets for name, pool in config.pools.items() if pool.targets is not None}
        return Cluster(
            self._kubernetes,
            targets,
            config.scrape,
            gpus=config.gpus,
            nodes=settings.nodes,
            rack_label=settings.rack_label,
        )

    def _in_cluster(self, config: Config) -> InCluster | None:
        if self._kubernetes is None:
            return None
        return in_cluster(
            config,
            self._kubernetes,
            self._snapshot,
            self._leader,
            self._gateways,
            handover=self._handover,
            now=self._clock.now,
        )

    def _snapshot(self) -> FleetSnapshot | None:
        return self._daemon.snapshot()

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
                _refuse_what_is_missing(new)
                _refuse_what_is_fixed(old, new)
            except ConfigError as error:
                self._daemon.refuse("; ".join(error.sentences))
                return
            running = self._daemon.running
            inputs = running.inputs
            if _sources(new) != _sources(old):
                inputs = await self._inputs(new, self._daemon.memory)
            if new.gateways != old.gateways:
                self._gateways.set_links(self._links(new.gateways))
            self._config = new
            await self._daemon.reconfigure(Running(new.policy, new.daemon, inputs))
            _warn(new)


def _local_gpus(settings: NodeAgentSettings, node: str) -> Watch:
    return Watch(node, settings.interval, settings.deadline)


def _refuse_what_is_missing(config: Config) -> None:
    """Raises ConfigError where the configuration needs a package that is not installed."""
    local = next((name for name, node in config.gpus.nodes.items() if node.local), None)
    if local is not None and find_spec("pynvml") is None:
        raise ConfigError(f"{config.path}: gpus.nodes.{local}.local needs the extra `nvml` (nvidia-ml-py)")


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
    changed += [
        f"{new.path}: the section {name} cannot change while the daemon runs: restart it"
        for name in ("envoy", "webhook", "kubernetes", "scale", "objects")
        if getattr(old, name) != getattr(new, name)
    ]
    if changed:
        raise ConfigError(*changed)


def _text(value: object) -> str:
    return "nothing" if value is None else str(value)


def _sources(config: Config) -> object:
    """What the inputs are made from; where it stays the same, so do they."""
    targets = {name: pool.targets for name, pool in config.pools.items()}
    return targets, config.scrape, config.gateways, config.prometheus, config.gpus, config.node_agent


def _warn(config: Config) -> None:
    for sentence in off_edge(config):
        _log.warning(sentence)


def _raise_file_limit() -> None:
    """A thousand engines are a thousand connections; the usual limit is there for old programs' sake."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
