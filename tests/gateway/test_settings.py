"""What may be configured, and the sentences for what may not; what workers get of it."""

import hashlib
import textwrap
from pathlib import Path

import pytest

from controlplane.config import ConfigError, parse
from controlplane.gateway.admission.quota import Quotas
from controlplane.gateway.settings import GatewayProcessSettings, Tenant, host_and_port
from controlplane.gateway.worker import files_needed, part_of

KEY = hashlib.sha256(b"k").hexdigest()


def config(text: str) -> GatewayProcessSettings:
    whole = "pools: {chat: {targets: {static: ['http://h:8000']}}}\ngateway:\n" + textwrap.indent(
        textwrap.dedent(text), "  "
    )
    return parse(whole, Path("/etc/cp/c.yaml")).gateway


def test_nothing_need_be_said() -> None:
    settings = GatewayProcessSettings()
    assert settings.admission.mode == "observe"
    assert (settings.hold_headers, settings.heartbeat, settings.upstream.idle) == (1.0, 0.0, 4.0)


def test_a_whole_section() -> None:
    settings = config(
        f"""
        listen: "[::]:443"
        tls: {{cert_file: tls/c.pem, key_file: tls/k.pem}}
        control: {{token: {{env: T}}, state_file: state.json}}
        admission: {{mode: enforce}}
        tenants:
          acme: {{keys: [{KEY}], weight: 2, tokens_per_minute: 1000, service_class: batch, models: [m]}}
        tokenizers: {{m: models/m}}
        drain: {{settle: 5s, deadline: 10m}}
        """
    )
    assert settings.tls is not None
    assert settings.tls.cert_file == Path("/etc/cp/tls/c.pem")
    assert settings.control.state_file == Path("/etc/cp/state.json")
    assert settings.tokenizers == {"m": Path("/etc/cp/models/m")}
    assert settings.whole_admission.tenant("acme").weight == 2
    assert host_and_port(settings.listen) == ("::", 443)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: nowhere", ("listen", "'nowhere'")),
        ("listen: '::1:80'", ("listen",)),
        ("drain: {settle: 5m, deadline: 5m}", ("settle (5m)", "deadline (5m)")),
        ("tenants: {acme: {keys: [sk-secret]}}", ("gateway.tenants.acme.keys",)),
        (f"tenants: {{a: {{keys: [{KEY}]}}, b: {{keys: [{KEY}]}}}}", ("a and b have the same key",)),
        ("admission: {tenants: {a: {}}}", ("gateway.tenants",)),
        ("hold_header: 2s", ("'hold_header'", "did you mean 'hold_headers'")),
        ("tls: {cert_file: c.pem}", ("key_file is missing",)),
    ],
)
def test_what_cannot_be_is_refused(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        config(text)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert "sk-secret" not in str(refused.value)


def test_workers_share_what_the_gateway_has() -> None:
    tenants = {"acme": Tenant(tokens_per_minute=1000, sequences=3), "free": Tenant()}
    whole = GatewayProcessSettings(tenants=tenants).whole_admission
    assert part_of(whole, 1) == whole
    assert part_of(whole, 4).standing_share == 0.25
    quotas = Quotas(whole.tenant, part=1 / 4)
    assert quotas.take("acme", 250, 1, 0.0) is None
    denied = quotas.take("acme", 1, 1, 0.0)
    assert denied is not None
    assert denied.reason == "tenant_in_flight_limit", "a quarter of three, at least one"
    quotas.settle("acme", 250, 250, 1, 0.0)
    assert quotas.levels(30.0)["acme"].tokens == pytest.approx(125.0)
    assert quotas.take("free", 10**9, 100, 0.0) is None


def test_files_needed() -> None:
    assert files_needed(1000) > 2000
