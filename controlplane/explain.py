"""A configuration in words: what it would watch, act on, remember; and what is doubtful about it."""

from bisect import bisect_left
from collections.abc import Collection

from controlplane.config import Config
from controlplane.daemon.settings import ANY_POOL
from controlplane.gateway.settings import GatewayProcessSettings
from controlplane.signals.decision import Mode
from controlplane.signals.units import duration_text
from controlplane.sources.settings import TargetSettings
from controlplane.sources.urls import shown

# Upper bounds of vLLM's histograms in seconds, without options for other ones. An objective on one of them
# can be read exactly; between two of them only the two are proven. Other engines have others (SGLang's TTFT
# has 2 and 4 s): what the pages of a running fleet show is told by the tick.
_TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TPOT_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip


def off_edge(config: Config) -> list[str]:
    """A sentence for each objective that lies between two bucket edges of the engines' histograms."""
    sentences = []
    for name, pool in config.pools.items():
        for limit, value, edges in (
            ("ttft", pool.slo.ttft, _TTFT_EDGES),
            ("tpot", pool.slo.tpot, _TPOT_EDGES),
        ):
            if value not in edges:
                i = bisect_left(edges, value)
                near = " and ".join(duration_text(edge) for edge in edges[max(0, i - 1) : i + 1])
                sentences.append(
                    f"pool {name}: {limit} {duration_text(value)} lies between bucket edges of vLLM "
                    f"(next to it: {near}): goodput will be a wide interval"
                )
    return sentences


def explanation(config: Config) -> list[str]:
    """What `run` and `gateway` would do with this configuration, a line each."""
    daemon, policy = config.daemon, config.policy
    lines = []
    for name, pool in config.pools.items():
        slo = pool.slo
        lines.append(f"pool {name}: {_targets(pool.targets)}")
        lines.append(
            f"  objective: {100 * slo.objective:.4g}% of requests "
            f"with TTFT at most {duration_text(slo.ttft)} and TPOT at most {duration_text(slo.tpot)}"
        )
        if pool.scale is not None:
            lines.append(
                f"  replicas: from {pool.scale.min} to {pool.scale.max}, by the law {pool.scale.law.law}"
            )
    if config.prometheus is not None:
        url, selector = shown(config.prometheus.url), config.prometheus.selector
        lines.append(f"Prometheus at {url} is asked for engines with {{{selector}}}")
    lines += [f"gateway {shown(gateway.url)} tells how requests ended" for gateway in config.gateways]
    lines += _cluster(config)
    lines += _boundary(config)
    lines += _other_gateways(config)
    lines += _in_cluster(config)
    lines += _gpus(config)
    lines.append(
        f"each engine is scraped every {duration_text(config.scrape.interval)} "
        f"(timeout {duration_text(config.scrape.timeout)}); a reading older than "
        f"{duration_text(policy.stale_after)} is unknown; a tick decides every {duration_text(daemon.tick)}"
    )
    lines.append(_modes(config))
    lines.append(f"hold: while {daemon.hold_path} exists nothing is acted on")
    lines.append(
        f"journal: {daemon.journal}, samples for {duration_text(daemon.keep_samples)} and at most "
        f"{daemon.journal_limit.human_readable()}, decisions and events for "
        f"{duration_text(daemon.keep_decisions)}; overrides: {daemon.overrides_path}"
    )
    token = config.api.token_file or config.api.token_env
    writing = f"orders with the token of {token}" if token else "reading only: no token is configured"
    lines.append(f"API: {config.api.listen}, {writing}")
    lines += _gateway(config.gateway)
    return lines


def _gateway(settings: GatewayProcessSettings) -> list[str]:
    if not settings.model_fields_set:  # another process, of which nothing is said here
        return []
    if settings.admission.mode is Mode.ENFORCE:
        does = "refuses what cannot finish in time"
    else:
        does = "refuses nothing and counts what it would refuse (observe)"
    tls = settings.tls
    kept = "plain" if tls is None else "TLS" if tls.client_ca_file is None else "TLS with client certificates"
    keyed = sum(bool(tenant.keys) for tenant in settings.tenants.values())
    who = (
        f"{keyed} {'tenant is' if keyed == 1 else 'tenants are'} known by keys"
        if keyed
        else "anybody may ask"
    )
    steered = (
        "by the holder of its token" if settings.control.token is not None else "by nobody: it has no token"
    )
    lines = [
        f"`controlplane gateway`: {settings.listen} ({kept}), {does}; {who}",
        f"  it is steered at {settings.control.listen} {steered}",
    ]
    if settings.redis is not None:
        lines.append(f"  fairness and quotas are shared through Redis at {settings.redis.address}")
    return lines


