"""For each alert: series on which it must fire, and series, nearly the same, on which it must not.

Series are written as promtool reads them. Engines, exporters, daemon and gateway are given by their own
metrics: the recording rules in between are part of what is tested.
"""

# ruff: noqa: E501 - a table whose rows say more side by side

from typing import NamedTuple

ENGINE = 'job="llm-engine",instance="a:8000",pool="chat",node="n1"'
OTHER = 'job="llm-engine",instance="b:8000",pool="chat",node="n2"'
MODEL = 'model_name="m",engine="0"'
GPU = 'job="llm-gpu",instance="n1:9400",node="n1",gpu="0",UUID="GPU-1",modelName="H100",Hostname="n1"'
FAULT = 'node="n1",UUID="GPU-1",check="xid",fault_class="hardware-fatal",remedy="drain-and-reset"'
DAEMON = 'job="controlplane",instance="cp:9090"'
DAEMON_2 = 'job="controlplane",instance="cp-2:9090"'
GATEWAY = 'job="controlplane-gateway",instance="gw:8080"'

Series = dict[str, str]


class Case(NamedTuple):
    """`fires` at minute `at`; each of `quiet`, by why, does not at any time up to then."""

    fires: Series
    quiet: dict[str, Series]
    at: int = 30
    step: str = "30s"
    count: int = 1


def up(value: str = "1x80", labels: str = ENGINE) -> Series:
    return {f"up{{{labels}}}": value}


def gauge(name: str, values: str, labels: str = ENGINE) -> Series:
    return {f"{name}{{{labels},{MODEL}}}": values}


def engine(
    labels: str = ENGINE,
    *,
    running: str = "8x80",
    waiting: str = "0x80",
    kv: str = "0.5x80",
    made: str = "0+3000x80",
    taken: str = "0+9000x80",
    finished: str = "0+30x80",
    preempted: str = "0x80",
) -> Series:
    """A vLLM page that is well, but for what is said."""
    return {
        **up("1x80", labels),
        **gauge("vllm:num_requests_running", running, labels),
        **gauge("vllm:num_requests_waiting", waiting, labels),
        **gauge("vllm:kv_cache_usage_perc", kv, labels),
        **gauge("vllm:generation_tokens_total", made, labels),
        **gauge("vllm:prompt_tokens_total", taken, labels),
        **gauge("vllm:num_preemptions_total", preempted, labels),
        f'vllm:request_success_total{{{labels},{MODEL},finished_reason="stop"}}': finished,
    }


def tgi() -> Series:
    """Its page while one answer takes long."""
    return {
        **up(),
        f"tgi_batch_current_size{{{ENGINE}}}": "1x80",
        f"tgi_request_generated_tokens_sum{{{ENGINE}}}": "500x80",
        f"tgi_request_input_length_sum{{{ENGINE}}}": "500x80",
    }


def sglang() -> Series:
    """The same of SGLang."""
    return {
        **up(),
        **gauge("sglang:num_running_reqs", "4x80"),
        **gauge("sglang:generation_tokens_total", "500x80"),
        **gauge("sglang:prompt_tokens_total", "500x80"),
    }


def ended(
    finished: str, good: str, failed: str = "0x2000", shed: str = "0x2000", gave_up: str = "0x2000"
) -> Series:
    """A gateway's counts of one pool, and the pool's objective."""
    where = f'{GATEWAY},pool="chat"'
    return {
        f"controlplane_gateway_finished_requests_total{{{where}}}": finished,
        f"controlplane_gateway_good_requests_total{{{where}}}": good,
        f"controlplane_gateway_failed_requests_total{{{where}}}": failed,
        f'controlplane_gateway_shed_requests_total{{{where},reason="queue_full"}}': shed,
        f"controlplane_gateway_gave_up_requests_total{{{where}}}": gave_up,
        **objective("0.95"),
    }


def objective(ratio: str) -> Series:
    return {f'controlplane_pool_objective_ratio{{{DAEMON},pool="chat"}}': f"{ratio}x2000"}


