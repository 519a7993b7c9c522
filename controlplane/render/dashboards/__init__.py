"""The dashboards, one file each."""

from typing import Any

from controlplane.render.dashboards import control, fleet, gateway, gpus, pool, replicas, two_pools


def dashboards() -> dict[str, dict[str, Any]]:
    """Grafana's JSON by name."""
    return {
        "fleet": fleet.dashboard(),
        "pool": pool.dashboard(),
        "replicas": replicas.dashboard(),
        "gpus": gpus.dashboard(),
        "control": control.dashboard(),
        "gateway": gateway.dashboard(),
        "two-pools": two_pools.dashboard(),
    }
