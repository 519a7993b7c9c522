"""What the API can be told: where it listens, and what opens its writing half."""

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_LONGEST_TOKEN_BYTES = 4096


class TokenError(Exception):
    """The configured token cannot be had; the text is a sentence that says why, without the token."""


class ApiSettings(BaseModel):
    """Settings of the API. The reading half is open to whoever reaches `listen`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field("127.0.0.1:9090", description="HOST:PORT; an IPv6 host in brackets; port 0: any free")
    token_file: Path | None = Field(None, description="file with the bearer token of the writing half")
    token_env: str | None = Field(None, description="environment variable with that token")
    tls_cert: Path | None = Field(None, description="certificate chain (PEM); needs tls_key")
    tls_key: Path | None = Field(None, description="its private key (PEM)")

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
            where = f"token_file {self.token_file}"
            try:
                with self.token_file.open("rb") as file:
                    text = file.read(_LONGEST_TOKEN_BYTES + 1)
            except OSError as error:
                raise TokenError(f"{where} cannot be read: {error.strerror}") from None
        elif self.token_env is not None:
            where = f"token_env {self.token_env}"
            text = os.environb.get(os.fsencode(self.token_env), b"")
        else:
            return None
        token = text.strip()
        if not token:
            raise TokenError(f"{where} is empty")
        if len(token) > _LONGEST_TOKEN_BYTES or not token.isascii() or len(token.split()) != 1:
            raise TokenError(f"{where} is not a token: one word of printable ASCII is needed")
        return token
