"""The control plane itself: daemon, gateways, and the rules."""

from controlplane.render.own_rules import BY_POOL
from controlplane.render.rule import Alert, by
from controlplane.render.settings import RenderSettings

_ALONE = (
    "Gateways keep their last limits and go by their own measurements; engines serve on. Nothing new is "
    "decided."
)


def alerts(settings: RenderSettings) -> tuple[Alert, ...]:
    daemon, gateway = f'job=~"{settings.daemon_job}"', f'job=~"{settings.gateway_job}"'
    age = "time() - controlplane_last_tick_timestamp_seconds"
    return (
        Alert(
            "ControlPlaneDown",
            f"absent(up{{{daemon}}} == 1)",
            "3m",
            "page",
            "platform",
            "control",
            "No controlplane daemon answers: nothing watches over the fleet.",
            "control",
            f"Prometheus reads no daemon's page. {_ALONE}",
            (
                "Its log: `kubectl logs deploy/controlplane`, `journalctl -u controlplane`.",
                "`controlplane check FILE`",
            ),
            (
                "Start it again: it goes on where it stopped.",
                "A journal that cannot be read is named in the log.",
            ),
        ),
        Alert(
            "ControlPlaneStuck",
            f"{age} > 60\nand ({age}) / controlplane_tick_interval_seconds > 10",
            "2m",
            "page",
            "platform",
            "control",
            "The daemon at {{ $labels.instance }} answers, but its last tick was {{ $value | "
            "humanizeDuration }} ago.",
            "control",
            f"The loop does not turn. Fleet panels are empty on purpose: old numbers would look like "
            f"new ones. {_ALONE}",
            (
                "`curl DAEMON/healthz` says what is stuck.",
                "A full disk, a paused process, a machine without CPU?",
            ),
            ("Restart it; nothing is lost or done twice.",),
        ),
        Alert(
            "ControlPlaneBlind",
            # New replicas load their models: nobody reaches them yet, and half a pool may be new at once.
            'sum by (cluster) (controlplane_replica_state{state="unreachable"} unless on (cluster, pool, '
            'replica) controlplane_replica_out_of_rotation{reason="starting"})\n'
            "  / sum by (cluster) (controlplane_pool_replicas) > 0.5",
            "3m",
            "page",
            "platform",
            "control",
            "The daemon cannot reach {{ $value | humanizePercentage }} of the replicas: it blames "
            "itself and holds still.",
            "control",
            "More than half of the fleet cannot be scraped, those that load not counted. If the engines "
            "serve, the daemon's own network is the cause.",
            (
                "Does Prometheus still read the engines (EngineDown)?",
                "From the daemon's machine: `controlplane inspect URL`.",
            ),
            ("Mend DNS, network policy or credentials of the daemon.",),
        ),
        Alert(
            "ControlPlaneLeaderless",
            "max by (cluster) (controlplane_leading) == 0",
            "2m",
            "page",
            "platform",
            "control",
            "No controlplane daemon has led for 2 minutes: nothing is decided for the fleet.",
            "control",
            f"Daemons run, and none of them holds the Lease. {_ALONE}",
            (
                "`kubectl get lease controlplane -o yaml`: who holds it, and when was it renewed?",
                "A daemon's log and `/api/v1/events`: lease-failing says what the API server answers.",
            ),
            (
                "Mend the way to the API server, or the Role that lets the daemon patch its Lease.",
                "Nothing else is needed: one of them leads as soon as it can.",
            ),
        ),
        Alert(
            "ControlPlaneTwoLeaders",
            "sum by (cluster) (controlplane_leading) > 1",
            "2m",
            "page",
            "platform",
            "control",
            "{{ $value }} controlplane daemons lead at once.",
            "control",
            "They do not share a Lease: they have none (`kubernetes.lease: null`, no section `kubernetes`), "
            "or one in each of two namespaces. Gateways follow the higher term; all else is written by both.",
            (
                "`controlplane_leading == 1`: which instances?",
                "Their configuration: section `kubernetes`, its namespace and the name of the lease.",
            ),
            ("Stop one of them, and give both the same Lease.",),
        ),
        Alert(
            "ControlPlaneScrapesFailing",
            'sum by (cluster, instance) (rate(controlplane_scrapes_total{result="failed"}[5m]))\n'
            "  / sum by (cluster, instance) (rate(controlplane_scrapes_total[5m])) > 0.1",
            "10m",
            "ticket",
            "platform",
            "control",
            "{{ $value | humanizePercentage }} of the daemon's scrapes fail.",
            "control",
            "Decisions rest on old readings for the replicas concerned; what is too old counts as unknown.",
            ("Control plane dashboard: failures by reason.",),
            ("time-out: engines too busy to answer, raise scrape.timeout. refused: they are gone.",),
        ),
        Alert(
            "ControlPlaneLate",
            "rate(controlplane_misfires_total[10m]) / rate(controlplane_ticks_total[10m]) > 0.1",
            "10m",
            "ticket",
            "platform",
            "control",
            "The daemon at {{ $labels.instance }} leaves out {{ $value | humanizePercentage }} of its ticks.",
            "control",
            "It cannot keep up with its own interval.",
            (
                "Control plane dashboard: time of a tick against its interval.",
                "CPU throttling of its container?",
            ),
            ("Give it CPU, or lengthen daemon.tick.",),
        ),
        Alert(
            "JournalFailing",
            "increase(controlplane_journal_failures_total[10m]) > "
            "0\nor\ncontrolplane_journal_queue_ticks > 100",
            "5m",
            "ticket",
            "platform",
            "control",
            "The daemon at {{ $labels.instance }} cannot write its journal: what it decides now could "
            "be lost with a crash.",
            "control",
            "Writes fail or pile up.",
            ("Disk full, read-only, slow? The log names the file.",),
            ("Free the disk. The daemon goes on by itself.",),
        ),
        Alert(
            "ControlPlaneHeld",
            "controlplane_hold_active == 1",
            "1h",
            "info",
            "platform",
            "control",
            "A hold has frozen every actuator for over an hour.",
            "control",
            "Somebody ordered a hold. Nothing is limited, scaled, taken out or cordoned while it stands.",
            ("`controlplane top` says who ordered it and why.",),
            ("`controlplane release` when it is no longer needed.",),
        ),
        Alert(
            "GatewayDown",
            f"up{{{gateway}}} == 0",
            "2m",
            "page",
            "platform",
            "users",
            "The gateway at {{ $labels.instance }} has not answered Prometheus for 2 minutes.",
            "gateway",
            "Clients that are sent to it get no answer. Others take its share of the replicas once its "
            "term has ended.",
            ("Its log.", "Does the load balancer still send to it?"),
            ("Start it again.",),
        ),
        Alert(
            "GatewayUnsteered",
            "controlplane_gateway_control_age_seconds > 60",
            "2m",
            "ticket",
            "platform",
            "control",
            "The gateway at {{ $labels.instance }} has heard nothing from the daemon for {{ $value | "
            "humanizeDuration }}.",
            "gateway",
            f"Its last orders have lapsed, and it steers itself. {_ALONE}",
            (
                "Does the daemon run (ControlPlaneDown)?",
                "Do token and control address fit? Its log counts refusals.",
            ),
            ("Mend the way between the two.",),
            ("instance",),
        ),
        Alert(
            "GatewayBreakerOpen",
            'max by (cluster, pool, replica) (controlplane_gateway_replica_breaker{state="open"}) == 1',
            "5m",
            "ticket",
            "serving",
            "engine",
            "A gateway's breaker for replica {{ $labels.replica }} of pool {{ $labels.pool }} is open: "
            "too many of its requests failed.",
            "gateway",
            "The gateway sends nothing to the replica but trials, because it failed too often.",
            ("The replica's log.", "Gateway and tenants dashboard: failures by replica."),
            ("Mend or replace the replica; the breaker closes by itself after a good trial.",),
            ("pool",),
        ),
        Alert(
            "GatewayOverloaded",
            "max by (cluster, pool, class) (controlplane_gateway_queue_overloaded) == 1",
            "10m",
            "ticket",
            "serving",
            "queue",
            "The queue of class {{ $labels.class }} of pool {{ $labels.pool }} has been overloaded for "
            "10 minutes.",
            "gateway",
            "Requests of this class have waited longer than the overload detector's target all the time.",
            ("Gateway and tenants dashboard: queue time by class, offered against good.",),
            ("Add replicas, or lower what the class may send.",),
            ("pool",),
        ),
        Alert(
            "GatewayFilesShort",
            "(controlplane_gateway_client_connections + controlplane_gateway_engine_connections)\n"
            "  / controlplane_gateway_limit_files > 0.8",
            "5m",
            "ticket",
            "platform",
            "control",
            "The gateway at {{ $labels.instance }} uses {{ $value | humanizePercentage }} of the files "
            "that it may open.",
            "gateway",
            "Each stream needs two connections. At the limit new clients are refused.",
            ("`cat /proc/PID/limits`.", "Do clients leave connections open?"),
            ("Raise LimitNOFILE of the unit or the container, or add gateways.",),
            ("instance",),
        ),
        Alert(
            "ReplicaBoundBinds",
            f"max {by(*BY_POOL)} (controlplane_pool_needed_replicas)\n"
            f"  > max {by(*BY_POOL)} (controlplane_pool_desired_replicas)\n"
            f'and max {by(*BY_POOL)} (controlplane_pool_scaling_info{{reason=~"bound|budget"}}) == 1',
            "10m",
            "ticket",
            "serving",
            "control",
            'Pool {{ $labels.pool }} needs {{ $value | printf "%.1f" }} replicas, more than it may have.',
            "control",
            "The law of replica counts would ask for more; the maximum of the pool, or the budget that "
            "pools share, does not allow it. What is there cannot do the work that clients ask for.",
            (
                "Control plane dashboard: replicas wanted and needed, and what holds the count.",
                "The sentence of the last scale decision names the bound: `controlplane top`.",
            ),
            ("Raise scale.max or the budget, if there are GPUs.", "Until then let admission enforce."),
            ("pool",),
        ),
        Alert(
            "ScalingBlind",
            # A pool without traffic, or one that was never busy enough to learn from, may stay unknown.
            f"max {by(*BY_POOL)} (controlplane_pool_desired_replicas)\n"
            f"unless max {by(*BY_POOL)} (controlplane_pool_needed_replicas)\n"
            f"and max {by(*BY_POOL)} (last_over_time(controlplane_pool_needed_replicas[1d]))\n"
            "and llm:pool_judged_requests:increase1h >= 20",
            "15m",
            "ticket",
            "platform",
            "control",
            "It has not been known for 15 minutes how many replicas pool {{ $labels.pool }} needs: "
            "{{ $value }} are asked for all the same.",
            "control",
            "It was known within the last day. The count is held, or raised to scale.fallback_replicas: load "
            "that grows now is not answered with replicas.",
            (
                "Status page, or `controlplane top`: the sentence of the last scale decision says what "
                "is not known.",
                "Control plane dashboard: unknown readings by reason, scrapes that fail.",
            ),
            ("Mend what hides the engines' pages or the gateways' counts from the daemon.",),
            ("pool",),
        ),
        Alert(
            "RuleEvaluationSlow",
            "max by (cluster, rule_group) "
            '(prometheus_rule_group_last_duration_seconds{rule_group=~".*;llm-.*"}'
            " / prometheus_rule_group_interval_seconds) > 0.8",
            "10m",
            "ticket",
            "platform",
            "control",
            "Prometheus needs {{ $value | humanizePercentage }} of the interval to evaluate {{ "
            "$labels.rule_group }}.",
            "control",
            "Rules that take longer than their interval are skipped: panels get gaps and alerts come late.",
            ("Prometheus, Status, Rules: which rule is slow.",),
            ("Give Prometheus CPU, or split the fleet over several.",),
        ),
    )
