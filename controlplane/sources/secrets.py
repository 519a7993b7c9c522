"""Secrets that stand elsewhere: a file or an environment variable; never in the configuration or a log."""

import base64
import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

_LIMIT_BYTES = 64 * 1024
# Who writes the secret itself where its place belongs must not find it in the error message.
_STRICT = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SecretError(Exception):
    """A secret cannot be read; the message names where it should be, and never holds the secret."""


class Secret(BaseModel):
    """Where a secret is: `{file: PATH}` or `{env: NAME}`. The secret itself is read when it is used.

    So a token that is renewed in its file is taken up at once, and printing the settings shows no secret.
    """

    model_config = _STRICT

    file: Path | None = None
    env: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError("a secret is in one place: give either file or env")
        return self

    def read(self) -> str:
        """The secret, without the white space around it. SecretError where there is none."""
        place = f"file {self.file}" if self.file is not None else f"environment variable {self.env}"
        try:
            if self.file is not None:
                with self.file.open("rb") as opened:
                    text = opened.read(_LIMIT_BYTES + 1).decode()
            else:
                text = os.environ[self.env or ""]
        except KeyError:
            raise SecretError(f"{place} is not set") from None
        except UnicodeDecodeError:
            raise SecretError(f"{place} holds no text") from None
        except OSError as error:
            raise SecretError(f"{place} cannot be read: {error.strerror}") from None
        secret = text.strip()
        if not secret:
            raise SecretError(f"{place} is empty")
        if len(text) > _LIMIT_BYTES or not secret.isprintable():
            raise SecretError(f"{place} holds no secret: it is too long or has control characters")
        return secret


class BasicAuth(BaseModel):
    """A user name, and where the password is."""

    model_config = _STRICT

    username: str
    password: Secret


class Credentials(BaseModel):
    """What to show a server: `{bearer: SECRET}` or `{basic: {username, password: SECRET}}`."""

    model_config = _STRICT

    bearer: Secret | None = None
    basic: BasicAuth | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.bearer is None) == (self.basic is None):
            raise ValueError("give either bearer or basic")
        return self

    def authorization(self) -> str:
        """The value of the Authorization header, read anew. SecretError where the secret cannot be read."""
        if self.bearer is not None:
            token = self.bearer.read()
            if not token.isascii():
                raise SecretError("a bearer token has only ASCII characters, this one has others")
            return f"Bearer {token}"
        assert self.basic is not None
        pair = f"{self.basic.username}:{self.basic.password.read()}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
