"""Secrets are read where they stand, each time anew, and shown nowhere."""

import base64
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from controlplane.sources.secrets import Credentials, Secret, SecretError

HIDDEN = "s3cret-value"


def test_a_file_is_read_anew_and_stripped(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret = Secret(file=path)
    path.write_text(f"  {HIDDEN}\n")
    assert secret.read() == HIDDEN
    path.write_text("renewed")
    assert secret.read() == "renewed"


def test_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", HIDDEN)
    assert Secret(env="TOKEN").read() == HIDDEN


def test_what_is_shown_of_a_secret_is_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", HIDDEN)
    credentials = Credentials(bearer=Secret(env="TOKEN"))
    assert credentials.authorization() == f"Bearer {HIDDEN}"
    for shown in (repr(credentials), str(credentials), credentials.model_dump_json()):
        assert "TOKEN" in shown
        assert HIDDEN not in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe" + HIDDEN.encode(), "holds no text"),
        (HIDDEN.encode() + b"\r\nInjected: header", "control characters"),
        (HIDDEN.encode() * 10_000, "too long"),
    ],
)
def test_a_bad_secret_is_told_by_its_place_alone(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SecretError, match=words) as caught:
        Secret(file=path).read()
    assert str(path) in str(caught.value)
    assert HIDDEN not in str(caught.value)


def test_a_missing_variable_is_told() -> None:
    with pytest.raises(SecretError, match="environment variable NO_SUCH_VARIABLE is not set"):
        Secret(env="NO_SUCH_VARIABLE").read()


def test_a_bearer_token_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "naïve")
    with pytest.raises(SecretError, match="ASCII"):
        Credentials(bearer=Secret(env="TOKEN")).authorization()


def test_basic_credentials_may_have_any_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "p:ässwörd")
    basic = {"username": "us", "password": {"env": "PASSWORD"}}
    header = Credentials.model_validate({"basic": basic}).authorization()
    assert base64.b64decode(header.removeprefix("Basic ")).decode() == "us:p:ässwörd"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"bearer": HIDDEN},
        {"bearer": {"file": "a", "env": "b"}},
        {"bearer": {"value": HIDDEN}},
        {"bearer": {"env": "A"}, "basic": {"username": "u", "password": {"env": "B"}}},
        {"basic": {"username": "u", "password": HIDDEN}},
    ],
)
def test_what_is_refused_shows_no_value(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Credentials.model_validate(given)
    assert HIDDEN not in str(caught.value)
