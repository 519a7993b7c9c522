"""Recording rules over the product's own metrics: goodput over many windows, by pool.

A gateway counts each request, so its counters come first. Where a pool has no gateway, the daemon's windows
count: it tells good and judged requests of a sliding window, and their means over a longer time have the same
ratio as the requests themselves. Only the leader exports them; `max` keeps a hand-over from counting twice.
"""

from typing import NamedTuple

from controlplane.render.rule import POOL, Group, Recording, by
from controlplane.signals.samples import TENANT_REASONS

BY_POOL = ("cluster", "pool")
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""All fit into a retention of 15 days, Prometheus' default."""

SHED = f'reason!~"{TENANT_REASONS}.*"'
"""Refusals that count."""

UNLIMITED = "1e6"
"""A gateway without a limit says a million sequences: that is no limit, and no line in a graph."""

_SECONDS = {"m": 60, "h": 3600, "d": 86400}


def seconds(window: str) -> int:
    return int(window[:-1]) * _SECONDS[window[-1]]


def groups() -> tuple[Group, ...]:
    return (
        Group("llm-goodput", (*_now(), *(rule for window in WINDOWS for rule in _goodput(window)))),
        Group("llm-pools", (*_pools(), *_burn_thresholds())),
    )


def _now() -> tuple[Recording, ...]:
    return (
        Recording(
            "llm:pool_objective_ratio",
            f"max {by(*BY_POOL)} (last_over_time(controlplane_pool_objective_ratio[1d]))",
            "Share of requests that should be good; kept for a day while the daemon is away",
            "ratio",
            BY_POOL,
        ),
        Recording(
            "llm:pool_goodput_ratio",
            f"max {by(*BY_POOL, 'bound')} (controlplane_pool_goodput_ratio)",
            "Share of judged requests that were good, over the daemon's window: proven bounds and a point",
            "ratio",
            (*BY_POOL, "bound"),
        ),
    )


def _goodput(window: str) -> tuple[Recording, ...]:
    """Requests that count, and the share of them that was bad, over one window."""
    counted = f"llm:pool_judged_requests:increase{window}"
    bad = f"llm:pool_bad_ratio:{window}"

    def grown(name: str) -> str:
        matchers = f"{{{SHED}}}" if name == "shed" else ""
        return (
            f"sum {by(*BY_POOL)} (increase(controlplane_gateway_{name}_requests_total{matchers}[{window}]))"
        )

    judged_by_gateway = (
        f"{grown('finished')} + {grown('failed')} + ({grown('shed')} or 0 * {grown('finished')})"
    )
    mean_judged = f"avg_over_time(controlplane_pool_window_judged_requests[{window}])"
    per_second = f"{mean_judged} / on (cluster, job, instance, pool) controlplane_pool_goodput_window_seconds"
    judged_by_daemon = f"max {by(*BY_POOL)} ({per_second}) * {seconds(window)}"
    good = f'avg_over_time(controlplane_pool_window_good_requests{{bound="point"}}[{window}])'
    bad_by_daemon = f"1 - max {by(*BY_POOL)} (({good} / ignoring (bound) ({mean_judged} > 0)))"
    return (
        Recording(
            counted,
            f"{judged_by_gateway}\nor\n{judged_by_daemon}",
            f"Requests of the last {window} that are good or not",
            "requests",
            BY_POOL,
        ),
        Recording(
            bad,
            f"1 - {grown('good')} / ({judged_by_gateway} > 0)\nor\n{bad_by_daemon}",
            f"Share of the requests of the last {window} that were not good",
            "ratio",
            BY_POOL,
        ),
    )