def windows(judged: str, good: str, ratio: str = "0.95") -> Series:
    """The same of a daemon without a gateway: windows of 60 s."""
    where = f'{DAEMON},pool="chat"'
    return {
        f"controlplane_pool_window_judged_requests{{{where}}}": judged,
        f'controlplane_pool_window_good_requests{{{where},bound="point"}}': good,
        f"controlplane_pool_goodput_window_seconds{{{where}}}": "60x2000",
        **objective(ratio),
    }


def daemon(name: str, values: str, labels: str = "") -> Series:
    return {f"controlplane_{name}{{{DAEMON}{',' * bool(labels)}{labels}}}": values}


def scaled(need: str, reason: str) -> Series:
    """A pool that is asked to have four replicas."""
    return {
        **daemon("pool_desired_replicas", "4x80", POOL),
        **daemon("pool_needed_replicas", need, POOL),
        **daemon("pool_scaling_info", "1x80", f'{POOL},law="work",reason="{reason}"'),
    }


def gateway(name: str, values: str, labels: str = "") -> Series:
    return {f"controlplane_gateway_{name}{{{GATEWAY}{',' * bool(labels)}{labels}}}": values}


def dcgm(name: str, values: str, labels: str = GPU) -> Series:
    return {f"DCGM_FI_DEV_{name}{{{labels}}}": values}


HOUR, DAY = 60, 24 * 60
POOL = 'pool="chat"'
REPLICA = 'pool="chat",replica="a"'
WELL = ended("0+600x2000", "0+594x2000")

