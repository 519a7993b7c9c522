"""`controlplane hold`: works through the hold file, so also while the daemon is down or hangs."""

import getpass
import os
from pathlib import Path

import click

from controlplane.commands.config_argument import config_argument, hold_path
from controlplane.daemon.orders import write_hold


@click.command()
@config_argument
@click.option("--reason", default="", help="Why, for everybody who looks.")
def hold(path: Path | None, reason: str) -> None:
    """Freeze every actuator, within a tick and until `controlplane release`.

    CONFIG says where the hold file is; the default is controlplane.yaml here, and without that var/hold.
    """
    where = hold_path(path)
    try:
        write_hold(where, _user(), reason)
    except OSError as error:
        raise click.ClickException(f"the hold file {where} cannot be written: {error.strerror}") from None
    click.echo(f"hold: nothing is acted on while {where} exists")


def _user() -> str:
    """Who orders it: also behind sudo the person, not root."""
    return os.environ.get("SUDO_USER") or getpass.getuser()
