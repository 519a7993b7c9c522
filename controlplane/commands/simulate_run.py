"""`controlplane simulate run`, `list` and `sweep`: scenarios in virtual time."""

from importlib.util import find_spec
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from controlplane.simulator.scenario.model import LARGEST_SEED, Scenario
from controlplane.simulator.scenario.policies import POLICY_NAMES, policy_named
from controlplane.simulator.scenario.reading import built_in_names, load_scenario
from controlplane.simulator.scenario.result import Result, result_of, to_json
from controlplane.simulator.scenario.run import Run
from controlplane.simulator.scenario.sweep import Sweep, sweep_limit, sweep_rate
from controlplane.terminal.run_table import run_table, sweep_table
from controlplane.yaml_model import SettingsError

_POLICIES = ", ".join(POLICY_NAMES)
_SEEDS = click.IntRange(1, 100)
_TIMES = click.FloatRange(0.01, 1000)


@click.command()
@click.argument("scenario")
@click.option("--policy", metavar="P", help=f"Instead of the scenario's policy: {_POLICIES}.")
@click.option("--seed", type=click.IntRange(0, LARGEST_SEED), help="Instead of the scenario's seed.")
@click.option(
    "--load", "times", type=_TIMES, metavar="X", help="Instead of the scenario's factor on all rates."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON; the same run, the same bytes."
)
@click.option(
    "--chart", type=click.Path(dir_okay=False, path_type=Path), help="Draw the run into a PNG file."
)
def run(
    scenario: str,
    *,
    policy: str | None,
    seed: int | None,
    times: float | None,
    as_json: bool,
    chart: Path | None,
) -> None:
    """Run SCENARIO, a file or a built-in name (`simulate list`), and say what became of its requests.

    `controlplane simulate run steady-2x --policy none` shows a fleet collapse, the same without --policy how
    it is kept from it.
    """
    if chart is not None and find_spec("matplotlib") is None:
        raise click.ClickException("charts need matplotlib: pip install 'llm-controlplane[charts]'")
    if chart is not None and not chart.parent.is_dir():  # to be told before the run, not after it
        raise click.ClickException(f"{chart}: cannot be written: there is no directory {chart.parent}")
    given = _load(scenario)
    try:
        changed = given.changed(policy=policy_named(policy) if policy else None, seed=seed, times=times)
        changed.check_requests()
        going = Run(changed)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    going.go()
    result = result_of(going, _short(scenario))
    if chart is not None:
        _draw(going, result, given.title, chart)
    if as_json:
        click.echo(to_json(result), nl=False)
    else:
        Console(highlight=False).print(run_table(msgspec.to_builtins(result), given.title))


@click.command("list")
def list_() -> None:
    """List the built-in scenarios."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in built_in_names():
        table.add_row(name, _load(name).title)
    Console(highlight=False).print(table)


@click.command()
@click.argument("scenario")
@click.option("--rate", is_flag=True, help="Find the load at which goodput peaks without any control (1x).")
@click.option(
    "--load", "times", type=_TIMES, metavar="X", help="Instead of the scenario's factor on all rates."
)
@click.option("--seeds", default=3, show_default=True, type=_SEEDS, help="How many, from the scenario's on.")
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 256), help="Runs at once.")
@click.option("--whole", is_flag=True, help="Run every point of the grid, not only what can be the best.")
@click.option("--json", "as_json", is_flag=True, help="Print the sweep as JSON.")
def sweep(
    scenario: str, *, rate: bool, times: float | None, seeds: int, processes: int, whole: bool, as_json: bool
) -> None:
    """Find the best fixed limit for SCENARIO, the one with the most good tokens: the oracle.

    No law can know it beforehand; it is the yardstick for those that find limits by themselves. Limits from 2
    to max_num_seqs are tried in steps of at most 8 %, all on the same requests.
    """
    given = _load(scenario).changed(times=times)
    numbers = range(given.seed, given.seed + seeds)
    search = sweep_rate if rate else sweep_limit
    try:
        given.check_requests()
        found: Sweep = search(_short(scenario), given, numbers, processes, whole=whole)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        rates = _rates(given, found.best.value) if rate else {}
        Console(highlight=False).print(sweep_table(msgspec.to_builtins(found), rates))


def _short(scenario: str) -> str:
    """What a scenario is called: built-in names have dots of their own."""
    return Path(scenario).name.removesuffix(".yaml").removesuffix(".yml")


def _load(name: str) -> Scenario:
    try:
        return load_scenario(name)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


def _rates(scenario: Scenario, times: float) -> dict[str, str]:
    """The constant rates of a scenario at so many times what its file says."""
    return {
        f"rate of {source.name}": f"{source.rate * times:.4g} requests/s"
        for source in scenario.workload.sources
        if isinstance(source.rate, float)
    }


def _draw(going: Run, result: Result, title: str, path: Path) -> None:
    from controlplane.simulator.scenario.chart import draw_chart  # noqa: PLC0415 - matplotlib is optional

    try:
        draw_chart(going, result, title, path)
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from None
