"""Whether decisions are acted on, at a glance: for a pool and for the fleet."""

from rich.text import Text

from controlplane.api.shapes import Fleet, Pool
from controlplane.signals.decision import Standing

STYLES = {None: "dim", Standing.OBSERVE: "dim", Standing.HELD: "cyan", Standing.ENFORCE: "bold"}


def pool_standing(pool: Pool) -> Standing | None:
    """The most that any actuator may do in it; None where nobody acts on it."""
    order = (Standing.ENFORCE, Standing.HELD, Standing.OBSERVE)
    return next((one for one in order if one in pool.standings.values()), None)


def fleet_standing(fleet: Fleet) -> Text:
    """`observe`, `enforce`, `held`; where pools differ, how many are enforced: `enforce in 1/2 pools`.

    `hold` where people have frozen all of it, `follows` where another daemon acts.
    """
    if fleet.orders.hold is not None:
        return Text("hold", style="black on yellow")
    if not fleet.leads:
        return Text("follows", style="dim")
    pools = [pool_standing(pool) for pool in fleet.pools]
    if enforced := pools.count(Standing.ENFORCE):
        where = "" if enforced == len(pools) else f" in {enforced}/{len(pools)} pools"
        return Text(f"enforce{where}", style="bold green")
    is_held = Standing.HELD in pools
    return Text("held" if is_held else "observe", style="cyan" if is_held else "bold yellow")
