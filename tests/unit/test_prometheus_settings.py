"""What the Prometheus source can be told, and how it says no."""

from typing import Any

import pytest
from pydantic import ValidationError

from controlplane.sources.prometheus_settings import PrometheusSettings


def settings(**given: Any) -> PrometheusSettings:
    return PrometheusSettings.model_validate({"url": "http://prometheus:9090", **given})


@pytest.mark.parametrize(
    "url",
    [
        "prometheus:9090",
        "http://prometheus:9090",
        "http://prometheus:9090/",
        "http://prometheus:9090/api/v1",
        "http://prometheus:9090/api/v1/query",
    ],
)
def test_the_url_is_the_servers_however_it_is_written(url: str) -> None:
    assert settings(url=url).url == "http://prometheus:9090"


def test_a_path_before_the_api_is_kept() -> None:
    assert settings(url="https://mimir.test/prometheus/").url == "https://mimir.test/prometheus"


def test_a_selector_is_tidied() -> None:
    assert settings(selector=' job="vllm", namespace=~"a|b", ').selector == 'job="vllm", namespace=~"a|b"'


def test_defaults_are_safe() -> None:
    default = settings()
    assert (default.timeout, default.backoff_first, default.backoff_limit) == (5.0, 5.0, 60.0)
    assert not default.tls.insecure_skip_verify
    assert default.auth is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "ftp://prometheus"}, "neither http:// nor https://"),
        ({"url": "http://me:pass-word@prometheus:9090"}, "credentials do not belong in a URL"),
        ({"url": "http://prometheus:9090/?token=pass-word"}, "no ?query"),
        ({"selector": '{job="vllm"}'}, "without braces"),
        ({"selector": " , "}, "without braces"),
        ({"selector": ""}, "at least 1 character"),
        ({"timeout": "0s"}, "greater than 0"),
        ({"timeout": 5}, "a duration needs a unit"),
        ({"backoff_first": "2m"}, "backoff_limit (1m) is under backoff_first (2m)"),
        ({"instance_label": "in-stance"}, "match pattern"),
        ({"auth": {"bearer": "pass-word"}}, "valid dictionary"),
        ({"step": "15s"}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused_in_words_without_secrets(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**given)
    assert words in str(caught.value)
    assert "pass-word" not in str(caught.value)
