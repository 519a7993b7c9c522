"""`controlplane simulate serve`: simulated engines behind HTTP, in real time."""

import asyncio
import gc
import signal

import click
import msgspec
import uvloop

from controlplane.commands.file_limit import raise_file_limit
from controlplane.simulator.constants import engine_models
from controlplane.simulator.http.fleet import Fleet, FleetSettings, spec

Port = click.IntRange(1, 65535)
Count = click.IntRange(1)


@click.command()
@click.option(
    "--engine",
    required=True,
    type=click.Choice(sorted(engine_models())),
    help="Model and GPUs whose step times are simulated.",
)
@click.option("--port", default=8000, show_default=True, type=Port, help="Port of the first replica.")
@click.option("--replicas", default=1, show_default=True, type=Count, help="How many, on consecutive ports.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--speed", default=1.0, show_default=True, help="2 makes engines that are twice as fast.")
@click.option("--model", help="Served model name.  [default: the engine's]")
@click.option("--max-model-len", type=Count, help="Longest prompt and answer, in tokens.")
@click.option("--kv-tokens", type=Count, help="Tokens that the KV cache holds.")
@click.option("--max-num-seqs", type=Count, help="Most sequences in a step.")
@click.option("--dcgm-port", type=Port, help="Also serve the DCGM exporter's page of all GPUs here.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Of texts and lengths of the answers.",
)
def serve(replicas: int, port: int, **options: object) -> None:
    """Serve simulated engines that look like vLLM to every client, until SIGTERM or Ctrl-C.

    Completions, chats, tokens, models, health and metrics are vLLM's; /dcgm/metrics is what a DCGM exporter
    says of the replica's GPUs. POST to /sim/faults, from this machine, breaks a replica on purpose: JSON with
    wedged, warming_up, slow_factor, thermal_factor, gauges_frozen, scrape (good, nan, cut, error),
    scrape_delay_seconds, health (good, error), health_delay_seconds, xid ({"GPU": code}), drop_connections,
    restart_seconds. GET /sim says what is broken.
    """
    settings = msgspec.convert({"replicas": replicas, "port": port, **options}, FleetSettings)
    try:
        if port + replicas > 65536:
            raise ValueError(f"{replicas} replicas from port {port} on are more than there are ports")
        spec(settings)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    raise_file_limit()
    try:
        uvloop.run(_serve(settings))
    except OSError as error:
        # asyncio names the address in the text, where there is one.
        raise click.ClickException(error.strerror or str(error)) from None


async def _serve(settings: FleetSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Fleet(settings) as fleet:
        gc.freeze()  # what is there now stays; the collector need not look at it while tokens are due
        options = fleet.spec.settings
        click.echo(
            f"{fleet.spec.model}: {options.max_num_seqs} sequences, {options.kv_tokens} tokens of KV cache, "
            f"max_model_len {options.max_model_len}"
        )
        for url in fleet.urls:
            click.echo(f"serving at {url}")
        await stop.wait()
