"""What the actuators can be told; what opens the way of some is added in `sections.py`."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from controlplane.actuators.contention import ContentionSettings
from controlplane.signals.units import Duration, Share, duration_text


class Strict(BaseModel):
    # A URL may have a password in it where none belongs, so a message does not show what was written.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PaceSettings(Strict):
    """How fast limits move and how patient the actuator is."""

    # An actuator has 10 s for a decision: three requests and the wait for the value.
    timeout: Duration = Field(2.0, gt=0, le=2, description="for the whole answer to one request")
    verify_within: Duration = Field(2.0, gt=0, le=3, description="until the new value must show")
    max_change: Share = Field(
        0.5, gt=0, description="most that a limit rises in a second, as a share of it; a fall is as fast"
    )
    backoff_first: Duration = Field(1.0, gt=0, description="wait this long after a first failure")
    backoff_limit: Duration = Field(30.0, gt=0, le=3600, description="double the wait up to this")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.backoff_limit < self.backoff_first:
            raise ValueError(
                f"backoff_limit ({duration_text(self.backoff_limit)}) is under "
                f"backoff_first ({duration_text(self.backoff_first)})"
            )
        return self


class WebhookSettings(PaceSettings):
    """A gateway that takes limits by HTTP, as docs/webhook.md describes it."""

    url: str = Field(description="where limits are POSTed")
    read_back: str | None = Field(
        None, description="URL that answers a GET with the limit in force; `{target}` in it is the replica"
    )
    pools: tuple[str, ...] | None = Field(None, min_length=1, description="its pools; default: all")


class EnvoyCluster(Strict):
    """A cluster of Envoy and what is behind it: one `replica`, or a whole `pool`."""

    name: str = Field(pattern=r"^[^\s\"\\]{1,200}$", description="as in Envoy's configuration")
    pool: str | None = Field(None, description="its limit is the sum of the limits of the pool's replicas")
    replica: str | None = Field(None, description="as the daemon names it, like 10.0.0.7:8000")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.pool is None) == (self.replica is None):
            raise ValueError(f"cluster {self.name}: give either pool or replica")
        return self


class EnvoySettings(PaceSettings):
    """Envoys that read limits from a runtime file (docs/envoy.md).

    All Envoys of `admin` read the same file and share each limit evenly.
    """

    runtime_file: Path = Field(description="the RTDS file that Envoy watches")
    admin: tuple[str, ...] = Field(description="URLs of the admin interfaces")
    clusters: tuple[EnvoyCluster, ...]

    # Not by min_length, which counts the items that are wrong as missing and complains twice.
    @field_validator("admin", "clusters")
    @classmethod
    def _some(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if not values:
            raise ValueError("at least one is needed")
        return values

    @field_validator("clusters")
    @classmethod
    def _each_once(cls, clusters: tuple[EnvoyCluster, ...]) -> tuple[EnvoyCluster, ...]:
        names = [cluster.name for cluster in clusters]
        targets = [cluster.pool or cluster.replica for cluster in clusters]
        for what, values in (("cluster", names), ("pool or replica", targets)):
            twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
            if twice is not None:
                raise ValueError(f"{what} {twice} stands twice in clusters")
        return clusters


_API_VERSION = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?v[0-9][a-z0-9]*$"
_KIND = r"^[A-Z][A-Za-z0-9]{0,62}$"
_OBJECT_NAME = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
_NAMESPACE = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class ClusterObject(Strict):
    """An object of the Kubernetes cluster, in a namespace."""

    api_version: str = Field(pattern=_API_VERSION, description="like apps/v1")
    kind: str = Field(pattern=_KIND, description="like Deployment")
    namespace: str = Field(pattern=_NAMESPACE)
    name: str = Field(pattern=_OBJECT_NAME)

    @property
    def named(self) -> str:
        """As people call it."""
        return f"{self.kind} {self.namespace}/{self.name}"


class Workload(ClusterObject):
    """What the replicas of `pool` belong to: anything with a `scale` subresource."""

    pool: str
    api_version: str = Field("apps/v1", pattern=_API_VERSION, description="like apps/v1")
    kind: str = Field("Deployment", pattern=_KIND, description="like Deployment")


class ScaleSection(Strict):
    """The workloads whose replicas are set directly, without an autoscaler between (docs/kubernetes.md)."""

    workloads: tuple[Workload, ...]
    contention: ContentionSettings = ContentionSettings()

    @field_validator("workloads")
    @classmethod
    def _each_once(cls, workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
        if not workloads:
            raise ValueError("at least one is needed")
        for what, values in (
            ("pool", [one.pool for one in workloads]),
            ("", [one.named for one in workloads]),
        ):
            twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
            if twice is not None:
                raise ValueError(f"{f'{what} {twice}'.strip()} stands twice in workloads")
        return workloads


class ObjectField(ClusterObject):
    """A field of an object that is a limit: of one `replica`, or of a whole `pool`."""

    path: str = Field(
        pattern=r"^spec(\.[A-Za-z0-9_-]+)+$",
        max_length=300,
        description="like spec.trafficPolicy.connectionPool.http.http2MaxRequests",
    )
    pool: str | None = Field(None, description="the value is the sum of the limits of the pool's replicas")
    replica: str | None = Field(None, description="as the daemon names it, like 10.0.0.7:8000")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.pool is None) == (self.replica is None):
            raise ValueError(f"{self.named}: give either pool or replica")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.path.split("."))

    @property
    def named(self) -> str:
        """As people call it."""
        return f"{super().named} {self.path}"


class ObjectsSettings(PaceSettings):
    """Objects of the cluster that other gateways read their limits from (docs/kubernetes.md)."""

    fields: tuple[ObjectField, ...]

    @field_validator("fields")
    @classmethod
    def _each_once(cls, fields: tuple[ObjectField, ...]) -> tuple[ObjectField, ...]:
        if not fields:
            raise ValueError("at least one is needed")
        targets = [field.pool or field.replica for field in fields]
        for what, values in (("", [field.named for field in fields]), ("pool or replica", targets)):
            twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
            if twice is not None:
                raise ValueError(f"{f'{what} {twice}'.strip()} stands twice in fields")
        return fields
