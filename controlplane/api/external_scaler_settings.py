"""What the external scaler can be told. Apart from it, so that gRPC is loaded only where it serves."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ExternalScalerSettings(BaseModel):
    """KEDA's external scaler. KEDA can show a certificate and nothing else, so who asks must show one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field("127.0.0.1:9092", description="HOST:PORT for KEDA; an IPv6 host in brackets")
    tls_cert: Path = Field(description="its certificate chain (PEM)")
    tls_key: Path = Field(description="its private key (PEM)")
    client_ca: Path = Field(description="who may ask: the authority of KEDA's certificate (PEM)")

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError(f"listen is HOST:PORT like 127.0.0.1:9092 (got {listen[:100]!r})")
        return listen
