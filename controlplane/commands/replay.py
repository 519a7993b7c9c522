"""`controlplane replay`: does a journal still lead to what it says was decided?"""

import sys
from pathlib import Path

import click
import msgspec

from controlplane.daemon.journal_file import JournalError
from controlplane.daemon.replay import Replayed
from controlplane.daemon.replay import replay as run_again
from controlplane.policy.tick import tick


@click.command()
@click.argument("journal", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def replay(journal: Path, as_json: bool) -> None:
    """Run JOURNAL through policy again and compare decisions, events and checkpoints with the recorded ones.

    The journal is only read and may be in use. Exit code 1 on any difference.
    """
    try:
        found = run_again(journal, tick)
    except JournalError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo("\n".join(_words(found)))
    sys.exit(1 if found.different else 0)


def _words(found: Replayed) -> list[str]:
    by = ", ".join(found.recorded_by) or "nobody"
    lines = [
        f"{found.journal}: recorded by controlplane {by}, replayed by {found.program}",
        f"segments     {found.segments:>9}   of them after a gap {found.gaps}",
        f"ticks        {found.ticks:>9}",
        f"checkpoints  {found.checkpoints:>9}",
        f"decisions    {found.decisions:>9}",
        f"events       {found.events:>9}",
        f"compared     {found.same + found.different:>9}   same {found.same}, different {found.different}",
    ]
    if found.first_difference:
        lines.append(f"first difference: {found.first_difference}")
    return lines
