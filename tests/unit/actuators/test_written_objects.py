"""What the daemon writes to a cluster is valid for each Kubernetes version that it is said to work with."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate import utils
from test_rights import COMPONENTS, world

from controlplane.daemon.leader import ByLease
from controlplane.sources.kubernetes_settings import LeaseSettings

# Each call reads a megabyte of definitions anew.
utils.schema_contents = cache(utils.schema_contents)


@pytest.mark.parametrize("version", [f"1.{minor}" for minor in range(30, 38)])
async def test_every_object_that_was_written_passes(version: str, tmp_path: Path) -> None:
    async with world(tmp_path, *COMPONENTS) as cluster:
        leader = ByLease(cluster.cluster, LeaseSettings(), "daemon-0")
        leader.open()
        while leader.term is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        for component in sorted(COMPONENTS, key="eviction".__eq__):  # after which the pod is gone
            await cluster.act(component)
        written: list[dict[str, Any]] = [
            *(one.body for one in cluster.api.requests if one.resource == "pods/eviction"),
            *cluster.api.objects("leases"),
            *cluster.api.objects("events.events.k8s.io"),
            *cluster.api.objects("nodes"),
            *cluster.api.objects("pods"),
        ]
        await leader.close()
    kinds = [one["kind"] for one in written]
    assert {"Eviction", "Lease", "Event", "Node", "Pod"} == set(kinds)
    for one in written:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{one['kind']} {one['metadata']['name']}: {error.message} at {list(error.path)}")
