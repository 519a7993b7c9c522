"""The command line. Each command lives in a module of its own, loaded when it is called."""

from importlib import import_module

import click

from controlplane import __version__

_COMMANDS = {
    "run": "Watch a fleet: poll, tick, journal, serve the API.",
    "check": "Say in words what a configuration would control, or what is wrong with it.",
    "gateway": "Stand in front of the engines: admit, route, pass streams on.",
    "inspect": "Show what is read from one metrics page.",
    "top": "Show pools and replicas live.",
    "replay": "Run a journal again and compare what was decided.",
    "hold": "Freeze every actuator, now and over restarts.",
    "release": "End the hold.",
    "simulate": "Try things on simulated vLLM engines.",
    "node-agent": "Answer for this node's GPUs, as NVML sees them.",
    "plan": "Work out on paper what a model needs and a replica holds.",
    "render": "Write dashboards, rules, alerts and runbooks.",
}
"""Name and summary of each command; its module is `controlplane.commands.NAME` and its function `NAME`, with
`_` for `-`."""


class _Commands(click.Group):
    """A group that lists its commands without loading them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"controlplane.commands.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="controlplane")
def cli() -> None:
    """Keeps a fleet of LLM engines at the top of its goodput curve."""


def main() -> None:
    """The entry point of the `controlplane` command."""
    cli()
