"""The configuration: what is right is put together, what is wrong is told, each with its line and value."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane import actuators
from controlplane.config import Config, ConfigError, load, parse, without_file
from controlplane.explain import explanation, off_edge

PATH = Path("etc/controlplane.yaml")
ROOT = Path(__file__).parents[2]

WHOLE = """
pools:
  chat:
    targets: {static: [http://127.0.0.1:8000, "10.0.0.2:8000"]}
    slo: {ttft: 2.5s, tpot: 50ms, objective: 99%}
  batch:
    targets:
      file_sd: [targets/*.yml, /srv/all.json]
scrape:
  interval: 2s
  timeout: 1s
  auth: {bearer: {file: secrets/token}}
policy: {stale_after: 10s, window: 2m}
daemon: {journal: state/journal.db, tick: 500ms, keep_samples: 1h, journal_limit: 64MiB}
api: {listen: "[::1]:9090", token_file: /run/token}
prometheus: {url: "http://prom:9090"}
gateways:
- {url: "http://gw:8080", token: {env: GW_TOKEN}}
"""
LEAST = "pools: {chat: {targets: {static: [h:8000]}}}\n"


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse(text, PATH)
    assert str(error.value).splitlines() == list(error.value.sentences)
    return [sentence.removeprefix(f"{PATH}: ") for sentence in error.value.sentences]


# -- what is right -----------------------------------------------------------------------------------


def test_a_whole_file_is_put_together_from_the_rooms() -> None:
    config = parse(WHOLE, PATH)
    assert config.policy.poll_interval == config.scrape.interval == 2.0
    assert config.policy.slo("chat").objective == 0.99
    assert config.policy.slo("batch").objective == 0.95
    assert (config.policy.window, config.daemon.tick, config.api.host) == (120.0, 0.5, "::1")
    assert config.daemon.journal_limit == 64 << 20
    assert config.gateways[0].token.env == "GW_TOKEN"


def test_paths_are_taken_from_where_the_file_is() -> None:
    config = parse(WHOLE, PATH)
    assert config.path == PATH
    assert config.daemon.journal == Path("etc/state/journal.db")
    assert config.daemon.hold_path == Path("etc/state/hold")
    assert config.daemon.overrides_path == Path("etc/state/overrides.json")
    assert config.scrape.auth is not None
    assert config.scrape.auth.bearer is not None
    assert config.scrape.auth.bearer.file == Path("etc/secrets/token")
    assert config.api.token_file == Path("/run/token")
    targets = config.pools["batch"].targets
    assert targets is not None
    assert targets.file_sd == ("etc/targets/*.yml", "/srv/all.json")


def test_a_name_of_a_pool_that_looks_like_a_path_stays_a_name() -> None:
    config = parse("pools: {path: {targets: {static: [h:8000]}}}", PATH)
    assert list(config.pools) == ["path"]


def test_no_file_is_needed() -> None:
    config = without_file(("http://a:8000", "b:8000"))
    assert list(config.pools) == ["default"]
    targets = config.pools["default"].targets
    assert targets is not None
    assert targets.static == ("http://a:8000", "b:8000")
    assert config.daemon.journal == Path("var/journal.db")
    assert config.path is None
    with pytest.raises(ConfigError, match=r"^pools.default.targets.static: ftp://x: neither http:// nor"):
        without_file(("ftp://x",))


def test_empty_sections_and_comments_are_as_good_as_none() -> None:
    assert parse(f"{LEAST}scrape:\n# interval: 1s\npolicy:\n", PATH) == parse(LEAST, PATH)


def test_anchors_and_merge_keys_work() -> None:
    text = """
pools:
  a: {targets: {static: [a:1]}, slo: &slo {ttft: 1s, tpot: 25ms}}
  b: {targets: {static: [b:1]}, slo: {<<: *slo, ttft: 5s}}
"""
    config = parse(text, PATH)
    assert (config.policy.slo("b").ttft, config.policy.slo("b").tpot) == (5.0, 0.025)


def test_environment_variables_are_not_put_in() -> None:
    assert parse(f"{LEAST}daemon: {{journal: $HOME/j.db}}", PATH).daemon.journal == Path("etc/$HOME/j.db")


# -- what is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pools:\n  chat:\n    targets: {static: [h:1]}\n    slo: {ttfft: 1s}",
         "line 4: unknown key 'ttfft' under pools.chat.slo (did you mean 'ttft'?)"),
        (LEAST + "scrap: {}", "line 2: unknown key 'scrap' (did you mean 'scrape'?)"),
        (LEAST + "policy:\n  poll_interval: 3s",
         "line 3: unknown key 'poll_interval' under policy (known: stale_after, stalled_after, rate_window, "
         "goodput_cell, window, enough_requests, budget, quarantine, boundary)"),
        (LEAST + "daemon:\n  tick: 5", "line 3: daemon.tick: a duration needs a unit, like 2s or 5m (got 5)"),
        (LEAST + "daemon:\n  tick: 1ms",
         "line 3: daemon.tick: should be greater than or equal to 0.1 (got '1ms')"),
        (LEAST + "daemon: {journal_limit: 5kB}",
         "line 2: daemon.journal_limit: the journal needs at least 1MiB (got 5000 bytes)"),
        (LEAST + "daemon: {keep_samples: 1m}",
         "line 2: daemon: keep_samples (1m) is under 2m: the journal could not be replayed from one "
         "checkpoint to the next"),
        (LEAST + "daemon: {modes: {gatewy: {chat: enforce}}}",
         f"line 2: daemon.modes: this version has no actuator 'gatewy': it has {', '.join(actuators.NAMES)}"),
        (LEAST + "policy:\n  window: 1m\n  stale_after: 14s",
         "line 4: policy: stale_after (14s) is under three polling intervals (3 x 5s): one slow scrape would "
         "blind the control plane"),
        (LEAST + "scrape:\n  timeout: 2s\n  interval: 10s",
         "line 4: scrape.interval: stale_after (20s) is under three polling intervals (3 x 10s): one slow "
         "scrape would blind the control plane"),
        (LEAST + "scrape: {interval: 2s}", "line 2: scrape: timeout (4s) is not under interval (2s): a slow "
         "target would cost its next turn"),
        ("pools: {chat: {targets: {static: h:1}}}",
         "line 1: pools.chat.targets.static: should be a list (got 'h:1')"),
        ("pools: {chat: {targets: {}}}",
         "line 1: pools.chat.targets: targets needs exactly one of static, file_sd, dns, kubernetes "
         "(got none)"),
        ("pools: {chat: {targets: {kubernetes: {selector: app=vllm}}}}",
         "line 1: pool chat has pods, but there is no section kubernetes; an empty one ({}) is the pod's own "
         "service account"),
        ("pools: {chat: {targets: {kubernetes: {selector: app=vllm, namespace: Serving}}}}",
         "line 1: pools.chat.targets.kubernetes.namespace: String should match pattern "
         "'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$' (got 'Serving')"),
        ("pools: {chat: {targets: {static: [h:1]}}}\ngpus: {dcgm_pods: {selector: app=dcgm}}",
         "line 2: gpus: pods tell of the GPUs, but there is no section kubernetes"),
        ("pools: {chat: {targets: {static: [h:1]}}}\nkubernetes: {context: prod}",
         "line 2: kubernetes: context (prod) is only for a kubeconfig"),
        ("pools: {'a b': {targets: {static: [h:1]}}}",
         "line 1: pools.a b: a pool's name is made of letters, digits and . _ - inside"),
        ("pools: {chat: }", "line 1: pools.chat: should be a mapping"),
        ("pools: []", "line 1: pools: should be a mapping"),
        ("pools:\n  chat: {slo: {ttft: 1s}}",
         "line 2: pool chat has no targets, and there is no prometheus to know them"),
        ("", "there is nothing to watch: neither pools nor prometheus is given"),
        ("- a", "line 1: a mapping of sections is needed at the top"),
        ("just text", "line 1: a mapping of sections is needed at the top"),
        (LEAST + LEAST, "line 2: key 'pools' stands here and in line 1"),
        ("pools:\n  a:\n    slo:\n      ttft: 1s\n      ttft: 2s",
         "line 5: key 'ttft' under pools.a.slo stands here and in line 4"),
        ("pools: {a: [", "line 2: this is not YAML: "),
        ("pools:\n\t a: 1", "line 2: this is not YAML: "),
        ("a: !!python/object/apply:os.system [ls]",
         "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system has no meaning here"),
        ("a: !foo 1", "line 1: this is not YAML: could not determine a constructor for the tag '!foo'"),
        ("a: 1\n---\nb: 2", "line 2: this is not YAML: but found another document"),
        ("? {a: b}\n: c", "line 1: a key is not a word"),
        (LEAST + "daemon: {tick: 2026-02-30}", "line 2: '2026-02-30' is no value: "),
        ("gateways: [{url: 'http://g', token: {env: A}}, {token: {env: A}}]\n" + LEAST,
         "line 1: gateways.1.url is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_line_and_value(text: str, sentence: str) -> None:
    sentences = refused(text)
    assert len(sentences) == 1
    assert sentences[0] == sentence or (sentence.endswith(": ") and sentences[0].startswith(sentence))


def test_modes_are_for_actuators_and_pools_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.actuators.NAMES", ("gateway",))
    modes = "daemon:\n  modes:\n    gateway:\n      '*': observe\n      {}: enforce\n"
    config = parse(LEAST + modes.format("chat"), PATH)
    assert [config.daemon.mode("gateway", pool) for pool in ("chat", "batch", None)] == [
        "enforce", "observe", "observe",
    ]  # fmt: skip
    assert "enforced: gateway on chat" in explanation(config)
    everywhere = LEAST + "daemon:\n  modes:\n    gateway: {'*': enforce%s}\n"
    assert "enforced: gateway on every pool" in explanation(parse(everywhere % "", PATH))
    others = explanation(parse(everywhere % ", chat: observe", PATH))
    assert "enforced: gateway on every other pool" in others
    assert refused(LEAST + modes.format("chta")) == ["line 6: daemon.modes.gateway: there is no pool 'chta'"]


def test_everything_that_is_wrong_is_told_at_once_in_its_order() -> None:
    sentences = refused(
        "pools:\n  chat:\n    targets: {static: [h:1]}\n    slo: {ttft: 5}\nfoo: 1\npolicy:\n  windw: 1m\n"
    )
    assert [sentence.partition(":")[0] for sentence in sentences] == ["line 4", "line 5", "line 7"]


@pytest.mark.parametrize(
    "text",
    [
        "prometheus: {url: 'http://me:hunter2@prom:9090'}",
        "prometheus: {url: 'http://prom', auth: hunter2}",
        "prometheus: {url: 'http://prom', auth: {bearer: hunter2}}",
        "prometheus: {url: 'http://prom', auth: {basic: {username: me, password: hunter2}}}",
        "gateways: [{url: 'http://g', token: hunter2}]\n" + LEAST,
        "scrape: {auth: {bearer: {file: [hunter2]}}}\n" + LEAST,
        "api: {token_file: [hunter2]}\n" + LEAST,
        "pools: {chat: {targets: {static: 'http://me:hunter2@h:1'}}}",
        "pools: {chat: {targets: {static: ['http://me:hunter2@h:1']}}}",
    ],
)
def test_what_may_be_a_secret_is_never_shown(text: str) -> None:
    assert "hunter2" not in "\n".join(refused(text))


def test_files_are_read_with_care(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for content, sentence in (
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe\x00", "not UTF-8 text: byte 0"),
        (b"#" * ((1 << 20) + 1), "larger than 1048576 bytes"),
        (b"a: \x00", "this is not YAML: "),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError) as error:
            load(path)
        assert str(error.value).startswith(f"{path}: {sentence}")
    path.write_bytes(b"\xef\xbb\xbf" + LEAST.encode())
    assert isinstance(load(path), Config)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "a: " + "{a: " * 900 + "1" + "}" * 900,
        "a: &a [*a]",
        "a: &a [1,2,3,4,5,6,7,8,9]\n"
        + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefghi")),
    ],
    ids=["deep", "deep mappings", "in itself", "a billion laughs"],
)  # fmt: skip
def test_a_document_that_would_explode_is_refused(text: str) -> None:
    (sentence,) = refused(text)
    assert "too deeply" in sentence or "nesting" in sentence or "more than 100000 values" in sentence


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`,? \n\t1.", max_size=80))
def test_no_text_makes_more_than_sentences(text: str) -> None:
    told: tuple[str, ...] = ("",)
    try:
        parse(text, PATH)
    except ConfigError as error:
        told = error.sentences
    assert told
    assert all(sentence.isprintable() for sentence in told)


def test_the_slow_loader_does_as_the_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = parse(WHOLE, PATH)
    monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    assert parse(WHOLE, PATH) == fast
    assert refused(LEAST + LEAST) == ["line 2: key 'pools' stands here and in line 1"]


# -- in words ----------------------------------------------------------------------------------------


def test_objectives_between_bucket_edges_are_told_with_their_neighbours() -> None:
    assert off_edge(parse(LEAST, PATH)) == []
    config = parse("pools: {chat: {targets: {static: [h:1]}, slo: {ttft: 2s, tpot: 35ms}}}", PATH)
    assert off_edge(config) == [
        "pool chat: ttft 2s lies between bucket edges of vLLM (next to it: 1s and 2.5s): "
        "goodput will be a wide interval",
        "pool chat: tpot 35ms lies between bucket edges of vLLM (next to it: 25ms and 50ms): "
        "goodput will be a wide interval",
    ]
    config = parse("pools: {chat: {targets: {static: [h:1]}, slo: {ttft: 9m, tpot: 1ms}}}", PATH)
    assert [
        "next to it: 160s and 640s)" in off_edge(config)[0],
        "next to it: 10ms)" in off_edge(config)[1],
    ] == [True] * 2


def test_an_explanation_names_all_that_would_be_touched_or_kept() -> None:
    said = "\n".join(explanation(parse(WHOLE, PATH)))
    for part in (
        "pool chat: engines http://127.0.0.1:8000, 10.0.0.2:8000",
        "objective: 99% of requests with TTFT at most 2.5s and TPOT at most 50ms",
        "pool batch: engines from the files etc/targets/*.yml, /srv/all.json",
        'Prometheus at http://prom:9090 is asked for engines with {job="vllm"}',
        "gateway http://gw:8080 tells how requests ended",
        "scraped every 2s (timeout 1s); a reading older than 10s is unknown; a tick decides every 500ms",
        "mode: observe (nothing is acted on)",
        "hold: while etc/state/hold exists nothing is acted on",
        "journal: etc/state/journal.db, samples for 1h and at most 64.0MiB",
        "API: [::1]:9090, orders with the token of /run/token",
    ):
        assert part in said


TWO_POOLS = """
pools:
  small: {targets: {static: [h:1]}}
  large: {targets: {static: [h:2]}}
gateway: {admission: {pools: {short: small, long: large}}}
"""
ONE_GATEWAY = "gateways: [{url: http://gw:8080, token: {env: T}}]\n"


@pytest.mark.parametrize(
    ("more", "who"),
    [
        ("", "nobody moves that boundary, for no gateway tells what it sees"),
        (ONE_GATEWAY, "the daemon says where that boundary should be, and leaves it"),
        (
            ONE_GATEWAY + "daemon: {modes: {gateway: {small: enforce}}}",
            "the daemon says where that boundary should be, and leaves it",
        ),
        (
            ONE_GATEWAY + "daemon: {modes: {gateway: {'*': enforce}}}",
            "the daemon moves that boundary",
        ),
    ],
)
def test_who_moves_the_boundary_between_two_pools_is_explained(more: str, who: str) -> None:
    config = parse(TWO_POOLS + more, PATH)
    assert config.policy.pair == config.gateway.admission.pools
    said = "\n".join(explanation(config))
    assert f"requests of up to 8,192 tokens go to pool small, longer ones to large; {who}" in said


def test_two_pools_that_there_are_not_are_refused_and_the_pair_stands_in_one_place() -> None:
    assert refused(TWO_POOLS.replace("long: large}", "long: big}")) == [
        "line 5: gateway.admission.pools: there is no pool 'big'"
    ]
    (sentence,) = refused(TWO_POOLS + "policy: {pair: {short: small, long: large}}")
    assert sentence.startswith("line 6: unknown key 'pair' under policy")
    assert parse(TWO_POOLS + "policy: {boundary: {rest: 1h}}", PATH).policy.boundary.rest == 3600


def test_a_tick_that_would_lose_pages_is_refused_with_both_values() -> None:
    with pytest.raises(ConfigError) as error:
        parse(LEAST + "\nscrape: {interval: 1s, timeout: 500ms}\ndaemon: {tick: 4s}", PATH)
    assert "daemon.tick (4s) is over 3 x scrape.interval (1s): pages would be lost" in str(error.value)


def test_the_example_of_the_readme_is_good() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    config = parse(example, PATH)
    assert config.api.token() is None


def test_the_reference_of_the_configuration_is_current() -> None:
    run = [sys.executable, ROOT / "scripts" / "configuration_reference.py", "--print"]
    page = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert page == (ROOT / "docs" / "configuration.md").read_text(), "run scripts/configuration_reference.py"
