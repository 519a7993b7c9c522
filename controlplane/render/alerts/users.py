"""What users notice: goodput against its objective, failures, refusals, clients that hang up."""

from controlplane.render.own_rules import BURNS, BY_POOL, SHED, Burn
from controlplane.render.rule import Alert, by

ENOUGH = 20
"""Requests of the long window under which a share means nothing."""

_OBJECTIVE = (
    "{{ with printf \"llm:pool_objective_ratio{pool='%s'}\" $labels.pool | query }}"
    "{{ . | first | value | humanizePercentage }}{{ end }}"
)
_MISSED = (
    "The pool misses its goodput objective: too many requests are late, fail or are refused. The share "
    "is that of "
    "all finished, failed and shed requests. The threshold is a multiple of the error budget, but "
    "never more than "
    "a set part of the way from the budget to everything, so that it can fire for a loose objective too."
)
_WHERE = (
    "Open the Pool dashboard. If queue time grew and engine time did not, the pool lacks capacity or "
    "its limit is "
    "too high; if engine time grew, look at preemptions, KV usage and the GPUs.",
    "On the Control plane dashboard see which limit binds and what was decided: `controlplane top` "
    "says the same.",
    "Compare the replicas: one that is out of line drags the whole pool.",
)
_HELP = (
    "One bad replica: take it out (`controlplane` sets its limit to 0, or delete the pod) and keep it "
    "for evidence.",
    "All replicas saturated: add replicas; until they are there let admission enforce, so that the "
    "requests that "
    "are let in stay within the objective.",
    "New traffic or longer prompts: see Workload on the Pool dashboard and who sends them on Gateway "
    "and tenants.",
)


