"""What the gateway can be told."""

import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from controlplane.gateway.admission.output_size import OutputCeiling, OutputSettings
from controlplane.gateway.admission.request import ServiceClass
from controlplane.gateway.admission.settings import AdmissionSettings, TenantSettings
from controlplane.signals.units import Duration, duration_text
from controlplane.sources.secrets import Credentials, Secret
from controlplane.sources.settings import TlsSettings

ANYBODY = "anybody"
"""The tenant of all requests where no keys are configured."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    # What was written may be a secret in the wrong place, so a message never shows it by itself.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def host_and_port(listen: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host in brackets. Raises ValueError."""
    host, _, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    number = int(port) if port.isascii() and port.isdigit() else -1
    if not bare or not 0 <= number <= 65535 or (":" in bare and not host.startswith("[")):
        raise ValueError(f"not HOST:PORT like 127.0.0.1:8000 or [::1]:8000 (got {listen!r})")
    return bare, number


class Tenant(TenantSettings):
    """One tenant: what it may have (`TenantSettings`), and how it is known.

    `keys` are the SHA-256 of its API keys in hex: the keys themselves stand nowhere. `service_class` is the
    most urgent one that it may have; a request may ask for a later one by the header `x-request-class`.
    """

    keys: tuple[Sha256, ...] = ()
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    models: tuple[str, ...] | None = Field(None, description="all that it may use; None: every model")
    ceiling: OutputCeiling = OutputCeiling()


class InboundTls(_Strict):
    """Our certificate towards clients; with `client_ca_file` they need one as well."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None


class ControlSettings(_Strict):
    """Where the daemon talks to the gateway. Without a token nobody can steer it."""

    listen: str = "127.0.0.1:9101"
    token: Secret | None = None
    state_file: Path = Field(
        Path("var/gateway-control.json"), description="the last control message, for the next start"
    )

    @field_validator("listen")
    @classmethod
    def _address(cls, listen: str) -> str:
        host_and_port(listen)
        return listen


class UpstreamSettings(_Strict):
    """How engines are reached."""

    connect_timeout: Duration = Field(5.0, gt=0)
    idle: Duration = Field(
        4.0, ge=0, description="idle connections are closed after this; under the engines' own"
    )
    auth: Credentials | None = None
    tls: TlsSettings = TlsSettings()
    pass_client_key: bool = Field(False, description="send the client's own key on to the engine")


class RedisSettings(_Strict):
    """Where gateways share the counters of fairness and the tenants' quotas: Redis from 6.2 on, or Valkey.

    Requests never wait for it. Without it, or while it is away, each gateway counts for itself.
    """

    address: str = Field(description="HOST:PORT")
    database: int = Field(0, ge=0, le=65535)
    username: str | None = None
    password: Secret | None = None
    tls: TlsSettings | None = Field(None, description="{} for TLS with the system's authorities")
    namespace: str = Field(
        "controlplane", pattern=r"^[A-Za-z0-9_.:-]{1,64}$", description="the same for all that share"
    )
    interval: Duration = Field(0.25, ge=0.05, le=5, description="from one exchange to the next")
    timeout: Duration = Field(1.0, gt=0, le=10, description="of connecting and of an exchange")

    @field_validator("address")
    @classmethod
    def _address(cls, address: str) -> str:
        host_and_port(address)
        return address

    @model_validator(mode="after")
    def _login(self) -> Self:
        if self.username is not None and self.password is None:
            raise ValueError(f"username ({self.username}) needs a password")
        if self.tls is not None and self.tls.server_name is not None:
            name = self.tls.server_name
            raise ValueError(f"tls.server_name ({name}) cannot be set here: the address has to be that name")
        return self

    @property
    def lease_seconds(self) -> float:
        """A gateway that has exchanged nothing for so long counts as gone, and takes itself to be alone."""
        return 4 * (self.interval + self.timeout)


class DrainSettings(_Strict):
    """A stop: not ready at once, refusing after `settle`, cutting what still runs at `deadline`."""

    settle: Duration = Field(15.0, ge=0, description="how long others may still send us requests")
    deadline: Duration = Field(300.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.settle >= self.deadline:
            raise ValueError(
                f"settle ({duration_text(self.settle)}) is not under "
                f"deadline ({duration_text(self.deadline)})"
            )
        return self


class GatewayProcessSettings(_Strict):
    """The data plane. Relative paths are relative to the configuration file."""

    name: str = Field(default_factory=socket.gethostname, description="among the gateways of a fleet")
    listen: str = "127.0.0.1:8000"
    tls: InboundTls | None = None
    control: ControlSettings = ControlSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    drain: DrainSettings = DrainSettings()
    redis: RedisSettings | None = None
    admission: AdmissionSettings = AdmissionSettings()
    output: OutputSettings = OutputSettings()
    tenants: dict[str, Tenant] = {}
    hold_headers: Duration = Field(
        1.0, ge=0, description="how long a stream's head waits for the first event; 0: not at all"
    )
    request_timeout: Duration = Field(1800.0, gt=0, description="most time of one request, from head to end")
    heartbeat: Duration = Field(0.0, ge=0, description="a comment into streams silent for so long; 0: never")
    most_body: ByteSize = Field(ByteSize(32 * 1024 * 1024), gt=0)
    most_streams: int = Field(1000, ge=1, description="streams at once that the process must be able to hold")
    tokenizers: dict[str, Path] = Field({}, description="tokenizer file or model folder, by model")
    ask_engine_for_size: bool = Field(
        False, description="have engines count prompts where no tokenizer is given"
    )

    @field_validator("listen")
    @classmethod
    def _address(cls, listen: str) -> str:
        host_and_port(listen)
        return listen

    @model_validator(mode="after")
    def _across(self) -> Self:
        if self.admission.tenants:
            names = ", ".join(self.admission.tenants)
            raise ValueError(f"tenants ({names}) belong under gateway.tenants, not under admission")
        known: dict[str, str] = {}
        for name, tenant in self.tenants.items():
            for key in tenant.keys:
                if known.setdefault(key, name) != name:
                    raise ValueError(f"tenants {known[key]} and {name} have the same key ({key[:8]}...)")
        return self

    @property
    def doubts(self) -> list[str]:
        """What can be meant, but hardly is: a sentence each."""
        if self.tenants and not any(tenant.keys for tenant in self.tenants.values()):
            return ["gateway.tenants have no keys: everybody is let in, as the tenant `anybody`"]
        return []

    @property
    def whole_admission(self) -> AdmissionSettings:
        """Admission's settings, tenants included."""
        return self.admission.model_copy(update={"tenants": dict(self.tenants)})
