"""Panels and columns that several dashboards show."""

from controlplane.render.dashboards.panels import (
    FULL,
    GREEN,
    NONE_IS_GOOD,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Placed,
    Query,
    Steps,
    lines,
    number,
)
from controlplane.render.dashboards.queries import BUDGET_LEFT, POOL, rate

POOL_NAME = Column("Pool", label="pool", board="pool")


def kv_usage(where: str, by: str) -> Column:
    """The fullest engine's, for each value of the labels `by`."""
    query = f"max by ({by}) (llm:kv_usage_ratio{{{where}}})"
    return Column("KV usage", query, unit="percentunit", steps=FULL, gauge=True)


def waiting(where: str, by: str, *, many: int) -> Column:
    """Requests in the engines' queues: red from `many` on."""
    query = f"sum by ({by}) (llm:waiting_requests{{{where}}})"
    return Column("Waiting", query, decimals=0, steps=Steps(GREEN, ((1, YELLOW), (many, RED))))


def preemptions(where: str, by: str) -> Column:
    query = f"sum by ({by}) (llm:preemptions:rate2m{{{where}}})"
    return Column("Preemptions/s", query, decimals=2, steps=Steps(GREEN, ((0.01, RED),)))


def budget_left(title: str, text: str) -> Placed:
    """Of the error budget of the worst pool that is chosen."""
    steps = Steps(RED, ((0, ORANGE), (0.25, GREEN)))
    return number(title, text, "percentunit", BUDGET_LEFT, steps, decimals=0, empty="no traffic")


def replicas_missing(title: str) -> Placed:
    return number(
        title,
        "Replicas that discovery names and that are not up.",
        "short",
        f"sum(max by (pool) (controlplane_pool_replicas{{{POOL}}} - "
        f"controlplane_pool_up_replicas{{{POOL}}}))",
        NONE_IS_GOOD,
        empty="daemon away",
        link="replicas",
    )


def shed(title: str, text: str) -> Placed:
    """What admission refused by reason, and, dashed, what observing would have."""
    would = rate("controlplane_gateway_would_refuse_requests_total", POOL, "reason")
    return lines(
        title,
        text,
        "reqps",
        Query(rate("controlplane_gateway_shed_requests_total", POOL, "reason"), "{{reason}}"),
        Query(would, "would: {{reason}}"),
        dashed="would: .*",
        width=12,
        empty="nothing shed",
    )
