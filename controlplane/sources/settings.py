"""What the sources can be told: which engines there are, how they are scraped, which gateways report."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from controlplane.signals.units import Duration, duration_text
from controlplane.sources.secrets import Credentials, Secret
from controlplane.sources.urls import base_url, engine_url, shown

OLLAMA_PATH = "/api/ps"
NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_DISCOVERY_SUFFIXES = (".json", ".yml", ".yaml")


class _Strict(BaseModel):
    # What was written may be a secret in the wrong place, so a message shows it only where we choose to.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TlsSettings(_Strict):
    """Whom to trust and who we are. Files are read again when they change."""

    ca_file: Path | None = Field(None, description="trust these authorities, not the system's")
    cert_file: Path | None = Field(None, description="our own certificate")
    key_file: Path | None = Field(None, description="its private key")
    server_name: str | None = Field(None, description="the name that the certificate must have")
    insecure_skip_verify: bool = Field(False, description="trust whoever answers")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError(
                "cert_file and key_file go together "
                f"(got cert_file {self.cert_file}, key_file {self.key_file})"
            )
        return self


def check_timeout(timeout: float, interval: float, whose: str) -> None:
    """Raises ValueError where what is asked every `interval` may take longer than that to answer."""
    if timeout >= interval:
        raise ValueError(
            f"timeout ({duration_text(timeout)}) is not under interval "
            f"({duration_text(interval)}): a slow {whose} would cost its next turn"
        )


class ProbeSettings(_Strict):
    """How engines are asked whether they work: for a health page once an interval, some for one token.

    On trial for a token is an engine that came or was restarted while we watch, one that is out as wedged or
    for its errors, and one that shows work without progress. The first two get requests (again) once they
    have made a token. What is not there or not allowed (HTTP 4xx) says nothing, and then the metrics page
    counts.
    """

    health_path: str | None = Field(
        "/health", pattern=r"^/[^?#\s]*$", description="at the engine's address; null: nobody asks for it"
    )
    timeout: Duration | None = Field(
        None, gt=0, description="for the health page; default: 2s, or scrape.timeout where that is less"
    )
    trial: bool = Field(
        True,
        description="ask for one token where it is in doubt whether an engine works, in pools for which "
        "`gateway` or `pod` is enforced",
    )
    trial_timeout: Duration = Field(20.0, gt=0, le=600, description="for that one token")


class ScrapeSettings(_Strict):
    """How engines are scraped."""

    interval: Duration = Field(5.0, ge=0.1, le=600, description="from one page of an engine to the next")
    timeout: Duration = Field(4.0, gt=0, description="for the whole page, redirects included")
    path: str = Field("/metrics", pattern=r"^/[^?#\s]*$", description="where a target's URL names no path")
    max_body: ByteSize = Field(ByteSize(8 * 1024 * 1024), gt=0, description="also after decompression")
    probe: ProbeSettings = ProbeSettings()
    auth: Credentials | None = None
    tls: TlsSettings = TlsSettings()

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        check_timeout(self.timeout, self.interval, "target")
        if self.probe.timeout is not None:
            check_timeout(self.probe.timeout, self.interval, "health page")
        return self


class KubernetesTargets(_Strict):
    """Pods by their labels. The selector must not name a label that an ejection flips."""

    selector: str = Field(min_length=1, max_length=1000, description="a label selector, as for kubectl -l")
    namespace: str | None = Field(None, pattern=NAMESPACE, description="default: that of `kubernetes`")
    port: int | str | None = Field(
        None, description="number or name of the container port; default: `http`, else the first, else 8000"
    )

    @field_validator("port")
    @classmethod
    def _a_port(cls, port: int | str | None) -> int | str | None:
        if isinstance(port, int) and not 0 < port < 65536:
            raise ValueError(f"a port lies between 1 and 65535 (got {port})")
        return port


class TargetSettings(_Strict):
    """The engines of one pool: `static` URLs, `file_sd` file patterns, a `dns` name, or `kubernetes` pods.

    `file_sd` files are Prometheus's: JSON or YAML lists of `targets` and `labels`; the labels
    `__scheme__` and `__metrics_path__` are obeyed, `pool` puts a target into another pool. `dns` is
    `name:port` for the records A and AAAA and a bare name for SRV. `scheme` is for targets written
    without one. `engine: ollama` marks engines that have no metrics page.
    """

    static: tuple[str, ...] | None = Field(None, min_length=1, description="URLs, or HOST:PORT")
    file_sd: tuple[str, ...] | None = Field(None, min_length=1, description="patterns of file names")
    dns: str | None = Field(None, description="NAME:PORT, or NAME for SRV")
    kubernetes: KubernetesTargets | None = None
    record: Literal["A", "AAAA", "SRV"] = Field("A", description="A, AAAA or SRV")
    scheme: Literal["http", "https"] = Field("http", description="of targets written without one")
    engine: Literal["auto", "ollama"] = Field("auto", description="auto reads it off the page; or ollama")

    @field_validator("static")
    @classmethod
    def _urls(cls, urls: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for i, url in enumerate(urls or ()):
            engine_url(url, "http", "/")
            if url in (urls or ())[:i]:
                raise ValueError(f"{shown(url)} is listed twice")
        return urls

    @field_validator("file_sd")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for pattern in patterns or ():
            if not pattern.endswith(_DISCOVERY_SUFFIXES):
                raise ValueError(f"{pattern!r} must end in {', '.join(_DISCOVERY_SUFFIXES)}")
        return patterns

    @model_validator(mode="after")
    def _one(self) -> Self:
        _exactly_one(
            "targets", static=self.static, file_sd=self.file_sd, dns=self.dns, kubernetes=self.kubernetes
        )
        if self.dns is None:
            if "record" in self.model_fields_set:
                raise ValueError(f"record ({self.record}) is only for dns")
            return self
        name, colon, port = self.dns.rpartition(":")
        if self.record == "SRV":
            if colon:
                raise ValueError(f"dns {self.dns!r}: an SRV record names the port itself, leave it out")
        elif not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"dns {self.dns!r} is not name:port (record {self.record})")
        return self

    def path(self, scrape: ScrapeSettings) -> str:
        """The path of targets that are written without one."""
        return OLLAMA_PATH if self.engine == "ollama" else scrape.path


class GatewaySettings(_Strict):
    """A gateway that reports how requests ended. `url` is its control address, `token` opens it."""

    url: str
    token: Secret
    tls: TlsSettings = TlsSettings()

    @field_validator("url")
    @classmethod
    def _base(cls, url: str) -> str:
        return base_url(url, "a gateway's URL")


def _exactly_one(what: str, **choices: object) -> None:
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise ValueError(f"{what} needs exactly one of {', '.join(choices)} (got {got})")
