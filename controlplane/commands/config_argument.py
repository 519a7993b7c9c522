"""The argument CONFIG (or `--config`), which most commands have, and what to do where it is not given."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from controlplane.config import DEFAULT_PATH, Config, ConfigError, load
from controlplane.daemon.settings import DaemonSettings


def config_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameter `path`: the argument CONFIG or the option `-c`, else None."""

    @functools.wraps(command)
    def with_path(path: Path | None, config: Path | None, **others: Any) -> None:
        if path is not None and config is not None:
            raise click.UsageError(f"either CONFIG ({path}) or --config ({config}), not both")
        command(path=path or config, **others)

    file = click.Path(path_type=Path)
    option = click.option("-c", "--config", metavar="FILE", type=file, help="The same as CONFIG.")
    argument = click.argument("path", metavar="[CONFIG]", required=False, type=file)
    return argument(option(with_path))


def load_or_fail(path: Path | None) -> Config:
    """The configuration at `path`, else in `controlplane.yaml` here. Ends the command where it is bad."""
    try:
        return load(path or DEFAULT_PATH)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def hold_path(path: Path | None) -> Path:
    """The hold file of that configuration; without any, where `controlplane run --target` has it."""
    if path is None and not DEFAULT_PATH.exists():
        return DaemonSettings().hold_path
    return load_or_fail(path).daemon.hold_path