CASES: dict[str, Case] = {
    "GoodputBurnFast": Case(
        ended("0+600x2000", "0+240x2000"),  # 60 % bad; 14.4 budgets would be 72 %: capped at 52.5 %
        {
            "half of that is slow's to tell": ended("0+600x2000", "0+420x2000"),
            "low traffic": ended("0 1 2 3 4 5 6 7 8 9x1990", "0x2000"),
            "over again: the short window is well": ended("0+600x2000", "0+60x50 3600+600x1950"),
            "no traffic": ended("0x2000", "0x2000"),
            "well": WELL,
        },
        at=65,
        step="1m",
    ),
    "GoodputBurnSlow": Case(
        ended("0+600x2000", "0+390x2000"),
        {"well": WELL, "twice the budget": ended("0+600x2000", "0+540x2000"), "low traffic": ended("0+0.01x2000", "0x2000")},
        at=6 * HOUR + 60,
        step="2m",
    ),
    "GoodputBurnSteady": Case(
        ended("0+600x2000", "0+490x2000"),
        {"well": WELL, "twice the budget": ended("0+600x2000", "0+540x2000"), "low traffic": ended("0+0.01x2000", "0x2000")},
        at=DAY + 120,
        step="10m",
    ),
    "GoodputBudgetSpent": Case(
        ended("0+600x2000", "0+560x2000"),
        {"well": WELL, "low traffic": ended("0+0.01x2000", "0x2000")},
        at=3 * DAY,
        step="10m",
    ),
    "GoodputMissedAtLowTraffic": Case(
        ended("0+1x2000", "0x2000"),  # 6 an hour, all bad
        {"well": ended("0+1x2000", "0+1x2000"), "plenty of traffic: the burn alerts tell": ended("0+100x2000", "0x2000")},
        at=DAY + 120,
        step="10m",
    ),
    "PoolDown": Case(
        {**up("1x4 0x80"), **up("1x2 0x80", OTHER)},
        {"one is left": {**up("1x4 0x80"), **up("1x80", OTHER)}, "no pool is named": up("0x80", 'job="llm-engine",instance="a"')},
        at=10,
    ),
    "RequestsFailing": Case(
        ended("0+50x100", "0+50x100", failed="0+5x100"),
        {"few": ended("0+0.05x100", "0x100", failed="0+0.05x100"), "a tenth of that": ended("0+50x100", "0+50x100", failed="0+0.5x100")},
    ),
    "RequestsShed": Case(
        ended("0+50x100", "0+50x100", shed="0+10x100"),
        {"few": ended("0+0.05x100", "0x100", shed="0+0.05x100"), "a tenth of that": ended("0+50x100", "0+50x100", shed="0+1x100")},
    ),
    "AbortSpike": Case(
        ended("0+600x2000", "0+600x2000", gave_up="0+6x100 600+300x100"),
        {
            "as ever": ended("0+600x2000", "0+600x2000", gave_up="0+300x2000"),
            "low traffic": ended("0+0.1x2000", "0x2000", gave_up="0x100 0+0.2x100"),
        },
        at=18 * HOUR,
        step="10m",
    ),
    "PoolSaturated": Case(
        {**engine(waiting="5x80"), **engine(OTHER, waiting="2x80"), **ended("0+50x80", "0+40x80")},
        {
            "one has room": {**engine(waiting="5x80"), **engine(OTHER, waiting="0x80"), **ended("0+50x80", "0+40x80")},
            "the objective is met": {**engine(waiting="5x80"), **ended("0+50x80", "0+49x80")},
        },
    ),
    "EngineDown": Case(up("1x4 0x80"), {"a blink": up("1x4 0 0 1x80"), "gone from discovery": up("1x4 stale")}, at=8),
    "EngineTargetsMissing": Case({}, {"there are some": up("0x80")}),
    "EngineRestartLoop": Case(
        {"process_start_time_seconds{" + ENGINE + "}": "1x10 2x10 3x10 4x40", **up()},
        {
            "one restart": {"process_start_time_seconds{" + ENGINE + "}": "1x20 2x60", **up()},
            "no process metrics, counters grow": engine(),
        },
        at=25,
    ),
    "AdmissionStalled": Case(
        engine(running="0x80", waiting="3x80"), {"works": engine(waiting="3x80"), "idle": engine(running="0x80")}, at=10
    ),
    "GenerationStalled": Case(
        engine(made="500x80", taken="500x80"),
        {
            "prefills": engine(made="500x80"),
            "idle": engine(running="0x80", made="500x80", taken="500x80"),
            "one long answer of an engine that counts at the end": tgi(),
            "long answers, and their gaps": {**sglang(), **gauge("sglang:inter_token_latency_seconds_count", "0+300x80")},
        },
        at=10,
    ),
    "ReplicaWedged": Case(
        daemon("replica_condition", "1x80", f'{REPLICA},kind="wedged"'),
        {"something else": daemon("replica_condition", "1x80", f'{REPLICA},kind="saturated"')},
    ),
    "ReplicaOutOfRotation": Case(
        daemon("replica_out_of_rotation", "1x80", f'{REPLICA},reason="unreachable",in_force="true"'),
        {
            "only observed": daemon("replica_out_of_rotation", "1x80", f'{REPLICA},reason="unreachable",in_force="false"'),
            "told by another alert": daemon("replica_out_of_rotation", "1x80", f'{REPLICA},reason="wedged",in_force="true"'),
            "on its way": daemon("replica_out_of_rotation", "1x80", f'{REPLICA},reason="terminating",in_force="true"'),
        },
    ),
    "ReplicaNotStarted": Case(
        daemon("replica_out_of_rotation", "1x160", f'{REPLICA},reason="starting",in_force="true"'),
        {
            "loads for 20 minutes": daemon("replica_out_of_rotation", "1x40", f'{REPLICA},reason="starting",in_force="true"'),
            "out for another reason": daemon("replica_out_of_rotation", "1x160", f'{REPLICA},reason="errors",in_force="true"'),
        },
        at=60,
    ),
    "QueueGrowing": Case(
        engine(waiting="10+1x80"),
        {"stands still": engine(waiting="50x80"), "short": engine(waiting="0+0.05x80"), "shrinks": engine(waiting="90-1x80")},
    ),
    "KVSaturated": Case(
        engine(kv="0.99x80", waiting="2x80"), {"nobody waits": engine(kv="0.99x80"), "90 %": engine(kv="0.9x80", waiting="2x80")}
    ),
    "PreemptionHigh": Case(
        engine(preempted="0+1x80"),
        {"one in a thousand": engine(preempted="0+0.03x80"), "hardly any traffic": engine(preempted="0+1x80", finished="0+0.5x80")},
    ),
    "EngineErrors": Case(
        {
            f'http_requests_total{{{ENGINE},method="POST",handler="/v1/completions",status="5xx"}}': "0+10x80",
            f'http_requests_total{{{ENGINE},method="POST",handler="/v1/completions",status="2xx"}}': "0+90x80",
        },
        {
            "the clients' own": {
                f'http_requests_total{{{ENGINE},method="POST",handler="/v1/completions",status="4xx"}}': "0+10x80",
                f'http_requests_total{{{ENGINE},method="POST",handler="/v1/completions",status="2xx"}}': "0+90x80",
            },
            "a stranger's": {'http_requests_total{job="web",method="POST",status="5xx"}': "0+10x80"},
            "one": {f'http_requests_total{{{ENGINE},method="POST",status="5xx"}}': "0+0.5x80"},
        },
    ),
    "ReplicaImbalance": Case(
        {**engine(running="39x80"), **engine(OTHER, running="1x80")},
        {"even": {**engine(running="20x80"), **engine(OTHER, running="18x80")}, "few": {**engine(running="4x80"), **engine(OTHER, running="0x80")}},
    ),
    "PrefixHitDrop": Case(
        {
            **engine(taken="0+90000x2000"),
            **gauge("vllm:prefix_cache_queries_total", "0+90000x2000"),
            **gauge("vllm:prefix_cache_hits_total", "0+60000x400 24060000+9000x1600"),
        },
        {
            "as ever": {
                **engine(taken="0+90000x2000"),
                **gauge("vllm:prefix_cache_queries_total", "0+90000x2000"),
                **gauge("vllm:prefix_cache_hits_total", "0+60000x2000"),
            },
        },
        at=500,
        step="1m",
    ),
    "EngineMetricsMissing": Case(
        up(), {"all there": engine(), "down": up("0x80"), "underscores": {k.replace("vllm:", "vllm_"): v for k, v in engine().items()}}, count=2
    ),
    "PoolReplicasMissing": Case(
        {**daemon("pool_replicas", "3x80", POOL), **daemon("pool_up_replicas", "2x80", POOL)},
        {
            "all up": {**daemon("pool_replicas", "3x80", POOL), **daemon("pool_up_replicas", "3x80", POOL)},
            "one loads": {**daemon("pool_replicas", "3x80", POOL), **daemon("pool_up_replicas", "2x10 3x70", POOL)},
        },
    ),
    "ReplicaCountFlapping": Case(
        daemon("pool_replicas", "3 4 3 4 3 4 3 4 3 4 3 4x70", POOL), {"grows": daemon("pool_replicas", "3x10 4x10 5x60", POOL)}, at=10
    ),
    "ReplicaBoundBinds": Case(
        scaled("5.6x80", "bound"),
        {
            "they are asked for": scaled("3.9x80", "steady"),
            "the law waits": scaled("5.6x80", "turning"),
            "the least binds": scaled("0.4x80", "bound"),
            "the need is not known": scaled("_x80", "bound"),
            "for a moment": scaled("5.6x10 3.9x70", "bound"),
        },
    ),
    "ScalingBlind": Case(
        {**scaled("3.9x5 _x75", "held"), **ended("0+50x80", "0+50x80")},
        {
            "the need is known": {**scaled("3.9x80", "steady"), **ended("0+50x80", "0+50x80")},
            "it never was": {**scaled("_x80", "held"), **ended("0+50x80", "0+50x80")},
            "it is again": {**scaled("3.9x5 _x20 3.9x55", "held"), **ended("0+50x80", "0+50x80")},
            "no traffic": {**scaled("3.9x5 _x75", "held"), **ended("7x80", "7x80")},
            "low traffic": {**scaled("3.9x5 _x75", "held"), **ended("0 1 2 3 4 5x80", "0 1 2 3 4 5x80")},
            "not scaled": ended("0+50x80", "0+50x80"),
        },
    ),
    "GpuFatalXid": Case(
        dcgm("XID_ERRORS", "0x10 79x70"),
        {"an application's": dcgm("XID_ERRORS", "0x10 31x70"), "none": dcgm("XID_ERRORS", "0x80")},
        at=10,
    ),
    "GpuXid": Case(
        dcgm("XID_ERROR", "0x10 94x70"),
        {"an application's": dcgm("XID_ERROR", "0x10 13x70"), "fatal: another alert": dcgm("XID_ERROR", "79x80")},
        at=10,
    ),
    "GpuMemoryFault": Case(
        dcgm("ROW_REMAP_FAILURE", "1x80"),
        {"none": dcgm("ROW_REMAP_FAILURE", "0x80"), "old errors": dcgm("ECC_DBE_VOL_TOTAL", "7x80")},
    ),
    "GpuResetNeeded": Case(dcgm("ROW_REMAP_PENDING", "1x80"), {"none": dcgm("ROW_REMAP_PENDING", "0x80")}),
    "GpuThrottledByHeat": Case(
        dcgm("CLOCK_THROTTLE_REASONS", "96x80"),  # 0x20 and 0x40
        {"power cap and idle": dcgm("CLOCKS_EVENT_REASONS", "5x80"), "power brake alone": dcgm("CLOCKS_EVENT_REASONS", "128x80")},
    ),
    "GpuPowerBrake": Case(
        dcgm("CLOCKS_EVENT_REASONS", "384x80"),  # 0x80, with the display bit 0x100 set
        {"the display bit alone": dcgm("CLOCKS_EVENT_REASONS", "256x80"), "a flicker": dcgm("CLOCKS_EVENT_REASONS", "0x10 128 0x60")},
    ),
    "GpuHot": Case(
        dcgm("GPU_TEMP_CELSIUS", "92x80"),
        {"warm": dcgm("GPU_TEMP", "84x80"), "blank": dcgm("GPU_TEMP", "9223372036854775794x80")},
    ),
    "GpuLinkDegraded": Case(
        {**dcgm("PCIE_LINK_WIDTH", "8x80"), **dcgm("PCIE_MAX_LINK_WIDTH", "16x80")},
        {"whole": {**dcgm("PCIE_LINK_WIDTH", "16x80"), **dcgm("PCIE_MAX_LINK_WIDTH", "16x80")}, "few replays": dcgm("PCIE_REPLAY_COUNTER", "0+1x80")},
    ),
    "GpuMissing": Case(
        {**dcgm("GPU_TEMP", "40x80"), **dcgm("GPU_TEMP", "40x20 stale", GPU.replace("GPU-1", "GPU-2").replace('gpu="0"', 'gpu="1"'))},
        {"all there": dcgm("GPU_TEMP", "40x80"), "the exporter is away": dcgm("GPU_TEMP", "40x20 stale")},
    ),
    "GpuExporterDown": Case(up("0x80", 'job="llm-gpu",instance="n1:9400",node="n1"'), {"up": up("1x80", 'job="llm-gpu",instance="n1:9400"')}),
    "GpuFaultStands": Case(
        daemon("gpu_fault", "1x80", f'{FAULT},stage="wanted"'),
        {
            "placed in time": {
                **daemon("gpu_fault", "1x20 stale", f'{FAULT},stage="wanted"'),
                **daemon("gpu_fault", "_x20 1x60", f'{FAULT},stage="placed"'),
            },
            "only told": daemon("gpu_fault", "1x80", 'node="n1",UUID="GPU-1",check="xid",remedy="note",stage="noted"'),
        },
    ),
    "NodeQuarantined": Case(daemon("node_quarantined", "1x80", 'node="n1"'), {"in the fleet": daemon("node_quarantined", "0x80", 'node="n1"')}),
    "NodeDown": Case(
        {**up("1x10 0x70"), **up("1x10 0x70", 'job="llm-gpu",instance="n1:9400",node="n1"')},
        {
            "the exporter answers": {**up("1x10 0x70"), **up("1x80", 'job="llm-gpu",instance="n1:9400",node="n1"')},
            "only one target there: EngineDown tells": up("1x10 0x70"),
            "a new node whose engines load": {**up("0x40 1x40"), **up("0x40 1x40", OTHER.replace("n2", "n1"))},
        },
    ),
    "ControlPlaneDown": Case(up("0x80", DAEMON), {"a second one answers": {**up("0x80", DAEMON), **up("1x80", DAEMON.replace("cp", "cp2"))}}),
    "ControlPlaneStuck": Case(
        {**daemon("last_tick_timestamp_seconds", "0+30x10 300x70"), **daemon("tick_interval_seconds", "5x80")},
        {"ticks": {**daemon("last_tick_timestamp_seconds", "0+30x80"), **daemon("tick_interval_seconds", "5x80")}},
    ),
    "ControlPlaneBlind": Case(
        {**daemon("replica_state", "1x80", f'{REPLICA},state="unreachable"'), **daemon("pool_replicas", "1x80", POOL)},
        {
            "one of three": {**daemon("replica_state", "1x80", f'{REPLICA},state="unreachable"'), **daemon("pool_replicas", "3x80", POOL)},
            "it loads its model": {
                **daemon("replica_state", "1x80", f'{REPLICA},state="unreachable"'),
                **daemon("replica_out_of_rotation", "1x80", f'{REPLICA},reason="starting",in_force="true"'),
                **daemon("pool_replicas", "1x80", POOL),
            },
        },
    ),
    "ControlPlaneScrapesFailing": Case(
        {**daemon("scrapes_total", "0+10x80", 'result="ok",reason=""'), **daemon("scrapes_total", "0+10x80", 'result="failed",reason="timeout"')},
        {"hardly": {**daemon("scrapes_total", "0+100x80", 'result="ok",reason=""'), **daemon("scrapes_total", "0+1x80", 'result="failed",reason="timeout"')}},
    ),
    "ControlPlaneLate": Case(
        {**daemon("misfires_total", "0+2x80"), **daemon("ticks_total", "0+6x80")},
        {"one": {**daemon("misfires_total", "0x20 1x60"), **daemon("ticks_total", "0+6x80")}},
    ),
    "JournalFailing": Case(daemon("journal_failures_total", "0+1x80"), {"none": daemon("journal_failures_total", "0x80")}),
    "ControlPlaneHeld": Case(daemon("hold_active", "1x200"), {"short": daemon("hold_active", "1x60 0x140"), "none": daemon("hold_active", "0x200")}, at=90),
    "ControlPlaneLeaderless": Case(
        {**daemon("leading", "1x20 0x60"), f"controlplane_leading{{{DAEMON_2}}}": "0x80"},
        {
            "the other leads": {**daemon("leading", "1x20 0x60"), f"controlplane_leading{{{DAEMON_2}}}": "0x20 1x60"},
            "a hand-over": {**daemon("leading", "1x20 0x60"), f"controlplane_leading{{{DAEMON_2}}}": "0x22 1x58"},
        },
    ),
    "ControlPlaneTwoLeaders": Case(
        {**daemon("leading", "1x80"), f"controlplane_leading{{{DAEMON_2}}}": "0x20 1x60"},
        {
            "one": {**daemon("leading", "1x80"), f"controlplane_leading{{{DAEMON_2}}}": "0x80"},
            "read at two moments": {**daemon("leading", "1x22 0x60"), f"controlplane_leading{{{DAEMON_2}}}": "0x20 1x60"},
        },
    ),
    "GatewayDown": Case(up("0x80", GATEWAY), {"up": up("1x80", GATEWAY)}),
    "GatewayUnsteered": Case(gateway("control_age_seconds", "0+30x80"), {"steered": gateway("control_age_seconds", "2x80")}),
    "GatewayBreakerOpen": Case(
        gateway("replica_breaker", "1x80", f'{REPLICA},state="open"'), {"closed": gateway("replica_breaker", "1x80", f'{REPLICA},state="closed"')}
    ),
    "GatewayOverloaded": Case(
        gateway("queue_overloaded", "1x80", 'pool="chat",class="batch"'), {"now and then": gateway("queue_overloaded", "1x10 0x5 1x10 0x55", 'pool="chat",class="batch"')}
    ),
    "GatewayFilesShort": Case(
        {**gateway("client_connections", "500x80"), **gateway("engine_connections", "400x80"), **gateway("limit_files", "1024x80")},
        {"room": {**gateway("client_connections", "100x80"), **gateway("engine_connections", "100x80"), **gateway("limit_files", "1024x80")}},
    ),
    "RuleEvaluationSlow": Case(
        {
            'prometheus_rule_group_last_duration_seconds{job="prometheus",rule_group="/etc/r.yaml;llm-gpu"}': "14x80",
            'prometheus_rule_group_interval_seconds{job="prometheus",rule_group="/etc/r.yaml;llm-gpu"}': "15x80",
        },
        {
            "somebody else's": {
                'prometheus_rule_group_last_duration_seconds{job="prometheus",rule_group="/etc/r.yaml;node"}': "14x80",
                'prometheus_rule_group_interval_seconds{job="prometheus",rule_group="/etc/r.yaml;node"}': "15x80",
            }
        },
    ),
}  # fmt: skip