def _pools() -> tuple[Recording, ...]:
    """Pools put together from their replicas' recorded series, and from the gateways' counters."""
    gave_up = f"sum {by(*BY_POOL)} (increase(controlplane_gateway_gave_up_requests_total[{{0}}]))"
    finished = f"sum {by(*BY_POOL)} (rate(controlplane_gateway_finished_requests_total[2m]))"
    per_second = "controlplane_pool_goodput_window_seconds"
    matching = "/ on (cluster, job, instance, pool)"
    return (
        *(
            Recording(
                f"llm:pool_{rest}_requests",
                f"sum {by(*POOL)} (llm:{rest}_requests)",
                f"Requests that are {rest} in the engines of a pool",
                "requests",
                POOL,
            )
            for rest in ("running", "waiting")
        ),
        Recording(
            "llm:pool_up_replicas",
            f"sum {by(*POOL[:-1])} (llm:engine_up)",
            "Replicas whose metrics page Prometheus reads",
            "replicas",
            POOL[:-1],
        ),
        Recording(
            "llm:pool_prefix_hit_ratio",
            f"sum {by(*POOL)} (llm:prefix_hit_tokens:rate2m)"
            f" / (sum {by(*POOL)} (llm:prefix_query_tokens:rate2m) > 0)"
            f"\nor\navg {by(*POOL)} (llm:prefix_hit_ratio)",
            "Share of prompt tokens that the prefix caches of a pool held",
            "ratio",
            POOL,
        ),
        Recording(
            "llm:pool_offered_requests:rate2m",
            f"{finished} + sum {by(*BY_POOL)} (rate(controlplane_gateway_failed_requests_total[2m]))"
            f" + (sum {by(*BY_POOL)} (rate(controlplane_gateway_shed_requests_total{{{SHED}}}[2m])) or "
            f"0 * {finished})\n"
            f"or\nmax {by(*BY_POOL)} (controlplane_pool_window_judged_requests {matching} {per_second})",
            "Requests per second that goodput is about: finished, failed and shed",
            "requests_per_second",
            BY_POOL,
        ),
        Recording(
            "llm:pool_good_requests:rate2m",
            f"sum {by(*BY_POOL)} (rate(controlplane_gateway_good_requests_total[2m]))\n"
            f'or\nmax {by(*BY_POOL)} (controlplane_pool_window_good_requests{{bound="point"}}'
            f" {matching} {per_second})",
            "Requests per second within the objective",
            "requests_per_second",
            BY_POOL,
        ),
        *(
            Recording(
                f"llm:replica_{rest}_sequences",
                f"sum {by(*BY_POOL, 'replica')} "
                f"(controlplane_gateway_replica_{rest}_sequences < {UNLIMITED})",
                text,
                "sequences",
                (*BY_POOL, "replica"),
            )
            for rest, text in (
                ("in_flight", "Sequences that the gateways have sent to a replica and that have not ended"),
                (
                    "limit",
                    "Most sequences at once that the gateways may send to a replica, all shares together",
                ),
            )
        ),
        *(
            Recording(
                f"llm:pool_gave_up_ratio:{window}",
                f"{gave_up.format(window)} / (({gave_up.format(window)} + "
                f"llm:pool_judged_requests:increase{window}) > 0)",
                f"Share of the requests of the last {window} whose client hung up",
                "ratio",
                BY_POOL,
            )
            for window in ("30m", "1d")
        ),
    )


class Burn(NamedTuple):
    """How fast an error budget may burn: `factor` times as fast as it lasts, seen in both windows.

    With a loose objective that many times the budget is more than all requests, and an alert on it could
    never fire. So the threshold is at most `cap` of the way from the budget to everything.
    """

    name: str
    factor: float
    cap: float
    windows: tuple[tuple[str, str], ...]


BURNS = (
    Burn("fast", 14.4, 1 / 2, (("1h", "5m"),)),
    Burn("slow", 6.0, 1 / 4, (("6h", "30m"),)),
    Burn("steady", 3.0, 1 / 8, (("1d", "2h"),)),
    Burn("long", 1.0, 0.0, (("3d", "6h"),)),
)


def _burn_thresholds() -> tuple[Recording, ...]:
    """The smaller of two numbers that both depend on the pool's objective: `a <= b or b`."""
    objective = "llm:pool_objective_ratio"
    return tuple(
        Recording(
            f"llm:pool_burn_threshold_ratio:{burn.name}",
            f"{burn.factor:g} * (1 - {objective}) <= 1 - {1 - burn.cap:g} * {objective}\n"
            f"or\n1 - {1 - burn.cap:g} * {objective}",
            f"Share of bad requests from which the budget burns {burn.factor:g} times too fast",
            "ratio",
            BY_POOL,
        )
        for burn in BURNS
    )
