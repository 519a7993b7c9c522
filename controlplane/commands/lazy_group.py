"""A group of commands that are listed without being loaded: a command costs what it needs itself."""

from importlib import import_module
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is, as `module:function` under `controlplane.commands`, and its summary."""

    place: str
    summary: str


class LazyGroup(click.Group):
    """Loads the command that is called, and only that one."""

    def __init__(self, *args: Any, lazy: dict[str, Lazy], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, function = self._lazy[cmd_name].place.partition(":")
        command: click.Command = getattr(import_module(f"controlplane.commands.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy.items()])
