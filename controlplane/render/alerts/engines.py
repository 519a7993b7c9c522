"""What goes wrong in and around the engines, from their own series: it fires without the daemon too."""

from controlplane.render.own_rules import BY_POOL
from controlplane.render.rule import POOL, TARGET, Alert, by
from controlplane.sources.dialects import engines

_JOBS = POOL[:-1]
_COUNT_LATE = "|".join(table.engine for table in engines() if table.gauges_lag)
"""Engines that count tokens when a request ends: a long answer shows none, but for its gaps."""
_LOGS = "The engine's log of the last minutes: `kubectl logs POD --previous` or `journalctl -u UNIT`."
_TAKE_OUT = "Take the replica out of rotation and restart it; keep its log."
_OUT = "controlplane_replica_out_of_rotation"
LOADS_FOR = "30m"
"""A new replica opens its port only when its model is loaded: for so long its silence is no fault."""
_AT = "Replica {{ $labels.instance }} of pool {{ $labels.pool }}"


def down(matchers: str = "") -> str:
    """Engines that do not answer and have answered lately, or were named before LOADS_FOR and silent then."""
    engine_up = f"llm:engine_up{{{matchers}}}" if matchers else "llm:engine_up"
    return (
        f"{engine_up} == 0\n"
        f"and (max_over_time({engine_up}[{LOADS_FOR}]) == 1 or {engine_up} offset {LOADS_FOR} == 0)"
    )