MORE: dict[str, dict[str, Case]] = {
    "EngineDown": {
        "for an hour": Case(up("1x10 0x140"), {"taken away": up("1x4 stale")}, at=60),
        "never answered": Case(up("_x10 0x100"), {"loads its model for 20 minutes": up("_x10 0x40 1x60")}, at=40),
    },
    "GoodputBurnFast": {
        "without a gateway, from the daemon's windows": Case(windows("60x2000", "20x2000"), {"well": windows("60x2000", "59x2000")}, at=65, step="1m"),
        "an objective of 50 %, of which 14.4 budgets would be 720 %": Case(
            {**windows("60x2000", "10x2000", "0.5")}, {"just missed": windows("60x2000", "25x2000", "0.5")}, at=65, step="1m"
        ),
        "an objective of 99.9 %": Case(
            windows("600x2000", "590x2000", "0.999"), {"within": windows("1000x2000", "999x2000", "0.999")}, at=65, step="1m"
        ),
        "the daemon is away, the objective is remembered": Case(
            {**ended("0+600x2000", "0+240x2000"), f'controlplane_pool_objective_ratio{{{DAEMON},pool="chat"}}': "0.95x5 stale"},
            {},
            at=65,
            step="1m",
        ),
    },
    "EngineRestartLoop": {
        "counters start anew, and there is no start time": Case(engine(made="0+900x9 0+900x9 0+900x9 0+900x50"), {}, at=25),
    },
    "EngineMetricsMissing": {
        "only the KV usage was renamed": Case(
            {k.replace("kv_cache_usage_perc", "kv_usage_renamed"): v for k, v in engine().items()}, {}, at=30
        ),
    },
    "GpuMemoryFault": {"new double-bit errors": Case(dcgm("ECC_DBE_VOL_TOTAL", "0x20 2x60"), {}, at=20)},
    "GpuThrottledByHeat": {
        "by the counter of nanoseconds": Case(dcgm("THERMAL_VIOLATION", "0+15000000000x80"), {"1 %": dcgm("THERMAL_VIOLATION", "0+300000000x80")})
    },
    "GpuHot": {
        "by the margin, on a page with `hostname`": Case(dcgm("GPU_TEMP_MARGIN_CELSIUS", "1x80", GPU.replace("Hostname", "hostname")), {})
    },
    "GenerationStalled": {
        "SGLang's gaps stand still too": Case(
            {**sglang(), **gauge("sglang:inter_token_latency_seconds_count", "300x80")}, {}, at=10
        ),
    },
    "GpuFatalXid": {
        "after a day and more": Case(
            dcgm("XID_ERRORS", "0x1900 79x300"),
            {
                "over again after a day: the exporter has another address since": {
                    **dcgm("XID_ERRORS", "79x900 stale"),
                    **dcgm("XID_ERRORS", "_x900 79x1300", GPU.replace("n1:9400", "10.0.0.9:9400")),
                },
                "over again after a day: Prometheus was away just then": dcgm("XID_ERRORS", "79x530 _x30 79x1700"),
            },
            at=1980,
            step="1m",
        ),
    },
    "GpuXid": {
        "four MIG instances of one card are one GPU": Case(
            {
                key: "0x10 94x70"
                for i in range(4)
                for key in dcgm("XID_ERRORS", "", f'{GPU},GPU_I_ID="{i}",GPU_I_PROFILE="1g.10gb"')
            },
            {},
            at=10,
        )
    },
}  # fmt: skip
