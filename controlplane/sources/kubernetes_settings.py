"""What the sources can be told of a Kubernetes cluster."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from controlplane.signals.units import Duration
from controlplane.sources.settings import NAMESPACE


class LeaseSettings(BaseModel):
    """The Lease that makes one of several daemons the leader. It is in `kubernetes.namespace`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("controlplane", pattern=NAMESPACE, description="the name of the Lease")
    duration: Duration = Field(
        15.0, ge=1, le=300, description="a leader that is silent for so long is replaced"
    )


class KubernetesSettings(BaseModel):
    """The cluster that the fleet runs in, and who we are to it.

    Without `kubeconfig`, the service account of the daemon's own pod.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path | None = Field(None, description="a kubeconfig file; default: the pod's service account")
    context: str | None = Field(None, min_length=1, description="the context of it that counts")
    namespace: str | None = Field(
        None,
        pattern=NAMESPACE,
        description="of our own objects and of pods that name none; default: the one we are in",
    )
    nodes: bool = Field(True, description="watch the nodes too, which needs a ClusterRole")
    lease: LeaseSettings | None = Field(
        LeaseSettings(), description="null: this daemon has no other beside it"
    )
    rack_label: str | None = Field(None, min_length=1, description="the label of a node that names its rack")

    @model_validator(mode="after")
    def _context_of_something(self) -> Self:
        if self.context is not None and self.kubeconfig is None:
            raise ValueError(f"context ({self.context}) is only for a kubeconfig")
        return self