def alerts() -> tuple[Alert, ...]:
    fast, slow, steady, long = BURNS
    judged, share = "llm:pool_judged_requests:increase5m", "llm:pool_bad_ratio:5m"
    return (
        _burn("GoodputBurnFast", fast, "2m", "page"),
        _burn("GoodputBurnSlow", slow, "15m", "page"),
        _burn("GoodputBurnSteady", steady, "1h", "ticket"),
        _burn("GoodputBudgetSpent", long, "3h", "ticket"),
        Alert(
            "GoodputMissedAtLowTraffic",
            f"llm:pool_bad_ratio:1d > {slow_threshold(slow)}\nand llm:pool_judged_requests:increase1d >= 10\n"
            f"unless llm:pool_judged_requests:increase1h >= {ENOUGH}",
            "1h",
            "ticket",
            "serving",
            "users",
            "Pool {{ $labels.pool }} has little traffic, and {{ $value | humanizePercentage }} of the "
            "last day's requests "
            f"were not good (objective {_OBJECTIVE}).",
            "pool",
            "A pool with few requests cannot trip the burn alerts: a handful of failures is no rate. "
            "This one counts a "
            "whole day, so that a pool that fails nearly everybody who comes is not silent for ever.",
            _WHERE,
            _HELP,
            ("pool",),
        ),
        Alert(
            "PoolDown",
            f'max {by(*BY_POOL)} (llm:engine_up{{pool!=""}}) == 0',
            "1m",
            "page",
            "serving",
            "users",
            "Pool {{ $labels.pool }} has no replica left that answers: none of its metrics pages can "
            "be read.",
            "pool",
            "Not one replica of the pool answers Prometheus. Its users get errors or wait.",
            (
                "Replicas dashboard: the state of each replica and since when.",
                "Are the pods there and ready, are their nodes up? `kubectl get pods -o wide`, "
                "`systemctl status`.",
                "If the engines answer (`curl ENGINE/health`), Prometheus cannot reach them: network "
                "policy, DNS.",
            ),
            (
                "Undo the last change (image, flags, node pool) if it came just before.",
                "Bring back one replica by hand before looking for the cause: it restores the pool's users.",
            ),
            ("pool",),
        ),
        Alert(
            "RequestsFailing",
            f"sum {by(*BY_POOL)} (increase(controlplane_gateway_failed_requests_total[5m])) / {judged} "
            f"> 0.05\n"
            f"and {judged} >= {ENOUGH}",
            "5m",
            "page",
            "serving",
            "users",
            "{{ $value | humanizePercentage }} of the requests to pool {{ $labels.pool }} failed in "
            "the last 5 minutes.",
            "gateway",
            "Requests fail after they were let in: engines break off streams, answer 5xx, or time out.",
            (
                "Gateway and tenants dashboard: how requests end, and the breaker of each replica.",
                "Failures on one replica: its log. On all: the engines' common cause (driver, network, "
                "image).",
            ),
            (
                "Take the failing replica out; the gateway's breaker does so by itself while it "
                "observes failures.",
                "Roll back the engine's version or flags if they changed.",
            ),
            ("pool",),
        ),
        Alert(
            "RequestsShed",
            f"sum {by(*BY_POOL)} (increase(controlplane_gateway_shed_requests_total{{{SHED}}}[5m])) / "
            f"{judged} > 0.1\n"
            f"and {judged} >= {ENOUGH}",
            "10m",
            "ticket",
            "serving",
            "queue",
            "Admission refuses {{ $value | humanizePercentage }} of the requests to pool {{ $labels.pool }}.",
            "gateway",
            "More is asked than the pool can answer in time, and admission refuses the rest so that "
            "what it lets in is "
            "good. That is its task; that it goes on for so long says that capacity is short.",
            (
                "Gateway and tenants dashboard: refusals by reason, and which tenant sends most tokens.",
                "Fleet overview: are all replicas up, and is each at its limit?",
            ),
            (
                "Add replicas.",
                "Speak with the tenant that grew, or set its quota.",
                "Mend what took replicas away.",
            ),
            ("pool",),
        ),
        Alert(
            "AbortSpike",
            "llm:pool_gave_up_ratio:30m > 0.1\nand llm:pool_gave_up_ratio:30m > 3 * "
            "llm:pool_gave_up_ratio:1d\n"
            f"and llm:pool_judged_requests:increase30m >= {ENOUGH}",
            "10m",
            "ticket",
            "serving",
            "users",
            "Clients of pool {{ $labels.pool }} hang up on {{ $value | humanizePercentage }} of their "
            "requests, over three "
            "times as often as in the last day.",
            "gateway",
            "Clients close the connection before the answer ends. Engine metrics hardly show it: an "
            "aborted request is "
            "in no latency histogram, so latency can look better just then.",
            (
                "Does TTFT or queue time rise at the same moment? Then clients lose patience.",
                "One tenant only? Then its client's time-out may have been shortened.",
            ),
            ("If latency is the cause, follow GoodputBurnFast.", "Otherwise ask the tenant."),
            ("pool",),
        ),
        Alert(
            "PoolSaturated",
            f"min {by(*BY_POOL)} (llm:waiting_requests) > 0\nand {share} > 1 - llm:pool_objective_ratio",
            "10m",
            "ticket",
            "serving",
            "queue",
            "Every replica of pool {{ $labels.pool }} has requests waiting ({{ $value }} at least), "
            "and the objective is "
            "missed: the pool is too small for its load.",
            "pool",
            "No replica has room: requests wait in every engine while goodput is under its objective. "
            "Routing cannot help.",
            _WHERE,
            ("Add replicas or raise the autoscaler's maximum.", "Until then let admission enforce."),
            ("pool",),
        ),
    )


def slow_threshold(burn: Burn) -> str:
    return f"llm:pool_burn_threshold_ratio:{burn.name}"


def _burn(name: str, burn: Burn, wait: str, severity: str) -> Alert:
    threshold = slow_threshold(burn)
    ((long, short),) = burn.windows
    return Alert(
        name,
        f"llm:pool_bad_ratio:{long} > {threshold}\nand llm:pool_bad_ratio:{short} > {threshold}\n"
        f"and llm:pool_judged_requests:increase{long} >= {ENOUGH}",
        wait,
        severity,  # type: ignore[arg-type]
        "serving",
        "users",
        f"{{{{ $value | humanizePercentage }}}} of the requests to pool {{{{ $labels.pool }}}} were "
        f"not good in the last {long}, "
        f"and it goes on (objective {_OBJECTIVE}): the budget burns {burn.factor:g} times too fast.",
        "pool",
        f"{_MISSED} Seen over {long} and still over {short}; the factor is {burn.factor:g}.",
        _WHERE,
        _HELP,
        ("pool",),
    )
