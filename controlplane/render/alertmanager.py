"""Who is told of what: routes by severity and team, and what something greater explains."""

from typing import Any

TEAMS = ("serving", "hardware", "platform")
SECRETS = "/etc/alertmanager/secrets"

_SUMMARY = "{{ range .Alerts }}{{ .Annotations.summary }}\n{{ end }}"


def inhibitions() -> list[tuple[dict[str, str], dict[str, str], list[str]]]:
    """(what is the cause, what is then not told, which labels must be equal); values are regexes."""
    return [
        # A dead node says nothing more of its engines and GPUs.
        ({"alertname": "NodeDown"}, {"layer": "engine|gpu"}, ["cluster", "node"]),
        # A dead engine says nothing more of its queue, its KV cache or its metrics.
        (
            {"alertname": "EngineDown"},
            {
                "alertname": "AdmissionStalled|GenerationStalled|KVSaturated|EngineRestartLoop"
                "|EngineMetricsMissing"
            },
            ["cluster", "instance"],
        ),
        ({"alertname": "EngineMetricsMissing"}, {"alertname": "KVSaturated"}, ["cluster", "instance"]),
        # A pool without replicas has no goodput either: one page, not five.
        (
            {"alertname": "PoolDown"},
            {
                "alertname": "EngineDown|Goodput.*|RequestsFailing|RequestsShed|AbortSpike|PoolSaturated"
                "|QueueGrowing"
                "|EngineErrors|PoolReplicasMissing|ReplicaWedged|GatewayBreakerOpen|GatewayOverloaded"
            },
            ["cluster", "pool"],
        ),
        # The fastest burn speaks for the slower ones, and for what only says the same in other words.
        (
            {"alertname": "GoodputBurnFast"},
            {"alertname": "GoodputBurnSlow|GoodputBurnSteady|GoodputBudgetSpent|PoolSaturated|RequestsShed"},
            ["cluster", "pool"],
        ),
        (
            {"alertname": "GoodputBurnSlow"},
            {"alertname": "GoodputBurnSteady|GoodputBudgetSpent"},
            ["cluster", "pool"],
        ),
        ({"alertname": "GoodputBurnSteady"}, {"alertname": "GoodputBudgetSpent"}, ["cluster", "pool"]),
        # One GPU, one fault.
        (
            {"alertname": "GpuFatalXid"},
            {"alertname": "GpuXid|GpuMemoryFault|GpuResetNeeded"},
            ["cluster", "UUID"],
        ),
        ({"alertname": "GpuThrottledByHeat"}, {"alertname": "GpuHot"}, ["cluster", "UUID"]),
        # Without the daemon nobody steers the gateways: that is known.
        (
            {"alertname": "ControlPlaneDown|ControlPlaneStuck"},
            {"alertname": "GatewayUnsteered|ControlPlaneScrapesFailing|ControlPlaneLate"},
            ["cluster"],
        ),
    ]


def configuration() -> dict[str, Any]:
    """A file for Alertmanager. Secrets are read from files in `SECRETS`."""
    return {
        "route": {
            "receiver": "ticket-platform",
            "group_by": ["alertname", "cluster", "pool", "node"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                # The daemon shows what fires beside what it decided; everybody else is still told.
                {
                    "receiver": "controlplane",
                    "matchers": ['team=~"serving|hardware|platform"'],
                    "group_wait": "5s",
                    "group_interval": "15s",
                    "repeat_interval": "1h",
                    "continue": True,
                },
                {"receiver": "nobody", "matchers": ['severity="info"']},
                *(
                    {
                        "receiver": f"page-{team}",
                        "matchers": ['severity="page"', f'team="{team}"'],
                        "group_wait": "10s",
                        "repeat_interval": "1h",
                    }
                    for team in TEAMS
                ),
                *(
                    {"receiver": f"ticket-{team}", "matchers": ['severity="ticket"', f'team="{team}"']}
                    for team in TEAMS
                ),
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": [f'{label}=~"{value}"' for label, value in source.items()],
                "target_matchers": [f'{label}=~"{value}"' for label, value in target.items()],
                "equal": equal,
            }
            for source, target, equal in inhibitions()
        ],
        "receivers": [
            {"name": "nobody"},
            {
                "name": "controlplane",
                "webhook_configs": [
                    {
                        "url": "http://127.0.0.1:9090/api/v1/alerts",
                        "send_resolved": True,
                        "max_alerts": 30,
                        "http_config": {
                            "authorization": {"credentials_file": f"{SECRETS}/controlplane-token"}
                        },
                    }
                ],
            },
            *(
                {
                    "name": f"page-{team}",
                    "pagerduty_configs": [
                        {
                            "routing_key_file": f"{SECRETS}/pagerduty-{team}",
                            "description": _SUMMARY,
                            "details": {"runbook": "{{ (index .Alerts 0).Annotations.runbook_url }}"},
                        }
                    ],
                }
                for team in TEAMS
            ),
            *(
                {
                    "name": f"ticket-{team}",
                    "slack_configs": [
                        {
                            "api_url_file": f"{SECRETS}/slack-{team}",
                            "channel": f"#{team}",
                            "send_resolved": True,
                            "title": "{{ .CommonLabels.alertname }}",
                            "title_link": "{{ (index .Alerts 0).Annotations.runbook_url }}",
                            "text": _SUMMARY,
                        }
                    ],
                }
                for team in TEAMS
            ),
        ],
    }
