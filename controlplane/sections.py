"""Sections of the configuration that come from two rooms: what an actuator does, and what opens its way."""

from pydantic import field_validator

from controlplane.actuators.settings import EnvoySettings, WebhookSettings
from controlplane.sources.secrets import Secret
from controlplane.sources.settings import TlsSettings
from controlplane.sources.urls import base_url, engine_url


class WebhookSection(WebhookSettings):
    """A gateway that takes limits by HTTP, signed with `secret`, as docs/webhook.md describes it."""

    secret: Secret
    tls: TlsSettings = TlsSettings()

    @field_validator("url", "read_back")
    @classmethod
    def _whole(cls, url: str | None) -> str | None:
        return None if url is None else engine_url(url, "http", "/")


class EnvoySection(EnvoySettings):
    """Envoys that read limits from a runtime file, as docs/envoy.md describes it.

    All Envoys of `admin` read the same file and share each limit evenly.
    """

    @field_validator("admin")
    @classmethod
    def _bases(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(base_url(url, "an admin interface") for url in urls)
