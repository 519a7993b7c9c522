"""The sections envoy and webhook of the configuration, and how they go with the rest of it."""

from pathlib import Path

import pytest

from controlplane.config import ConfigError, parse
from controlplane.explain import explanation

POOLS = "pools: {chat: {targets: {static: [a:1, b:1]}}, batch: {targets: {static: [c:1]}}}\n"
ENVOY = """envoy:
  runtime_file: run/limits.json
  admin: [127.0.0.1:9901]
  clusters: [{name: vllm, pool: chat}]
"""
WEBHOOK = "webhook: {url: gw/limits, secret: {file: hook}, pools: [batch]}\n"
MODES = "daemon: {modes: {envoy: {chat: enforce}, webhook: {batch: enforce}}}\n"
PATH = Path("etc/controlplane.yaml")


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse(text, PATH)
    return [sentence.removeprefix(f"{PATH}: ") for sentence in error.value.sentences]


def test_both_may_stand_side_by_side_for_pools_of_their_own() -> None:
    config = parse(POOLS + ENVOY + WEBHOOK + MODES, PATH)
    assert config.envoy is not None
    assert config.webhook is not None
    assert config.envoy.runtime_file == Path("etc/run/limits.json")
    assert config.envoy.admin == ("http://127.0.0.1:9901",)
    assert config.webhook.url == "http://gw/limits"
    assert config.webhook.secret.file == Path("etc/hook")
    said = explanation(config)
    assert "Envoy at http://127.0.0.1:9901 gets the limit of pool chat for its cluster vllm" in said
    assert "http://gw/limits is told the limits of pool batch" in said
    assert "enforced: envoy on chat, webhook on batch" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (ENVOY.replace("chat", "chta"), "line 5: cluster vllm: there is no pool 'chta'"),
        (ENVOY.replace(", pool: chat", ""),
         "line 5: envoy.clusters.0: cluster vllm: give either pool or replica"),
        (ENVOY.replace("chat}", "chat, replica: a:1}"),
         "line 5: envoy.clusters.0: cluster vllm: give either pool or replica"),
        (ENVOY.replace("chat}", "chat}, {name: vllm, pool: batch}"),
         "line 5: envoy.clusters: cluster vllm stands twice in clusters"),
        (ENVOY.replace("chat}", "chat}, {name: v2, pool: chat}"),
         "line 5: envoy.clusters: pool or replica chat stands twice in clusters"),
        (ENVOY.replace("[127.0.0.1:9901]", "[]"),
         "line 4: envoy.admin: at least one is needed"),
        (ENVOY.replace("127.0.0.1:9901", "ftp://x"),
         "line 4: envoy.admin: ftp://x: neither http:// nor https://"),
        (ENVOY + WEBHOOK.replace(", pools: [batch]", ""),
         "line 5: cluster vllm: webhook sets the limits of chat already"),
        (WEBHOOK.replace("batch", "btach"), "line 2: webhook.pools: there is no pool 'btach'"),
        (WEBHOOK.replace("secret: {file: hook}, ", ""), "line 2: webhook.secret is missing"),
        (WEBHOOK.replace("pools", "backoff_first: 1m, pools"),
         "line 2: webhook: backoff_limit (30s) is under backoff_first (1m)"),
        (MODES.replace(", webhook: {batch: enforce}", ""),
         "line 2: daemon.modes.envoy: there is no section envoy"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_told(text: str, sentence: str) -> None:
    assert refused(POOLS + text) == [sentence]


@pytest.mark.parametrize(
    "text",
    [
        "webhook: {url: gw, secret: hunter2}",
        "webhook: {url: gw, secret: {file: [hunter2]}}",
        "webhook: {url: 'http://me:hunter2@gw', secret: {file: s}}",
        "webhook: {url: 'http://gw/x#y?token=hunter2', secret: {file: s}}",
        ENVOY.replace("127.0.0.1:9901", "'http://me:hunter2@e:1'"),
    ],
)
def test_what_may_be_a_secret_is_never_shown(text: str) -> None:
    assert "hunter2" not in "\n".join(refused(POOLS + text))


CLUSTER = "kubernetes: {}\n"
SCALE = "scale: {workloads: [{pool: chat, namespace: serving, name: vllm}]}\n"
RULE = "api_version: networking.istio.io/v1, kind: DestinationRule, namespace: s, name: r"
FIELD = f"{{pool: %s, path: %s, {RULE}}}"
MAX = "spec.trafficPolicy.connectionPool.http.http2MaxRequests"
OBJECTS = f"objects: {{fields: [{FIELD % ('chat', MAX)}]}}\n"


def test_objects_of_a_cluster_are_put_into_words() -> None:
    modes = "daemon: {modes: {pod: {chat: enforce}, scale: {chat: enforce}, objects: {chat: observe}}}\n"
    said = explanation(parse(POOLS + CLUSTER + SCALE + OBJECTS + modes, PATH))
    assert f"DestinationRule s/r {MAX} gets the limit of pool chat" in said
    assert (
        "Deployment serving/vllm gets as many replicas as pool chat should have, "
        "but nobody says how many: the pool has no section scale"
    ) in said
    assert "pods of pool chat that fail are taken out of its Service" in said
    assert "no pod is taken out of its Service" in explanation(parse(POOLS + CLUSTER, PATH))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SCALE, "scale writes objects of a cluster, but there is no section kubernetes"),
        (OBJECTS, "objects writes objects of a cluster, but there is no section kubernetes"),
        (CLUSTER + SCALE.replace("chat", "nope"), "Deployment serving/vllm: there is no pool 'nope'"),
        (CLUSTER + OBJECTS.replace("chat", "nope"), "there is no pool 'nope'"),
        (CLUSTER + OBJECTS.replace("chat", "batch") + WEBHOOK, "webhook sets the limits of batch already"),
        (CLUSTER + OBJECTS + ENVOY, "envoy sets the limits of chat already"),
        (CLUSTER + "scale: {workloads: []}\n", "at least one is needed"),
        (CLUSTER + f"objects: {{fields: [{FIELD % ('chat', 'metadata.name')}]}}\n", "path"),
        (
            CLUSTER + f"objects: {{fields: [{FIELD % ('chat', MAX)}, {FIELD % ('batch', MAX)}]}}\n",
            "stands twice",
        ),
        (CLUSTER + SCALE.replace("[{", "[{pool: chat, namespace: x, name: y}, {"), "pool chat stands twice"),
        ("daemon: {modes: {scale: {chat: enforce}}}\n", "daemon.modes.scale: there is no section scale"),
    ],
)  # fmt: skip
def test_objects_that_cannot_be_set_are_refused(text: str, why: str) -> None:
    assert any(why in sentence for sentence in refused(POOLS + text)), refused(POOLS + text)