def _boundary(config: Config) -> list[str]:
    pair = config.policy.pair
    if pair is None:
        return []
    modes = {config.daemon.mode("gateway", pool) for pool in (pair.short, pair.long)}
    if not config.gateways:
        who = "nobody moves that boundary, for no gateway tells what it sees"
    elif modes == {Mode.ENFORCE}:
        who = "the daemon moves that boundary"
    else:
        who = "the daemon says where that boundary should be, and leaves it (observe)"
    parted = f"requests of up to {pair.boundary:,} tokens go to pool {pair.short}, longer ones to {pair.long}"
    return [f"{parted}; {who}"]


def _other_gateways(config: Config) -> list[str]:
    lines = []
    if config.envoy is not None:
        where = ", ".join(map(shown, config.envoy.admin))
        for cluster in config.envoy.clusters:
            whose = f"pool {cluster.pool}" if cluster.pool else f"replica {cluster.replica}"
            lines.append(f"Envoy at {where} gets the limit of {whose} for its cluster {cluster.name}")
    if config.webhook is not None:
        pools = config.webhook.pools
        whose = "all pools" if pools is None else f"pool {', '.join(pools)}"
        lines.append(f"{shown(config.webhook.url)} is told the limits of {whose}")
    return lines


def _cluster(config: Config) -> list[str]:
    settings = config.kubernetes
    if settings is None:
        return []
    whose = "the pod's service account" if settings.kubeconfig is None else str(settings.kubeconfig)
    lines = [f"cluster: as {whose}; {'nodes are watched' if settings.nodes else 'nodes are not watched'}"]
    if settings.lease is not None:
        lease = settings.lease
        lines.append(
            f"of several daemons one acts: the holder of the Lease {lease.name}, which is replaced "
            f"when it is silent for {duration_text(lease.duration)}"
        )
    return lines


def _in_cluster(config: Config) -> list[str]:
    lines = []
    for field in () if config.objects is None else config.objects.fields:
        whose = f"pool {field.pool}" if field.pool else f"replica {field.replica}"
        lines.append(f"{field.named} gets the limit of {whose}")
    for one in () if config.scale is None else config.scale.workloads:
        pool = config.pools.get(one.pool)
        law = None if pool is None else pool.scale
        why = "" if law is not None else ", but nobody says how many: the pool has no section scale"
        lines.append(f"{one.named} gets as many replicas as pool {one.pool} should have{why}")
    if config.kubernetes is not None:
        out = [name for name in config.pools if config.daemon.mode("pod", name) is Mode.ENFORCE]
        pods = f"pods of pool {', '.join(out)} that fail are" if out else "no pod is"
        lines.append(f"{pods} taken out of its Service")
    return lines


def _gpus(config: Config) -> list[str]:
    settings, limits = config.gpus, config.policy.quarantine
    seen = []
    for name, node in settings.nodes.items():
        sources = (("agent", node.agent), ("exporter", node.dcgm), ("read here", node.local))
        seen.append(f"{name} ({', '.join(what for what, there in sources if there)})")
    for what, pods in (("exporters", settings.dcgm_pods), ("node agents", settings.agent_pods)):
        if pods is not None:
            seen.append(f"those with {what} in the pods {pods.selector}")
    if not seen:
        return []
    if config.daemon.mode("node", None) is not Mode.ENFORCE:
        done = "is told and not marked (observe)"
    elif config.kubernetes is None:
        done = "is told and not marked: there is no section kubernetes"
    else:
        done = {"taint": "is tainted", "cordon": "is cordoned", "both": "is tainted and cordoned"}[
            limits.mark
        ]
    floor = f" ({limits.floor_nodes} in any case)" if limits.floor_nodes else ""
    return [
        f"GPUs of nodes: {', '.join(seen)}; asked every {duration_text(settings.interval)}",
        f"a node with a broken GPU {done}; at most {limits.max_share:.0%} of the nodes{floor} may be out, "
        f"and {limits.max_per_hour} are taken within an hour",
    ]


def _targets(targets: TargetSettings | None) -> str:
    if targets is None:
        return "its engines are those that Prometheus names"
    if targets.static is not None:
        return f"engines {', '.join(map(shown, targets.static))}"
    if targets.kubernetes is not None:
        pods = targets.kubernetes
        return f"engines in the pods {pods.selector}" + (f" of {pods.namespace}" if pods.namespace else "")
    if targets.file_sd is not None:
        return f"engines from the files {', '.join(targets.file_sd)}"
    return f"engines from the DNS name {targets.dns} ({targets.record})"


def _modes(config: Config) -> str:
    enforced = [
        f"{actuator} on {_pool(pool, modes)}"
        for actuator, modes in config.daemon.modes.items()
        for pool, mode in modes.items()
        if mode is Mode.ENFORCE
    ]
    return "enforced: " + ", ".join(enforced) if enforced else "mode: observe (nothing is acted on)"


def _pool(pool: str, named: Collection[str]) -> str:
    if pool != ANY_POOL:
        return pool
    return "every pool" if len(named) == 1 else "every other pool"
