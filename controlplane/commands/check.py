"""`controlplane check`: a configuration in words, or what is wrong with it."""

from pathlib import Path

import click

from controlplane.api.settings import TokenError
from controlplane.commands.config_argument import config_argument, load_or_fail
from controlplane.daemon.journal import look
from controlplane.daemon.journal_file import JournalError
from controlplane.daemon.orders import OrderBook, OrdersError
from controlplane.explain import explanation, off_edge
from controlplane.policy.tick import tick


@click.command()
@config_argument
def check(path: Path | None) -> None:
    """Say in words what CONFIG would control, or why it cannot be used.

    The default CONFIG is controlplane.yaml here. Nothing is started, asked or written. Exit code 1, and
    a line a problem, where `run` would refuse.
    """
    config = load_or_fail(path)
    try:
        config.api.token()
        config.api.autoscaling_token()
        OrderBook(config.daemon.hold_path, config.daemon.overrides_path)
        damage = look(config.daemon.journal, tick) if config.daemon.journal.exists() else ""
    except (TokenError, OrdersError, JournalError) as error:
        raise click.ClickException(str(error)) from None
    for line in explanation(config):
        click.echo(line)
    for sentence in (*off_edge(config), *config.gateway.doubts, *([damage] if damage else ())):
        click.echo(f"warning: {sentence}")
    click.echo(f"{config.path}: good")
