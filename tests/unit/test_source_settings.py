"""What the sources' settings accept, and the sentence with which they refuse."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from controlplane.sources.settings import GatewaySettings, ScrapeSettings, TargetSettings, TlsSettings
from controlplane.sources.urls import engine_url, host_and_port, shown


def refused(model: type[BaseModel], settings: object, *words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(settings)
    text = str(caught.value)
    assert [word for word in words if word not in text] == [], text


def test_the_defaults() -> None:
    scrape = ScrapeSettings()
    assert (scrape.interval, scrape.timeout, scrape.path, scrape.max_body) == (5.0, 4.0, "/metrics", 8 << 20)
    assert (scrape.auth, scrape.tls) == (None, TlsSettings())


def test_a_whole_configuration(tmp_path: Path) -> None:
    scrape = ScrapeSettings.model_validate(
        {
            "interval": "15s",
            "timeout": "500ms",
            "path": "/prometheus/metrics",
            "max_body": "64KiB",
            "auth": {"basic": {"username": "u", "password": {"env": "SCRAPE_PASSWORD"}}},
            "tls": {"ca_file": tmp_path / "ca.pem", "server_name": "vllm"},
        }
    )
    assert (scrape.interval, scrape.timeout, scrape.max_body) == (15.0, 0.5, 65536)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"interval": "5s", "timeout": "5s"}, ("timeout (5s)", "interval (5s)")),
        ({"interval": "2s"}, ("timeout (4s)", "interval (2s)")),
        ({"interval": "0s"}, ("interval", "greater than or equal to 0.1")),
        ({"probe": {"timeout": "5s"}}, ("timeout (5s)", "interval (5s)", "health page")),
        ({"probe": {"health_path": "health"}}, ("health_path",)),
        ({"probe": {"trial_timeout": "0s"}}, ("trial_timeout",)),
        ({"interval": 5}, ("needs a unit",)),
        ({"path": "metrics"}, ("path",)),
        ({"path": "/metrics?x=1"}, ("path",)),
        ({"max_body": 0}, ("max_body",)),
        ({"intervall": "5s"}, ("intervall", "not permitted")),
        ({"auth": {}}, ("either bearer or basic",)),
        ({"auth": {"bearer": {"file": "/a", "env": "B"}}}, ("either file or env",)),
        ({"tls": {"cert_file": "/a.pem"}}, ("cert_file /a.pem", "key_file None")),
    ],
)
def test_scrape_settings_that_are_refused(settings: dict[str, object], words: tuple[str, ...]) -> None:
    refused(ScrapeSettings, settings, *words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ("exactly one of static, file_sd, dns", "none")),
        ({"static": ["a:1"], "dns": "b:1"}, ("static and dns",)),
        ({"static": []}, ("static",)),
        ({"static": ["http://a:1", "http://a:1"]}, ("http://a:1 is listed twice",)),
        ({"static": ["ftp://a/"]}, ("ftp://a/: neither http:// nor https://",)),
        ({"static": ["http://a b/"]}, ("'a b' is not a host name",)),
        ({"static": ["a:99999"]}, ("a:99999", "not a URL")),
        ({"static": ["a:0"]}, ("port 0",)),
        ({"static": ["http://[::g]:80"]}, ("not a URL",)),
        ({"static": ["http://a/#x"]}, ("#fragment",)),
        ({"static": ["http://" + "a" * 3000]}, ("3007 characters",)),
        ({"file_sd": ["/etc/targets/*.txt"]}, ("/etc/targets/*.txt", ".json, .yml, .yaml")),
        ({"dns": "vllm"}, ("'vllm' is not name:port", "record A")),
        ({"dns": "vllm:http"}, ("'vllm:http'",)),
        ({"dns": "vllm:70000"}, ("'vllm:70000'",)),
        ({"dns": "_http._tcp.vllm:80", "record": "SRV"}, ("leave it out",)),
        ({"static": ["a:1"], "record": "SRV"}, ("record (SRV) is only for dns",)),
        ({"static": ["a:1"], "engine": "vllm"}, ("engine",)),
    ],
)
def test_target_settings_that_are_refused(settings: dict[str, object], words: tuple[str, ...]) -> None:
    refused(TargetSettings, settings, *words)


@pytest.mark.parametrize("model", [TargetSettings, GatewaySettings])
def test_a_password_in_a_url_is_refused_and_not_repeated(model: type[BaseModel]) -> None:
    url = "http://ann:pw123@10.0.0.7:8000/metrics"
    settings = {"static": [url]} if model is TargetSettings else {"url": url, "token": {"env": "T"}}
    with pytest.raises(ValidationError) as caught:
        model.model_validate(settings)
    assert "http://10.0.0.7:8000/metrics: credentials do not belong in a URL" in str(caught.value)
    assert "pw123" not in str(caught.value)


def test_settings_show_where_a_secret_is_and_never_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    monkeypatch.setenv("SCRAPE_PASSWORD", "pw123")
    bearer = ScrapeSettings.model_validate({"auth": {"bearer": {"file": file}}})
    basic = ScrapeSettings.model_validate(
        {"auth": {"basic": {"username": "u", "password": {"env": "SCRAPE_PASSWORD"}}}}
    )
    assert bearer.auth is not None
    assert basic.auth is not None
    assert bearer.auth.authorization() == "Bearer s3cret"
    texts = [repr(bearer), str(basic), bearer.model_dump_json(), basic.model_dump_json()]
    assert not any(secret in text for text in texts for secret in ("s3cret", "pw123"))
    assert str(file) in texts[0]


def test_ollama_has_a_path_of_its_own() -> None:
    scrape = ScrapeSettings(path="/stats")
    assert TargetSettings(static=("a:1",)).path(scrape) == "/stats"
    assert TargetSettings(static=("a:1",), engine="ollama").path(scrape) == "/api/ps"


def test_gateways() -> None:
    gateway = GatewaySettings.model_validate({"url": "https://gw.chat:9000/", "token": {"env": "T"}})
    assert gateway.url == "https://gw.chat:9000"
    refused(GatewaySettings, {"url": "http://gw", "token": {}}, "either file or env")
    refused(GatewaySettings, {"url": "http://gw/?a=b", "token": {"env": "T"}}, "no ?query")


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("10.0.0.7:8000", "http://10.0.0.7:8000/metrics", "10.0.0.7:8000"),
        ("http://vllm-0.chat", "http://vllm-0.chat/metrics", "vllm-0.chat:80"),
        ("HTTPS://Vllm-0.Chat:443/", "https://vllm-0.chat/metrics", "vllm-0.chat:443"),
        ("https://a:8443/engine/metrics?model=x", "https://a:8443/engine/metrics?model=x", "a:8443"),
        ("[::1]:8000", "http://[::1]:8000/metrics", "[::1]:8000"),
        ("http://[2001:DB8:0::7]", "http://[2001:db8::7]/metrics", "[2001:db8::7]:80"),
    ],
)
def test_what_people_write_becomes_one_url_and_one_name(text: str, url: str, name: str) -> None:
    assert engine_url(text, "http", "/metrics") == url
    assert engine_url(url, "http", "/metrics") == url
    assert host_and_port(url) == name


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://u:p@h:1/m?k=s#f", "http://h:1/m"),
        ("u:p@h:1/m", "h:1/m"),
        ("http://[::1", "http://[::1"),
        ("http://u:p/w@h:1/m", "http://h:1/m"),
        ("http://u:p?w@h:1/m", "(not a URL)"),
        ("http://u:p#w@h:1/m", "(not a URL)"),
        ("http://h:1/m?mail=a@b", "http://h:1/m"),
        ("u:p@h:1/m#s", "h:1/m"),
        ("h:1", "h:1"),
    ],
)
def test_what_is_shown_of_a_url_has_no_secret(url: str, text: str) -> None:
    assert shown(url) == text
