"""`controlplane plan pools`: what a short and a long pool would save over one, from a trace."""

import json
from pathlib import Path

import click
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from controlplane.planner.pools import (
    Filling,
    PoolNeed,
    PoolPlan,
    Site,
    Traffic,
    TrafficError,
    best_plan,
    context_of,
    plan_at,
    traffic,
)
from controlplane.planner.pools_verdict import verdict
from controlplane.signals.units import seconds
from controlplane.simulator.constants import EngineModel, engine_model, engine_models
from controlplane.simulator.trace import read_trace


class _Seconds(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            found = value if isinstance(value, float) else seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found <= 0:
            self.fail(f"must be over 0 (got {value})", param, ctx)
        return found


@click.command()
@click.option(
    "--trace",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="CSV with the header t_s,input_tokens,output_tokens.",
)
@click.option(
    "--engine",
    default="h100-8b",
    show_default=True,
    metavar="NAME",
    help=f"Whose constants: {', '.join(engine_models())}.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Requests a second. [default: the trace's own]",
)
@click.option("--ttft", type=_Seconds(), default="2.5s", show_default=True, help="Objective: first token.")
@click.option("--tpot", type=_Seconds(), default="50ms", show_default=True, help="Objective: each after it.")
@click.option(
    "--context",
    type=click.IntRange(256, 1 << 24),
    help="Longest sequence of the one and of the long pool. [default: the trace's, to a power of two]",
)
@click.option(
    "--boundary", type=click.IntRange(1), help="Tokens of the longest short sequence. [default: the best]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def pools(
    trace: Path,
    *,
    engine: str,
    rate: float | None,
    ttft: float,
    tpot: float,
    context: int | None,
    boundary: int | None,
    as_json: bool,
) -> None:
    """Show what a short and a long pool would save over one, from a trace of real requests.

    Requests are parted by prompt and likely output. Two ways to fill an engine are compared: slots by
    context (as many as sequences of the longest context fit) and reserved by size (as the gateway does it).
    """
    try:
        load = traffic(read_trace(trace), rate)
        site = _site(engine_model(engine), load, ttft, tpot, context)
        plans = {filling: _plan(site, load, filling, boundary) for filling in Filling}
    except TrafficError as error:
        raise click.ClickException(f"{trace}: {error}") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{trace}: cannot be read: {error.strerror}") from None
    said = verdict(site, load, plans[Filling.BY_CONTEXT], plans[Filling.BY_SIZE])
    if as_json:
        click.echo(json.dumps(_fields(trace, site, load, plans, said), indent=2))
    else:
        Console(highlight=False, soft_wrap=True).print(_picture(trace, site, load, plans, said))


def _site(engine: EngineModel, load: Traffic, ttft: float, tpot: float, context: int | None) -> Site:
    longest = load.longest_tokens
    if context is None:
        context = context_of(longest)
    elif context < longest:
        raise ValueError(f"the trace has a sequence of {longest:,} tokens, over --context {context:,}")
    if context > engine.settings.kv_tokens:
        raise ValueError(
            f"one sequence of {context:,} tokens does not fit the KV cache of {engine.title}, "
            f"which holds {engine.settings.kv_tokens:,}"
        )
    return Site(engine, ttft, tpot, context)


def _plan(site: Site, load: Traffic, filling: Filling, boundary: int | None) -> PoolPlan | None:
    if boundary is None:
        return best_plan(site, load, filling)
    return plan_at(site, load, filling, boundary)


def _picture(
    trace: Path, site: Site, load: Traffic, plans: dict[Filling, PoolPlan | None], said: str
) -> Group:
    mix, engine = load.mix, site.engine
    head = (
        f"{trace.name}: {len(mix.prompt):,} requests, {load.rate:.4g} a second, in the mean "
        f"{mix.prompt.mean():,.0f} tokens in and {mix.output.mean():,.0f} out\n"
        f"{engine.title}: {engine.settings.kv_tokens:,} tokens of KV cache, context {site.context_tokens:,}; "
        f"TTFT {site.ttft_seconds:g} s, TPOT {site.tpot_seconds * 1e3:g} ms\n"
        "prefill: of the longest prompt of 100, without any queue\n"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("filled", "pool", "req/s", "context", "slots", "full at", "bound by", "prefill", "engines"):
        table.add_column(name, justify="left" if name in ("filled", "pool", "bound by") else "right")
    for filling, plan in plans.items():
        if plan is None:
            table.add_row(filling.value, "no boundary parts the requests")
            continue
        table.add_row(filling.value, "one", *_cells(plan.one))
        table.add_row("", "short", *_cells(plan.short))
        table.add_row("", "long", *_cells(plan.long))
        change = f"{round(-100 * plan.saved_ratio):+d}%"
        table.add_row("", "two", "", "", "", "", "", change, f"{plan.engines:,}", style="bold")
    return Group(Text(head), table, Text(f"\n{said}"))


def _cells(pool: PoolNeed) -> tuple[str, ...]:
    return (
        f"{pool.requests_per_second:.4g}",
        f"{pool.context_tokens:,}",
        f"{pool.slots:,}",
        f"{pool.sequences:.0f}",
        pool.bound.value,
        f"{pool.p99_prefill_seconds:.2f} s",
        f"{pool.engines:,}",
    )


def _fields(
    trace: Path, site: Site, load: Traffic, plans: dict[Filling, PoolPlan | None], said: str
) -> dict[str, object]:
    return {
        "trace": str(trace),
        "requests": len(load.mix.prompt),
        "requests_per_second": load.rate,
        "engine": site.engine.title,
        "context_tokens": site.context_tokens,
        "ttft_seconds": site.ttft_seconds,
        "tpot_seconds": site.tpot_seconds,
        "plans": {
            filling.value.replace(" ", "_"): None if plan is None else _plan_fields(plan)
            for filling, plan in plans.items()
        },
        "conclusion": said,
    }


def _plan_fields(plan: PoolPlan) -> dict[str, object]:
    return {
        "boundary_tokens": plan.boundary_tokens,
        "short_ratio": plan.short_ratio,
        "cut_ratio": plan.cut_ratio,
        "engines": plan.engines,
        "saved_ratio": plan.saved_ratio,
        "saved_ratio_of_many": plan.saved_ratio_of_many,
        **{name: _pool_fields(getattr(plan, name)) for name in ("one", "short", "long")},
    }


def _pool_fields(pool: PoolNeed) -> dict[str, object]:
    return {name: getattr(pool, name) for name in pool.__struct_fields__}
