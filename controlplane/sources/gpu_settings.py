"""What the sources can be told of GPU nodes."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from controlplane.signals.units import Duration, duration_text
from controlplane.sources.secrets import Credentials, Secret
from controlplane.sources.settings import KubernetesTargets, TlsSettings, check_timeout
from controlplane.sources.urls import base_url, engine_url

DCGM_PATH = "/metrics"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class GpuNodeSettings(_Strict):
    """One node with GPUs: its dcgm-exporter, its node agent, or both, and which replicas run on it.

    The GPUs of the daemon's own machine need neither: it reads them itself (`local`), as a node agent would.
    """

    dcgm: str | None = Field(None, description="URL of its dcgm-exporter; /metrics where it names no path")
    agent: str | None = Field(None, description="base URL of its node agent")
    local: bool = Field(
        False, description="it is the daemon's own machine, which reads its GPUs as `node_agent` says"
    )
    replicas: tuple[str, ...] = Field((), description="names of the replicas on it, where no cluster tells")
    gpus: dict[str, tuple[str, ...]] = Field(
        {}, description="UUIDs of the GPUs that a replica uses, by replica"
    )

    @field_validator("dcgm")
    @classmethod
    def _page(cls, url: str | None) -> str | None:
        return None if url is None else engine_url(url, "http", DCGM_PATH)

    @field_validator("agent")
    @classmethod
    def _base(cls, url: str | None) -> str | None:
        return None if url is None else base_url(url, "a node agent's URL")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.dcgm is None and self.agent is None and not self.local:
            raise ValueError("a node needs dcgm, agent or local: nothing else sees its GPUs")
        if self.agent is not None and self.local:
            raise ValueError("a node has an agent or is local: both ask the same driver")
        strangers = sorted(set(self.gpus) - set(self.replicas))
        if strangers:
            raise ValueError(f"gpus names {strangers[0]!r}, which is not among the node's replicas")
        return self


class GpuSettings(_Strict):
    """The GPU nodes of the fleet and how they are asked.

    In a cluster `dcgm_pods` and `agent_pods` find them: pods of a DaemonSet, each for the node that it runs
    on. `nodes` names others, or says otherwise of some.
    """

    nodes: dict[str, GpuNodeSettings] = Field({}, description="by the name that the cluster has for the node")
    dcgm_pods: KubernetesTargets | None = Field(None, description="the pods of dcgm-exporter")
    agent_pods: KubernetesTargets | None = Field(None, description="the pods of the node agent")
    interval: Duration = Field(10.0, ge=1, le=300, description="from one page of an exporter to the next")
    timeout: Duration = Field(5.0, gt=0, description="for a whole page")
    agent_token: Secret | None = Field(None, description="the bearer token of the node agents")
    auth: Credentials | None = Field(None, description="who we are to the exporters")
    tls: TlsSettings = TlsSettings()

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        check_timeout(self.timeout, self.interval, "exporter")
        local = [name for name, node in self.nodes.items() if node.local]
        if len(local) > 1:
            raise ValueError(f"the daemon has one machine, and {' and '.join(local)} are local")
        return self

    @property
    def in_cluster(self) -> bool:
        """Whether pods tell which nodes there are."""
        return self.dcgm_pods is not None or self.agent_pods is not None


class NodeAgentSettings(_Strict):
    """`controlplane node-agent`: one on each node, reads its GPUs through NVML and answers for them."""

    node: str = Field("", max_length=253, description="the node's name; default: $NODE_NAME, else the host's")
    listen: str = Field("0.0.0.0:9498", pattern=r"^\S+:\d{1,5}$", description="address and port")
    interval: Duration = Field(5.0, ge=0.2, le=300, description="from one look at the GPUs to the next")
    deadline: Duration = Field(15.0, gt=0, le=900, description="the driver hangs where a look takes longer")
    token: Secret | None = Field(
        None, description="what callers must bear; needed but on the loopback address"
    )
    tls_cert_file: Path | None = Field(None, description="certificate of the endpoint")
    tls_key_file: Path | None = Field(None, description="its private key")

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.deadline < 2 * self.interval:
            raise ValueError(
                f"deadline ({duration_text(self.deadline)}) is under two intervals "
                f"({duration_text(self.interval)}): a slow look would pass for a hang"
            )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError(
                "tls_cert_file and tls_key_file go together "
                f"(got {self.tls_cert_file} and {self.tls_key_file})"
            )
        return self
