"""`controlplane node-agent`: what one node knows about its GPUs."""

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

import click

from controlplane import __version__
from controlplane.config import DEFAULT_PATH, ConfigError, node_agent_settings
from controlplane.daemon import log
from controlplane.server_certificate import ServerCertificate
from controlplane.sources.gpu_settings import NodeAgentSettings
from controlplane.sources.secrets import SecretError

_log = logging.getLogger(__name__)


@click.command()
@click.option(
    "-c", "--config", "path", type=click.Path(path_type=Path), help="Its section `node_agent` counts."
)
@click.option("--node", metavar="NAME", help="The node's name, in place of the configured one.")
@click.option("--listen", metavar="HOST:PORT", help="Where to answer, in place of the configured address.")
def node_agent(path: Path | None, node: str | None, listen: str | None) -> None:
    """Read this node's GPUs through NVML, and answer for them: reports for the daemon, metrics for
    Prometheus.

    NVML is called in a child process: while the driver hangs this one answers that it cannot see, since when.
    """
    try:
        settings = node_agent_settings(path or (DEFAULT_PATH if DEFAULT_PATH.exists() else None))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    host, port = _address(listen or settings.listen)
    token = _token(settings, host)
    certificate = _certificate(settings)
    if _library_is_missing():
        raise click.ClickException("node-agent needs the package of the extra `nvml` (nvidia-ml-py)")
    name = node or settings.node or os.environ.get("NODE_NAME") or socket.gethostname()
    log.set_up()
    sys.exit(asyncio.run(_serve(settings, name, (host, port), token, certificate)))


async def _serve(
    settings: NodeAgentSettings,
    name: str,
    address: tuple[str, int],
    token: str | None,
    certificate: ServerCertificate | None,
) -> int:
    from controlplane.agent.server import application, start  # noqa: PLC0415 (aiohttp.web is for this alone)
    from controlplane.agent.watch import Watch  # noqa: PLC0415

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    watch = Watch(name, settings.interval, settings.deadline)
    try:
        context = None if certificate is None else certificate.context
        runner, port = await start(application(watch, token, time.time), *address, context)
    except OSError as error:
        _log.error(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}")
        return os.EX_CONFIG
    has_tls = certificate is not None
    fields = {"version": __version__, "node": name, "listen": f"{address[0]}:{port}", "tls": has_tls}
    _log.info("serving", extra={"fields": fields})
    tasks = [asyncio.create_task(watch.run())]
    if certificate is not None:
        tasks.append(asyncio.create_task(certificate.keep_renewing()))
    await stopped.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await runner.cleanup()
    _log.info("stopped")
    return os.EX_OK


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise click.ClickException(f"listen {listen!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _token(settings: NodeAgentSettings, host: str) -> str | None:
    """The token; one is needed where others than this machine can ask."""
    if settings.token is None:
        if not _is_loopback(host):
            raise click.ClickException(
                f"node_agent.token is needed: {host} can be reached from other machines, and what the agent "
                "says is for the daemon"
            )
        return None
    try:
        return settings.token.read()
    except SecretError as error:
        raise click.ClickException(f"node_agent.token: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _certificate(settings: NodeAgentSettings) -> ServerCertificate | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        return ServerCertificate(context, settings.tls_cert_file, settings.tls_key_file)
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"{settings.tls_cert_file}: no certificate with its key ({error})"
        ) from None


def _library_is_missing() -> bool:
    try:
        import pynvml  # noqa: F401, PLC0415 (an extra)
    except ImportError:
        return True
    return False
