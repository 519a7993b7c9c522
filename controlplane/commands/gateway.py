"""`controlplane gateway`: the data plane, in one process or several."""

import asyncio
import logging
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

import click
import uvloop

from controlplane import __version__
from controlplane.commands.config_argument import load_or_fail
from controlplane.commands.file_limit import raise_file_limit
from controlplane.config import Config, ConfigError, load
from controlplane.daemon import log
from controlplane.gateway.admission.prompt_size import Tokenizer
from controlplane.gateway.admission.settings import ClassSettings, PoolObjectives
from controlplane.gateway.settings import GatewayProcessSettings, host_and_port
from controlplane.gateway.worker import Setup, StartError, Worker, files_needed
from controlplane.gateway.workers import spare_collector, watch_over
from controlplane.policy.settings import Slo

_log = logging.getLogger(__name__)


@click.command()
@click.option(
    "-c", "--config", "path", type=click.Path(path_type=Path), help="Default: controlplane.yaml here."
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes.")
def gateway(path: Path | None, workers: int) -> None:
    """Stand in front of the engines of CONFIG's pools: admit, route, pass streams on.

    It observes until `gateway.admission.mode: enforce`. SIGHUP reads the tenants' keys again, SIGTERM and
    SIGINT stop it in order.
    """
    config = load_or_fail(path)
    _refuse_what_cannot_be(config, workers)
    log.set_up()
    raise_file_limit()
    _warn(config, workers)
    tokenizers = _tokenizers(config)
    if workers == 1:
        uvloop.run(_serve(config, _setup(config, tokenizers, 0, 1, None)))
        return
    with tempfile.TemporaryDirectory(prefix="controlplane-gateway-") as folder:

        def run(index: int, watched: int) -> None:
            uvloop.run(_serve(config, _setup(config, tokenizers, index, workers, Path(folder)), watched))

        sys.exit(watch_over(workers, run))


async def _serve(config: Config, setup: Setup, watched: int | None = None) -> None:
    """Run until a signal stops it, or until `watched` can be read."""
    spare_collector()
    loop = asyncio.get_running_loop()
    worker = Worker(setup)
    try:
        await worker.start()
    except StartError as error:
        await worker.close()
        _log.error(str(error))
        sys.exit(os.EX_CONFIG)

    def reload() -> None:
        try:
            if config.path is not None:
                worker.replace_tenants(load(config.path).gateway.tenants)
                _log.info("the tenants' keys were read again")
        except ConfigError as error:
            _log.error("the configuration stays as it was", extra={"fields": {"why": str(error)}})

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    if watched is not None:

        def orphaned() -> None:
            loop.remove_reader(watched)
            _log.warning("the process that watches over the workers is gone")
            worker.stop()

        loop.add_reader(watched, orphaned)
    (host, port), control = worker.addresses
    fields = {
        "version": __version__,
        "gateway": worker.name,
        "listen": f"{host}:{port}",
        "control": f"{control[0]}:{control[1]}",
        "mode": setup.settings.admission.mode.value,
    }
    _log.info("serving", extra={"fields": fields})
    await worker.is_stopped.wait()
    _log.info("stopped")


def _setup(
    config: Config, tokenizers: dict[str, Tokenizer], worker: int, workers: int, folder: Path | None
) -> Setup:
    pools = {name: pool.targets for name, pool in config.pools.items() if pool.targets is not None}
    settings = _with_objectives(config)
    return Setup(
        settings,
        pools,
        config.scrape,
        tokenizers,
        worker,
        workers,
        folder,
        config.policy,
        config.kubernetes,
    )


def _with_objectives(config: Config) -> GatewayProcessSettings:
    """The gateway's settings: what a pool's `slo` says is what its interactive requests expect, unless
    `gateway.admission.objectives` says otherwise."""
    objectives = dict(config.gateway.admission.objectives)
    for name, pool in config.pools.items():
        own = objectives.get(name, PoolObjectives())
        if own.interactive is None and pool.slo != Slo():
            interactive = ClassSettings.model_construct(ttft=pool.slo.ttft, tpot=pool.slo.tpot)
            objectives[name] = own.model_copy(update={"interactive": interactive})
    admission = config.gateway.admission.model_copy(update={"objectives": objectives})
    return config.gateway.model_copy(update={"admission": admission})


def _tokenizers(config: Config) -> dict[str, Tokenizer]:
    if not config.gateway.tokenizers:
        return {}
    try:
        from controlplane.gateway.tokenizer import ModelTokenizer, TokenizerError  # noqa: PLC0415 (an extra)
    except ImportError:
        raise click.ClickException("gateway.tokenizers needs the packages of the extra `tokenizer`") from None
    try:
        return {model: ModelTokenizer.load(path) for model, path in config.gateway.tokenizers.items()}
    except TokenizerError as error:
        raise click.ClickException(str(error)) from None


def _refuse_what_cannot_be(config: Config, workers: int) -> None:
    if workers == 1:
        return
    for name, address in (
        ("listen", config.gateway.listen),
        ("control.listen", config.gateway.control.listen),
    ):
        if host_and_port(address)[1] == 0:
            text = (
                f"gateway.{name} ({address}): {workers} workers need a port that is given, not any free one"
            )
            raise click.ClickException(text)


def _warn(config: Config, workers: int) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    streams = -(-config.gateway.most_streams // workers)
    needed = files_needed(streams)
    if limit < needed:
        _log.warning(
            f"a process may have {limit} files open, but {streams} streams need {needed}: raise the limit "
            "(ulimit -n, LimitNOFILE)"
        )
    for sentence in config.gateway.doubts:
        _log.warning(sentence)
