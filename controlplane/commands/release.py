"""`controlplane release`: ends what `controlplane hold` began."""

from pathlib import Path

import click

from controlplane.commands.config_argument import config_argument, hold_path
from controlplane.daemon.orders import end_hold


@click.command()
@config_argument
def release(path: Path | None) -> None:
    """End the hold.

    CONFIG says where the hold file is; the default is controlplane.yaml here, and without that var/hold.
    """
    where = hold_path(path)
    try:
        ended = end_hold(where)
    except OSError as error:
        raise click.ClickException(f"the hold file {where} cannot be removed: {error.strerror}") from None
    click.echo(f"released: {where} is gone" if ended else f"there was no hold: {where} does not exist")
