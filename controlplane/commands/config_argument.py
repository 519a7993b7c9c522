"""The argument CONFIG, which most commands have, and what to do where it is not given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from controlplane.config import DEFAULT_PATH, Config, ConfigError, load
from controlplane.daemon.settings import DaemonSettings

F = TypeVar("F", bound=Callable[..., Any])


def config_argument(command: F) -> F:
    """Give a command the argument `path`, which is None where it is left out."""
    argument = click.argument("path", metavar="[CONFIG]", required=False, type=click.Path(path_type=Path))
    return argument(command)


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
