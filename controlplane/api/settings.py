"""What the API can be told: where it listens, and what opens its writing half."""

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from controlplane.api.external_scaler_settings import ExternalScalerSettings
from controlplane.api.notices import NoticeSettings

_LONGEST_TOKEN_BYTES = 4096


class TokenError(Exception):
    """The configured token cannot be had; the text is a sentence that says why, without the token."""


class MetricsSettings(BaseModel):
    """How large the page of own metrics may become: a replica has some 90 series, half of them quantiles."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(
        10_000, ge=0, le=100_000, description="replicas with series of their own; the others are only counted"
    )
    latency_replicas: int = Field(
        250,
        ge=0,
        le=100_000,
        description="in a fleet of more replicas these have no latency quantiles of their own: the engines' "
        "histograms and the pools do",
    )


class ApiSettings(BaseModel):
    """Settings of the API. The reading half is open to whoever reaches `listen`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field("127.0.0.1:9090", description="HOST:PORT; an IPv6 host in brackets; port 0: any free")
    token_file: Path | None = Field(None, description="file with the bearer token of the writing half")
    token_env: str | None = Field(None, description="environment variable with that token")
    autoscaling_token_file: Path | None = Field(
        None, description="file with a token that opens /api/v1/autoscaling and nothing else, for KEDA"
    )
    tls_cert: Path | None = Field(None, description="certificate chain (PEM); needs tls_key")
    tls_key: Path | None = Field(None, description="its private key (PEM)")
    metrics: MetricsSettings = MetricsSettings()
    external_scaler: ExternalScalerSettings | None = Field(
        None, description="KEDA's external scaler, over gRPC"
    )
    notices: tuple[NoticeSettings, ...] = Field(
        (), max_length=10, description="who is told of each decision: chats, Grafana"
    )

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        bracketed = host.startswith("[") and host.endswith("]")
        if (
            not bare
            or not (port.isascii() and port.isdigit())
            or int(port) > 65535
            or (":" in bare and not bracketed)
        ):
            raise ValueError(f"listen is HOST:PORT like 127.0.0.1:9090 or [::1]:9090 (got {listen!r})")
        return listen

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.token_file is not None and self.token_env is not None:
            raise ValueError(
                f"the token has two places: token_file ({self.token_file}) and token_env ({self.token_env})"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError(
                f"TLS needs both tls_cert (got {self.tls_cert}) and tls_key (got {self.tls_key})"
            )
        return self

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    def token(self) -> bytes | None:
        """The token of the writing half, read anew so that it can be rotated; None where none is set.

        Raises TokenError for a token that is configured and not there.
        """
        if self.token_file is not None:
            return _in_file(self.token_file, "token_file")
        if self.token_env is not None:
            return _token(os.environb.get(os.fsencode(self.token_env), b""), f"token_env {self.token_env}")
        return None

    def autoscaling_token(self) -> bytes | None:
        """As `token`, of the one that opens what autoscalers read and nothing else."""
        file = self.autoscaling_token_file
        return None if file is None else _in_file(file, "autoscaling_token_file")


def _in_file(path: Path, key: str) -> bytes:
    where = f"{key} {path}"
    try:
        with path.open("rb") as file:
            return _token(file.read(_LONGEST_TOKEN_BYTES + 1), where)
    except OSError as error:
        raise TokenError(f"{where} cannot be read: {error.strerror}") from None


def _token(text: bytes, where: str) -> bytes:
    token = text.strip()
    if not token:
        raise TokenError(f"{where} is empty")
    if len(token) > _LONGEST_TOKEN_BYTES or not token.isascii() or len(token.split()) != 1:
        raise TokenError(f"{where} is not a token: one word of printable ASCII is needed")
    return token
