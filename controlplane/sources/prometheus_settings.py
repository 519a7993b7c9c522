"""What the Prometheus source can be told."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from controlplane.signals.units import Duration, duration_text
from controlplane.sources.secrets import Credentials
from controlplane.sources.settings import TlsSettings
from controlplane.sources.urls import base_url


class PrometheusSettings(BaseModel):
    """A server of the Prometheus query API (Prometheus, Thanos, Mimir, ...) and the engines it knows.

    `selector` holds label matchers as they stand between the braces of PromQL, and is the only thing that
    keeps strangers out. An engine's pool is its `pool_label`, or `pool` where it has none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str
    selector: str = Field('job="vllm"', min_length=1, max_length=1000)
    instance_label: str = Field("instance", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
    pool_label: str | None = Field(None, pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
    pool: str = Field("default", min_length=1)
    timeout: Duration = Field(5.0, gt=0, le=300, description="for all queries of one round together")
    backoff_first: Duration = Field(5.0, gt=0, description="wait this long after a first failure")
    backoff_limit: Duration = Field(60.0, gt=0, description="double the wait up to this")
    auth: Credentials | None = None
    tls: TlsSettings = TlsSettings()

    @field_validator("url")
    @classmethod
    def _base(cls, url: str) -> str:
        base = base_url(url, "a query API's URL")
        return base.removesuffix("/api/v1/query").removesuffix("/api/v1")

    @field_validator("selector")
    @classmethod
    def _matchers(cls, selector: str) -> str:
        stripped = selector.strip().rstrip(",")
        if not stripped or stripped.startswith("{"):
            raise ValueError(f'matchers stand without braces, like job="vllm" (got {selector!r})')
        return stripped

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.backoff_limit < self.backoff_first:
            raise ValueError(
                f"backoff_limit ({duration_text(self.backoff_limit)}) is under "
                f"backoff_first ({duration_text(self.backoff_first)})"
            )
        return self
