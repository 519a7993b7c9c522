"""Control plane: what it sees, what it decides, whether it keeps up."""

from typing import Any

from controlplane.render.dashboards.board import board
from controlplane.render.dashboards.panels import (
    GREEN,
    NONE_IS_GOOD,
    ORANGE,
    RED,
    YELLOW,
    Query,
    Steps,
    lines,
    number,
    row,
    states,
)
from controlplane.render.dashboards.queries import CLUSTER, POOL, RATE, grown, share
from controlplane.render.dashboards.shared import (
    shed,
)

AWAY = "daemon away"
UNSCALED = "no pool is scaled"


def dashboard() -> dict[str, Any]:
    age = f"min(time() - controlplane_last_tick_timestamp_seconds{{{CLUSTER}}})"
    return board(
        "control",
        "Control plane",
        "What the daemon sees and decides, what the gateways carry out, and whether they keep up. "
        "Decisions stand as annotations on every graph.",
        ("cluster", "pool"),
        row(
            "Now",
            number(
                "Hold",
                "A hold freezes every actuator.",
                "short",
                f"max(controlplane_hold_active{{{CLUSTER}}})",
                says={"0": ("none", GREEN), "1": ("held", ORANGE)},
                empty=AWAY,
            ),
            number(
                "Last tick",
                "Age of the last tick of the daemon that is ahead.",
                "s",
                age,
                Steps(GREEN, ((30, YELLOW), (60, RED))),
                decimals=0,
                empty=AWAY,
            ),
            number(
                "Admission",
                "Whether the gateways enforce, or observe and only count.",
                "short",
                f"max(controlplane_gateway_enforcing{{{CLUSTER}}})",
                says={"0": ("observes", "blue"), "1": ("enforces", GREEN)},
                empty="no gateway",
            ),
            number(
                "Overrides",
                "Orders of people that stand.",
                "short",
                f"max(controlplane_active_overrides{{{CLUSTER}}})",
                Steps(GREEN, ((1, YELLOW),)),
                empty=AWAY,
            ),
            number(
                "Replicas unseen",
                "Replicas that the daemon cannot read.",
                "short",
                f'sum(max by (replica) (controlplane_replica_state{{{POOL},state="unreachable"}}))',
                NONE_IS_GOOD,
                empty=AWAY,
            ),
            number(
                "Unknown readings",
                "Signals without a value, but for those of pools and replicas that have no traffic.",
                "short",
                f'count(controlplane_reading_unknown{{{POOL},reason!~"no-traffic|too-few"}}) or vector(0)',
                Steps(GREEN, ((1, YELLOW),)),
            ),
        ),
        row(
            "Limits",
            lines(
                "In flight against limit by replica",
                "Sequences that the gateways have sent to each replica, and the most they may (dashed).",
                "short",
                Query(f"llm:replica_in_flight_sequences{{{POOL}}}", "{{replica}}"),
                Query(f"llm:replica_limit_sequences{{{POOL}}}", "{{replica}} limit"),
                dashed=".* limit",
                width=12,
                empty="no gateway",
            ),
            lines(
                "Use of the limit",
                "In flight over the limit, all replicas of a pool. At 100 % admission is what holds "
                "requests back.",
                "percentunit",
                Query(
                    share(
                        f"sum by (pool) (llm:replica_in_flight_sequences{{{POOL}}})",
                        f"sum by (pool) (llm:replica_limit_sequences{{{POOL}}})",
                    ),
                    "{{pool}}",
                ),
                width=12,
                empty="no gateway, or no limit",
            ),
            lines(
                "The law's limit and what is in force",
                "What the law came to for each replica, and what the gateways go by (dashed). They part "
                "where nobody acts on the law: observing, a hold, an override.",
                "short",
                Query(f"max by (replica) (controlplane_replica_limit_sequences{{{POOL}}})", "{{replica}}"),
                Query(
                    f"max by (replica) (controlplane_replica_limit_in_force_sequences{{{POOL}}})",
                    "{{replica}} in force",
                ),
                dashed=".* in force",
                width=12,
                empty="no law sets a limit",
            ),
            lines(
                "What moved the limits last",
                "Replicas by the reason of their limit's last change: the gradient that binds.",
                "short",
                Query(
                    f"count by (law, reason) (controlplane_replica_limit_info{{{POOL}}})",
                    "{{law}}: {{reason}}",
                ),
                stacked=True,
                width=12,
                empty="no law sets a limit",
            ),
            lines(
                "KV tokens reserved",
                "Of the gateways' budget in tokens (dashed); grown are those that streams outgrew to.",
                "short",
                Query(
                    f"sum by (pool) (controlplane_gateway_replica_reserved_tokens{{{POOL}}})",
                    "{{pool}} reserved",
                ),
                Query(
                    f"sum by (pool) (controlplane_gateway_replica_grown_tokens{{{POOL}}})", "{{pool}} grown"
                ),
                Query(
                    f"sum by (pool) (controlplane_gateway_replica_budget_tokens{{{POOL}}})", "{{pool}} budget"
                ),
                dashed=".* budget",
                width=12,
                empty="no gateway",
            ),
            shed(
                "Shed and would shed",
                "Refused by admission, or, while it observes, what it would have refused (dashed).",
            ),
        ),
        row(
            "Decisions",
            lines(
                "Decisions by reason",
                "What was decided, per minute. The sentence of each is an annotation, in `controlplane "
                "top` and on the status page.",
                "short",
                Query(
                    grown("controlplane_decisions_total", CLUSTER, "action", "reason"),
                    "{{action}}: {{reason}}",
                ),
                width=12,
                empty="nothing decided",
            ),
            lines(
                "Events by kind",
                "What happened, per minute: restarts, joins, warnings.",
                "short",
                Query(grown("controlplane_events_total", CLUSTER, "kind"), "{{kind}}"),
                width=12,
                empty="nothing happened",
            ),
            lines(
                "Replicas named and up",
                "Replicas that discovery names (dashed) and those that are up.",
                "short",
                Query(f"max by (pool) (controlplane_pool_up_replicas{{{POOL}}})", "{{pool}} up"),
                Query(f"max by (pool) (controlplane_pool_replicas{{{POOL}}})", "{{pool}} named"),
                dashed=".* named",
                width=12,
                empty=AWAY,
            ),
            lines(
                "Replicas that get no new request",
                "By the reason for which the daemon keeps requests from them; observed: it would.",
                "short",
                *(
                    Query(
                        "sum by (reason) (max by (pool, replica, reason) "
                        f'(controlplane_replica_out_of_rotation{{{POOL},in_force="{in_force}"}}))',
                        f"{{{{reason}}}}{suffix}",
                    )
                    for in_force, suffix in (("true", ""), ("false", " (observed)"))
                ),
                stacked=True,
                width=12,
                empty="all get requests",
            ),
            lines(
                "Health probes and trials",
                "By result, per second: of each replica's health page once an interval, of one token where "
                "there is doubt.",
                "ops",
                Query(
                    f"sum by (kind, result) (rate(controlplane_probes_total{{{CLUSTER}}}{RATE}))",
                    "{{kind}} {{result}}",
                ),
                stacked=True,
                width=12,
                empty=AWAY,
            ),
            lines(
                "Replicas wanted and ready",
                "What the law of replica counts wants (dashed), those that serve and those that load, and "
                "how many the work needs, fractions included.",
                "short",
                *(
                    Query(
                        f"max by (pool) (controlplane_pool_{which}_replicas{{{POOL}}})",
                        f"{{{{pool}}}} {name}",
                    )
                    for which, name in (
                        ("desired", "wanted"),
                        ("ready", "ready"),
                        ("loading", "loading"),
                        ("needed", "needed"),
                    )
                ),
                dashed=".* wanted",
                width=12,
                empty=UNSCALED,
            ),
            lines(
                "What moves or holds the replica count",
                "Pools by the reason of the wanted count: a need, a bound, a wait after the last change.",
                "short",
                Query(
                    f"count by (law, reason) (controlplane_pool_scaling_info{{{POOL}}})",
                    "{{law}}: {{reason}}",
                ),
                stacked=True,
                width=12,
                empty=UNSCALED,
            ),
            states(
                "Conditions of pools",
                "What the daemon finds wrong with a pool, while it holds.",
                {"1": ("holds", RED)},
                Query(f"max by (pool, kind) (controlplane_pool_condition{{{POOL}}})", "{{pool}}: {{kind}}"),
                width=12,
                empty="no condition holds",
            ),
        ),
        row(
            "Does it keep up",
            lines(
                "Time of a tick",
                "Against the interval (dashed): a tick that takes longer is left out.",
                "s",
                Query(
                    f"histogram_quantile(0.99, sum by (le) "
                    f"(rate(controlplane_tick_duration_seconds_bucket{{{CLUSTER}}}{RATE})))",
                    "p99",
                ),
                Query(
                    f"histogram_quantile(0.5, sum by (le) "
                    f"(rate(controlplane_tick_duration_seconds_bucket{{{CLUSTER}}}{RATE})))",
                    "p50",
                ),
                Query(f"max(controlplane_tick_interval_seconds{{{CLUSTER}}})", "interval"),
                dashed="interval",
                empty=AWAY,
            ),
            lines(
                "Scrapes",
                "By result, per second.",
                "ops",
                Query(
                    f"sum by (result, reason) (rate(controlplane_scrapes_total{{{CLUSTER}}}{RATE}))",
                    "{{result}} {{reason}}",
                ),
                stacked=True,
                empty=AWAY,
            ),
            lines(
                "Slowest page",
                "Time that the slowest engine page of each pool took.",
                "s",
                Query(f"max by (pool) (controlplane_replica_scrape_duration_seconds{{{POOL}}})", "{{pool}}"),
                empty=AWAY,
            ),
            lines(
                "Left out",
                "Ticks and scrapes that came too late, samples that were NaN or infinite, per minute.",
                "short",
                Query(f"sum(60 * rate(controlplane_misfires_total{{{CLUSTER}}}{RATE}))", "ticks"),
                Query(f"sum(60 * rate(controlplane_missed_scrapes_total{{{CLUSTER}}}{RATE}))", "scrapes"),
                Query(f"sum(60 * rate(controlplane_dropped_samples_total{{{CLUSTER}}}{RATE}))", "samples"),
                empty=AWAY,
            ),
            lines(
                "Journal",
                "Ticks written and failed per second, and those that wait.",
                "short",
                Query(f"sum(rate(controlplane_journal_writes_total{{{CLUSTER}}}{RATE}))", "written"),
                Query(f"sum(rate(controlplane_journal_failures_total{{{CLUSTER}}}{RATE}))", "failed"),
                Query(f"max(controlplane_journal_queue_ticks{{{CLUSTER}}})", "waiting"),
                empty=AWAY,
            ),
            lines(
                "Age of the gateways' orders",
                "Since the last control message of the daemon. Over a minute a gateway steers itself.",
                "s",
                Query(
                    f"max by (instance) (controlplane_gateway_control_age_seconds{{{CLUSTER}}})",
                    "{{instance}}",
                ),
                steps=Steps(GREEN, ((30, YELLOW), (60, RED))),
                show_steps=True,
                empty="no gateway is steered",
            ),
            lines(
                "Unknown readings by reason",
                "Signals without a value.",
                "short",
                Query(f"count by (reason) (controlplane_reading_unknown{{{POOL}}})", "{{reason}}"),
                stacked=True,
                width=12,
                empty="none",
            ),
            lines(
                "Rule evaluation",
                "Share of their interval that the rules of each group take in Prometheus.",
                "percentunit",
                Query(
                    "max by (rule_group) "
                    '(prometheus_rule_group_last_duration_seconds{rule_group=~".*;llm-.*"} / '
                    "prometheus_rule_group_interval_seconds)",
                    "{{rule_group}}",
                ),
                steps=Steps(GREEN, ((0.8, RED),)),
                width=12,
                empty="Prometheus does not scrape itself",
            ),
        ),
    )
