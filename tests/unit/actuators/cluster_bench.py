"""A test API server with an actuator in front of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kube_api import KubeApi

from controlplane.actuators.call import Send
from controlplane.commands.actuators import cluster_sender
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_settings import KubernetesSettings


@asynccontextmanager
async def sender_to(api: KubeApi, path: Path) -> AsyncIterator[Send]:
    """How an actuator reaches the test API server; its kubeconfig is written to `path`."""
    cluster = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(path)))
    try:
        yield cluster_sender(cluster)
    finally:
        await cluster.close()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
