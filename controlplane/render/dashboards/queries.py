"""Pieces of PromQL that several dashboards use."""

CLUSTER = 'cluster=~"$cluster"'
POOL = f'{CLUSTER},pool=~"$pool"'
MODEL = f'{POOL},model_name=~"$model"'
REPLICA = f'{MODEL},instance=~"$instance"'
TARGET = f'{POOL},instance=~"$instance"'
NODE = 'cluster=~"$cluster",node=~"$node"'
GPU = 'cluster=~"$cluster",node=~"$node",UUID=~"$UUID"'
RATE = "[$__rate_interval]"
OBJECTIVE = f"llm:pool_objective_ratio{{{POOL}}}"
BUDGET_LEFT = f"min(1 - llm:pool_bad_ratio:3d{{{POOL}}} / (1 - {OBJECTIVE}))"
QUEUED = (
    f"sum(controlplane_gateway_queued_requests{{{POOL}}}) or 0 * sum(controlplane_gateway_ready{{{CLUSTER}}})"
)
"""Requests in the gateways' queues: 0, and not nothing, where there is a gateway."""


def quantile(q: float, what: str, where: str, *by: str) -> str:
    """A quantile over a pool's recorded buckets. NaN (no traffic) is no value."""
    of = ", ".join(("le", *by))
    return f"histogram_quantile({q}, sum by ({of}) (llm:{what}_bucket:rate2m{{{where}}})) >= 0"


def user_quantile(q: float, what: str, where: str, *by: str) -> str:
    """The same as clients see it: measured by the gateway, else by the engines."""
    of = ", ".join(("le", *by))
    buckets = f"rate(controlplane_gateway_{what}_bucket{{{where}}}{RATE})"
    return f"(histogram_quantile({q}, sum by ({of}) ({buckets})) >= 0) or ({quantile(q, what, where, *by)})"


def mean(what: str, where: str, *by: str) -> str:
    """Mean of a recorded histogram: growth of the sum over growth of the count."""
    of = f"by ({', '.join(by)}) " if by else ""
    total, count = (f"sum {of}(llm:{what}_{part}:rate2m{{{where}}})" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def share(part: str, whole: str) -> str:
    """A ratio that has no value where there is nothing to divide by."""
    return f"({part}) / ({whole} > 0)"


GOODPUT = share(
    f"sum(llm:pool_good_requests:rate2m{{{POOL}}})", f"sum(llm:pool_offered_requests:rate2m{{{POOL}}})"
)


def grown(name: str, where: str, *by: str) -> str:
    """How much a counter of rare things grew in a minute. A series that begins at 1 has grown too."""
    now = f"{name}{{{where}}}"
    return f"clamp_min(sum by ({', '.join(by)}) ({now} - ({now} offset 1m or 0 * {now})), 0)"


def rate(name: str, where: str, *by: str) -> str:
    """Growth per second of a counter of ours."""
    of = f"by ({', '.join(by)}) " if by else ""
    return f"sum {of}(rate({name}{{{where}}}{RATE}))"


def of_pool(gpu: str, where: str = POOL) -> str:
    """GPU series of a pool: those whose exporter is labelled with it, or whose pod or node serves it."""
    engines = f"llm:engine_up{{{where}}}"
    by_pod = f"({gpu} and on (cluster, UUID) (llm:gpu_pod and on (cluster, namespace, pod) {engines}))"
    by_node = f'({gpu} and on (cluster, node) {engines[:-1]},node!=""}})'
    own = f"{gpu}{{{where}}}"
    return f"({own} or {by_pod} or {by_node})"
