"""`controlplane simulate`: engines that are not there, in real time or in a scenario's own time."""

import click

from controlplane.commands.lazy_group import Lazy, LazyGroup

_COMMANDS = {
    "run": Lazy("simulate_run:run", "Run a scenario, and say what became of its requests."),
    "list": Lazy("simulate_run:list_", "List the built-in scenarios."),
    "sweep": Lazy("simulate_run:sweep", "Find the best fixed limit for a scenario."),
    "serve": Lazy("simulate_serve:serve", "Serve engines that look like vLLM to every client."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def simulate() -> None:
    """Try things on simulated vLLM engines."""