def alerts() -> tuple[Alert, ...]:
    return (
        Alert(
            "EngineDown",
            down(),
            "2m",
            "page",
            "serving",
            "engine",
            f"{_AT} has not answered Prometheus for 2 minutes.",
            "replicas",
            "Prometheus cannot read the engine's metrics page: the process is gone, hangs, or cannot "
            f"be reached. One that has never answered yet is given {LOADS_FOR} to load its model.",
            (
                "`curl -m 5 http://ENGINE/health` from another node.",
                _LOGS,
                "GPU health: an XID at that time?",
            ),
            (_TAKE_OUT, "If its GPU or node is the cause, follow that alert instead."),
            ("pool", "instance"),
        ),
        Alert(
            "EngineTargetsMissing",
            "absent(llm:engine_up)",
            "10m",
            "ticket",
            "platform",
            "control",
            "Prometheus has no engine to scrape: no target of the engines' job exists.",
            "fleet",
            "The job of the engines is empty. Either discovery found nothing, or the job has another "
            "name than the "
            "rules were rendered for.",
            ("Prometheus, Status, Targets: is there a job for the engines, and what is it called?",),
            (
                "Mend the scrape configuration (alerts/scrape.yaml is one that fits).",
                "Or render the rules for your job: `controlplane render alerts --engine-job NAME`.",
            ),
        ),
        Alert(
            "EngineRestartLoop",
            f"max {by(*TARGET)} (llm:engine_starts:changes30m or llm:engine_resets:30m) > 2",
            "1m",
            "ticket",
            "serving",
            "engine",
            f"{_AT} has started anew {{{{ $value }}}} times in 30 minutes.",
            "replicas",
            "The engine starts, serves and dies again. Each start costs minutes of loading, and every "
            "request in flight.",
            (
                _LOGS,
                "Out of memory? `dmesg -T | grep -i oom`, the pod's last state.",
                "An XID at each death?",
            ),
            (
                "Out of GPU memory: lower gpu-memory-utilization or max-num-seqs.",
                "After a change of image or flags: roll back.",
                "With an XID: follow GpuFatalXid.",
            ),
            ("pool", "instance"),
        ),
        Alert(
            "AdmissionStalled",
            f"sum {by(*TARGET)} (llm:waiting_requests) > 0\nand sum {by(*TARGET)} "
            f"(llm:running_requests) == 0",
            "3m",
            "page",
            "serving",
            "engine",
            f"{_AT} has {{{{ $value }}}} requests waiting and none running, for 3 minutes.",
            "replicas",
            "The engine's scheduler lets nothing in although requests wait. Its health page often says "
            "all is well.",
            (
                "Is one request longer than the KV cache can hold? It can block the head of the queue.",
                "`controlplane inspect http://ENGINE/metrics`: waiting by reason, KV usage.",
                _LOGS,
            ),
            (_TAKE_OUT,),
            ("pool", "instance"),
        ),
        Alert(
            "GenerationStalled",
            f"sum {by(*TARGET)} (llm:running_requests) > 0\n"
            f"and sum {by(*TARGET)} (llm:generation_tokens:rate2m) == 0\n"
            f"and sum {by(*TARGET)} (llm:prompt_tokens:rate2m) == 0\n"
            f'and (sum {by(*TARGET)} (llm:running_requests{{engine!~"{_COUNT_LATE}"}})\n'
            f"  or sum {by(*TARGET)} (llm:itl_seconds_count:rate2m) == 0)",
            "2m",
            "page",
            "serving",
            "engine",
            f"{_AT} says that {{{{ $value }}}} requests run, but no token has come out of it for minutes.",
            "replicas",
            "Work without tokens. Either the engine hangs (a stuck collective, a lost GPU), or its "
            "gauges are stale: "
            "some versions keep them after all clients have hung up, and then nothing is wrong with it. "
            "Engines that count tokens only when a request ends (TGI, llama.cpp) are not judged: one long "
            "answer looks the same.",
            (
                "Send one short request: `curl ENGINE/v1/completions -d '{...\"max_tokens\":1}'`. An "
                "answer means stale gauges.",
                "GPU health: utilisation of 100 % with idle tensor pipes is a hang.",
                _LOGS,
            ),
            (_TAKE_OUT, "Stale gauges go away with the next request."),
            ("pool", "instance"),
        ),
        Alert(
            "ReplicaWedged",
            'max by (cluster, pool, replica) (controlplane_replica_condition{kind="wedged"}\n'
            '  or controlplane_replica_out_of_rotation{reason="wedged"}) == 1',
            "1m",
            "page",
            "serving",
            "engine",
            "Replica {{ $labels.replica }} of pool {{ $labels.pool }} is wedged: it holds requests and "
            "makes no token.",
            "replicas",
            "The daemon has seen requests in the engine and no token for longer than "
            "`policy.stalled_after`, with proof that tokens should flow; or it had work, stood still and did "
            "not make the one token that it was asked for.",
            ("`controlplane top`: the condition's sentence and its readings.", _LOGS),
            (_TAKE_OUT,),
            ("pool",),
        ),
        Alert(
            "ReplicaOutOfRotation",
            f'max by (cluster, pool, replica, reason) ({_OUT}{{in_force="true",\n'
            '  reason!~"starting|terminating|leaving|wedged|gpu"}) == 1',
            "10m",
            "ticket",
            "serving",
            "engine",
            "Replica {{ $labels.replica }} of pool {{ $labels.pool }} has got no new request for 10 minutes: "
            "{{ $labels.reason }}.",
            "replicas",
            "The daemon has taken it out and its fault stands. unreachable: three health probes in a row got "
            "no good answer and no token flowed. errors: half of its answers were errors. overloaded: it has "
            "three times the work of its peers.",
            (
                "`controlplane top`, or the decision of that time: its sentence and its readings.",
                "`curl -m 5 http://ENGINE/health` from the daemon's machine.",
                _LOGS,
            ),
            (
                "Restart it. It comes back by itself after one good probe, or one token.",
                "If you know better: override the `mode` of the replica to `observe`, with your reason.",
            ),
            ("pool",),
        ),
        Alert(
            "ReplicaNotStarted",
            f'max by (cluster, pool, replica) ({_OUT}{{reason="starting"}}) == 1',
            "30m",
            "ticket",
            "serving",
            "engine",
            "Replica {{ $labels.replica }} of pool {{ $labels.pool }} is named, and has not made a token for "
            "30 minutes.",
            "replicas",
            "It gets requests once its page was read and, where it came or was restarted while the daemon "
            "watched, once it has made a token. Nothing restarts it meanwhile: large models load for long.",
            (
                "Is its port open?",
                'How do trials end? `controlplane_probes_total{kind="trial"}`',
                _LOGS,
            ),
            (
                "Still loading: wait, and raise `readiness.startup_grace` of the pool.",
                "It answers you but not the daemon: credentials (`scrape.auth`) or another model's name.",
            ),
            ("pool",),
        ),
        Alert(
            "QueueGrowing",
            f"min_over_time(llm:pool_waiting_requests[10m])\n"
            f"  > on ({', '.join(_JOBS)}) group_left () 4 * llm:pool_up_replicas\n"
            "and deriv(llm:pool_waiting_requests[10m]) > 0",
            "5m",
            "ticket",
            "serving",
            "queue",
            "The engines of pool {{ $labels.pool }} have had {{ $value }} requests waiting or more for "
            "10 minutes, and the "
            "queue grows.",
            "pool",
            "Requests arrive faster than they are answered, and they wait inside the engines, where "
            "nobody can order or "
            "refuse them.",
            ("Pool dashboard: offered against good requests, and whether replicas are missing.",),
            (
                "Let admission enforce: the queue then stands in the gateway, bounded by time.",
                "Add replicas, or mend those that are missing.",
            ),
            ("pool",),
        ),
        Alert(
            "KVSaturated",
            f"max {by(*TARGET)} (llm:kv_usage_ratio) > 0.95\nand sum {by(*TARGET)} "
            f"(llm:waiting_requests) > 0",
            "5m",
            "ticket",
            "serving",
            "engine",
            "The KV cache of {{ $labels.instance }} (pool {{ $labels.pool }}) is {{ $value | "
            "humanizePercentage }} full, and requests wait for room.",
            "replicas",
            "KV memory is what binds. Beyond this point the engine throws requests out and computes "
            "them again.",
            (
                "Replicas dashboard: KV usage beside preemptions.",
                "Have prompts or answers become longer (Workload)?",
            ),
            (
                "Lower the limit in tokens (the gateway's budget) or max-num-seqs.",
                "Give long requests a pool of their own (Two pools).",
            ),
            ("pool", "instance"),
        ),
        Alert(
            "PreemptionHigh",
            f"sum {by(*POOL)} (llm:preemptions:rate2m) / sum {by(*POOL)} "
            f"(llm:finished_requests:rate2m) > 0.01\n"
            f"and sum {by(*POOL)} (llm:finished_requests:rate2m) > 0.1",
            "10m",
            "ticket",
            "serving",
            "engine",
            "Pool {{ $labels.pool }} preempts {{ $value | humanizePercentage }} as many requests as it "
            "finishes: work is done twice.",
            "pool",
            "The engines throw running requests out for want of KV cache and start them over. "
            "Throughput falls as load "
            "grows: this is how a pool collapses.",
            ("Replicas dashboard: which replicas preempt.", "Pool dashboard: KV usage near 100 %?"),
            ("Lower the limit of running requests; the SLO gradient does that by itself when it enforces.",),
            ("pool",),
        ),
        Alert(
            "EngineErrors",
            f'sum {by(*_JOBS)} (llm:http_requests:rate2m{{status=~"5.*"}}) / sum {by(*_JOBS)} '
            f"(llm:http_requests:rate2m) > 0.05\n"
            f"and sum {by(*_JOBS)} (llm:http_requests:rate2m) > 0.1",
            "5m",
            "page",
            "serving",
            "users",
            "The engines of pool {{ $labels.pool }} answer {{ $value | humanizePercentage }} of their "
            "requests with a 5xx.",
            "pool",
            "Errors counted by the engines' own HTTP servers, whoever sent the requests.",
            ("Replicas dashboard: errors by replica.", _LOGS),
            (
                "One replica: take it out.",
                "All: roll back, or look for what they share (weights volume, driver).",
            ),
            ("pool",),
        ),
        Alert(
            "ReplicaImbalance",
            f"max {by(*POOL)} (llm:running_requests) / avg {by(*POOL)} (llm:running_requests) > 1.8\n"
            f"and sum {by(*POOL)} (llm:running_requests) > 16\nand count {by(*POOL)} "
            f"(llm:running_requests) >= 2",
            "15m",
            "ticket",
            "serving",
            "engine",
            "The busiest replica of pool {{ $labels.pool }} runs {{ $value | humanize }} times the mean.",
            "replicas",
            "Load is not spread: some replicas queue while others idle.",
            (
                "Are some replicas out of rotation or behind an open breaker (Gateway and tenants)?",
                "Sticky sessions or prefix affinity that sends everybody to one replica?",
            ),
            ("Let the gateway route, or use least-requests balancing in front.",),
            ("pool",),
        ),
        Alert(
            "PrefixHitDrop",
            "llm:pool_prefix_hit_ratio < 0.5 * quantile_over_time(0.5, llm:pool_prefix_hit_ratio[1d])\n"
            "and quantile_over_time(0.5, llm:pool_prefix_hit_ratio[1d]) > 0.1\n"
            f"and sum {by(*POOL)} (llm:prompt_tokens:rate2m) > 100",
            "30m",
            "info",
            "serving",
            "engine",
            "The prefix cache of pool {{ $labels.pool }} holds {{ $value | humanizePercentage }} of "
            "the prompts, under half of "
            "the last day's median.",
            "pool",
            "Prompts are computed that used to be cached: TTFT rises and capacity falls without more "
            "requests.",
            ("Did system prompts or templates change?", "Did routing change (affinity, more replicas)?"),
            ("Put what is common at the beginning of the prompt.", "Turn prefix affinity on."),
            ("pool",),
        ),
        Alert(
            "EngineMetricsMissing",
            _missing(),
            "10m",
            "ticket",
            "platform",
            "control",
            "{{ $labels.instance }} is up, but its page has no {{ $labels.signal }}: a metric was "
            "renamed, or the page is "
            "another program's.",
            "replicas",
            "The page can be read and a signal that every panel rests on is not found under any name "
            "that is known.",
            (
                "`controlplane inspect http://ENGINE/metrics` says which engine and version it takes "
                "the page for, and what it misses.",
                "SGLang, LMDeploy and llama.cpp print nothing unless their metrics are turned on.",
            ),
            (
                "Turn the engine's metrics on.",
                "A new name belongs into the engine's dialect table (controlplane/sources/dialects/): "
                "send it upstream.",
            ),
            ("pool", "instance"),
        ),
        Alert(
            "PoolReplicasMissing",
            f"max {by(*BY_POOL)} (controlplane_pool_replicas - controlplane_pool_up_replicas) > 0",
            "10m",
            "ticket",
            "serving",
            "engine",
            "Pool {{ $labels.pool }} lacks {{ $value }} of its replicas.",
            "replicas",
            "Replicas that discovery names are not up: unreachable, asleep, or still loading.",
            ("Replicas dashboard: the state of each.", "`controlplane top` says why a replica is not up."),
            ("Mend or replace them; take away from the configuration what is gone for good.",),
            ("pool",),
        ),
        Alert(
            "ReplicaCountFlapping",
            f"max {by(*BY_POOL)} (changes(controlplane_pool_replicas[30m])) > 6",
            "1m",
            "ticket",
            "platform",
            "control",
            "The number of replicas of pool {{ $labels.pool }} has changed {{ $value }} times in 30 minutes.",
            "control",
            "Something adds and removes replicas faster than a model can be loaded, so that most of "
            "that capacity is "
            "never of use. Two autoscalers that fight are the usual cause.",
            ("Who writes `spec.replicas`? `kubectl get hpa,scaledobject -A`; look at managedFields.",),
            ("Leave scaling to one writer.", "Lengthen the stabilisation window beyond the cold-start time."),
            ("pool",),
        ),
    )


def _missing() -> str:
    """Signals that a page must have. KV usage only where the engine's table has it."""
    has_kv = [
        table.engine
        for table in engines()
        if any(row.signal == "kv_usage" and not row.until for row in table.metrics)
    ]

    def told(signal: str, expr: str) -> str:
        return f'label_replace({expr}, "signal", "{signal}", "", "")'

    up = f"max {by(*TARGET)} (llm:engine_up) == 1"
    running = f'max {by(*TARGET)} (llm:running_requests{{engine=~"{"|".join(has_kv)}"}})'
    return "\nor\n".join(
        (
            told("running_requests", f"{up} unless on (job, instance) llm:running_requests"),
            told("generation_tokens", f"{up} unless on (job, instance) llm:generation_tokens:rate2m"),
            told("kv_usage_ratio", f"{running} unless on (job, instance) llm:kv_usage_ratio"),
        )
    )
