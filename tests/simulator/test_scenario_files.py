"""Scenario files: what is right is read, what is wrong is refused with its line and the reason."""

from pathlib import Path
from typing import get_args

import pytest

from controlplane.policy.limits.fixed import Fixed
from controlplane.policy.limits.slo_gradient import SloGradient
from controlplane.signals.decision import Mode
from controlplane.simulator.lengths import Fixed as FixedLength
from controlplane.simulator.lengths import Lognormal
from controlplane.simulator.scenario.faults import Fault, ScrapeSlow, Wedged
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.reading import built_in_names, load_scenario, parse_scenario
from controlplane.yaml_model import SettingsError

FAULT_KINDS = [get_args(model.model_fields["kind"].annotation)[0] for model in get_args(get_args(Fault)[0])]
GOOD = """\
title: everything that can be said
duration: 5m
warmup: 30s
seed: 7
fleet:
  - engine: h100-8b
    name: big
    pool: chat
    replicas: 3
    options: {max_num_seqs: 64, watermark: 0.01}
    constants: {host_ms: 2.5}
    replicas_per_node: 2
  - {engine: a100-8b, cold_start: 4m}
slo: {ttft: 1s, tpot: 50ms, objective: 99%}
scrape: {interval: 2s, timeout: 1500ms}
policy: {law: {law: fixed, limit: 40}, interval: 500ms, enforce: false}
admission:
  tenants:
    gold: {weight: 2.0}
workload:
  times: 1.5
  sources:
    - {name: mixed, mix: azure-conv, rate: {kind: day, low: 1, high: 9, period: 10m, peak: 5m}, tenant: gold}
    - name: drawn
      prompt: {kind: lognormal, median: 300, sigma: 1.1, largest: 4000}
      output: {kind: fixed, tokens: 60}
      rate: {kind: burst, base: 2.5, at: 1m, for: 20s, factor: 3}
      gaps: {kind: weibull, shape: 0.6}
      class: batch
      max_tokens: 100
      patience: {first_token: 10s}
      retry: {backoff: full-jitter, tries: 3, first: 500ms, budget: 10%}
    - {name: people, mix: m-small, users: 30, think: 5s}
faults:
  - {kind: wedged, at: 1m, for: 10s, replica: big-2}
  - {kind: scrape-slow, at: 2m, seconds: 3s}
  - {kind: xid, at: 3m, node: big-node-2, code: 79}
"""
LEAST = """\
title: least
duration: 60s
warmup: 0
fleet: [{engine: h100-8b}]
workload:
  sources:
    - {name: chat, mix: m-small, rate: 5}
"""


def parse(text: str) -> object:
    return parse_scenario(text, "s.yaml", Path())


def test_everything_that_can_be_said_is_read() -> None:
    scenario = parse_scenario(GOOD, "s.yaml", Path())
    assert scenario.duration == 300.0
    assert scenario.replica_names == ("big-1", "big-2", "big-3", "a100-8b-1")
    assert scenario.nodes["big-node-2"] == ("big-3",)
    big, small = scenario.fleet
    assert (big.settings.max_num_seqs, big.settings.watermark, big.law.host) == (64, 0.01, 0.0025)
    assert big.settings.max_num_batched_tokens == 8192  # what the options do not say stays the model's
    assert small.cold_start == 240.0
    assert scenario.policy.law == Fixed(limit=40)
    assert scenario.admission_settings.mode is Mode.OBSERVE
    assert scenario.admission_settings.interactive.ttft == 1.0
    assert scenario.admission_settings.tenant("gold").weight == 2.0
    mixed, drawn, people = scenario.workload.sources
    assert mixed.curve is not None
    assert mixed.curve.at(300.0) == pytest.approx(9)
    assert drawn.curve is not None
    assert (drawn.curve.at(59), drawn.curve.at(61), drawn.curve.at(81)) == (2.5, 7.5, 2.5)
    assert drawn.prompt == Lognormal(median=300, sigma=1.1, largest=4000)
    assert drawn.output == FixedLength(60)
    assert drawn.patience.build().first_token_seconds == 10.0
    assert drawn.retry is not None
    assert drawn.retry.build().budget_ratio == 0.1
    assert people.users == 30
    wedged, slow, xid = scenario.faults
    assert isinstance(wedged, Wedged)
    assert isinstance(slow, ScrapeSlow)
    assert (wedged.lasts, slow.lasts, xid.at) == (10.0, None, 180.0)


def test_the_default_law_takes_the_objectives_of_the_scenario_unless_it_has_its_own() -> None:
    scenario = parse_scenario(LEAST + "slo: {ttft: 10s, tpot: 75ms}\n", "s.yaml", Path())
    law = scenario.policy.for_slo(scenario.slo)
    assert isinstance(law, SloGradient)
    assert (law.ttft, law.tpot) == (10.0, 0.075)
    own = LEAST + "slo: {ttft: 10s, tpot: 75ms}\npolicy: {law: {law: slo-gradient, ttft: 3s}}\n"
    scenario = parse_scenario(own, "s.yaml", Path())
    law = scenario.policy.for_slo(scenario.slo)
    assert isinstance(law, SloGradient)
    assert (law.ttft, law.tpot) == (3.0, 0.075)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seed: 7", "sed: 7", "s.yaml: line 4: unknown key 'sed' (did you mean 'seed'?)"),
        ("duration: 5m", "duration: 5", "line 2: duration: a duration needs a unit, like 2s or 5m (got 5)"),
        ("duration: 5m", "", "s.yaml: duration is missing"),
        ("seed: 7", "seed: '7'", "line 4: seed: should be a valid integer (got '7')"),
        ("seed: 7", "seed: 7.5", "line 4: seed: should be a valid integer (got 7.5)"),
        ("seed: 7", "seed: 7\nseed: 8", "line 5: key 'seed' stands here and in line 4"),
        ("warmup: 30s", "warmup: 5m", "line 2: warmup (5m) leaves nothing of the duration (5m) to measure"),
        ("engine: h100-8b", "engine: h200-8b",
         "line 6: fleet.0: no engine model is called 'h200-8b'; there are a100-8b, h100-8b"),
        ("max_num_seqs: 64", "max_num_seq: 64",
         "line 10: fleet.0: options: Object contains unknown field max_num_seq"),
        ("max_num_seqs: 64", "max_num_seqs: 64000",
         "line 10: fleet.0: options: max_num_batched_tokens (8192) is under max_num_seqs (64000)"),
        ("host_ms: 2.5", "host_ms: fast",
         "line 11: fleet.0: constants: Expected float, got str - at $.host_ms"),
        ("host_ms: 2.5", "max_num_seqs: 9",
         "fleet.0: constants: max_num_seqs is an option of the engine, it belongs under options"),
        ("replicas: 3", "replicas: 0",
         "line 9: fleet.0.replicas: should be greater than or equal to 1 (got 0)"),
        ("engine: a100-8b", "engine: a100-8b, name: big",
         "line 13: fleet.1: there is another replica 'big-1'"),
        ("mix: azure-conv", "mix: azure-cnv", "line 23: workload.sources.0: no mix is called 'azure-cnv'"),
        ("users: 30, ", "",
         "line 33: workload.sources.2: a source has either a rate (requests come by themselves) or users"),
        ("mix: m-small,", "",
         "line 33: workload.sources.2: a source has a mix, or a trace, or lengths of prompt and output"),
        ("kind: day", "kind: dya",
         "line 23: workload.sources.0.rate: there is no 'dya', there are a number, steps, lines, burst, day"),
        ("low: 1,", "low: one,",
         "line 23: workload.sources.0.rate.low: should be a valid number (got 'one')"),
        ("low: 1,", "", "line 23: workload.sources.0.rate.low is missing"),
        ("period: 10m", "periode: 10m",
         "line 23: unknown key 'periode' under workload.sources.0.rate (did you mean 'period'?)"),
        ("median: 300", "median: -3",
         "line 25: workload.sources.1.prompt: Expected float > 0.0 - at $.median"),
        ("kind: lognormal", "kind: normal", "line 25: workload.sources.1.prompt: Invalid value 'normal'"),
        ("backoff: full-jitter", "backoff: jitter", "line 32: workload.sources.1.retry.backoff: should be"),
        ("budget: 10%", "budget: 110%",
         "line 32: workload.sources.1.retry.budget: a share lies between 0 and 1"),
        ("name: drawn", "name: mixed", "line 24: workload.sources.1: there is another source 'mixed'"),
        ("kind: wedged", "kind: wedgd",
         "line 35: faults.0.kind: there is no 'wedgd', there are lost, restarted,"),
        ("replica: big-2", "replica: big-4",
         "line 35: faults.0: there is no replica 'big-4', there are big-1, big-2, big-3, a100-8b-1"),
        ("at: 1m, for: 10s, replica", "at: 5m, for: 10s, replica",
         "line 35: faults.0.at: 300 s is not before the end of the run (300 s)"),
        ("node: big-node-2", "node: big-node-3",
         "line 37: faults.2: there is no node 'big-node-3', there are big-node-1, big-node-2, a100-8b-node"),
        ("seconds: 3s", "seconds: 3s, secnds: 3s",
         "line 36: unknown key 'secnds' under faults.1 (did you mean 'seconds'?)"),
        ("law: fixed, limit: 40", "law: fixed, limit: 0",
         "line 16: policy.law.limit: should be greater than or equal to 1 (got 0)"),
        ("law: {law: fixed, limit: 40}", "law: fixd",
         "line 16: policy.law: no policy is called 'fixd'; there are none,"),
        ("weight: 2.0", "weight: heavy", "line 19: admission.tenants.gold.weight: should be a valid number"),
        ("objective: 99%", "objective: 99", "line 14: slo.objective: a share lies between 0 and 1 (got 99)"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_line_and_reason(old: str, new: str, sentence: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(SettingsError) as caught:
        parse(GOOD.replace(old, new))
    assert len(caught.value.sentences) == 1
    assert sentence in caught.value.sentences[0]
    assert caught.value.sentences[0].startswith("s.yaml: ")


LENGTHS = "prompt: {kind: fixed, tokens: 9}, output: {kind: fixed, tokens: 9}"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("duration: 60s", "duration: -60s", "line 2: duration: not a duration like 250ms"),
        ("duration: 60s", "duration: 99999999d",
         "line 2: duration: should be less than or equal to 2678400 (got '99999999d')"),
        ("warmup: 0", "warmup: -5s", "line 3: warmup: not a duration like 250ms"),
        ("warmup: 0", "seed: 99999999999999999999", "line 3: seed: should be less than or equal to 9223372"),
        ("rate: 5", "rate: .nan", "line 7: workload.sources.0.rate: nan is no number to calculate with"),
        ("rate: 5", "rate: 1.0e+12", "line 5: workload: 6e+13 requests in 1m are more than 20,000,000"),
        ("rate: 5", "rate: {kind: lines, points: [[0s, 1], [9s, .inf]]}",
         "line 7: workload.sources.0.rate.points.1.1: inf is no number"),
        ("rate: 5", "rate: {kind: lines, points: [[10s, 1], [5s, 3]]}",
         "times of a rate curve must rise from 0 on (got [10.0, 5.0])"),
        ("rate: 5", "rate: {kind: steps, points: [[10s, 1], [5s, 3]]}",
         "times of a rate curve must rise from 0 on (got [10.0, 5.0])"),
        ("rate: 5", "rate: {points: [[0s, 1]]}",
         "line 7: workload.sources.0.rate: there is no 'curve without a kind', there are a number, steps, "),
        ("rate: 5", "rate: {kind: steps, points: []}", "rate.points: at least one is needed"),
        ("rate: 5", "rate: {kind: day, low: 1, high: 2, days: 1000000000}",
         "line 7: workload.sources.0.rate.days: should be less than or equal to 366 (got 1000000000)"),
        ("rate: 5", "users: 100000000",
         "line 7: workload.sources.0.users: should be less than or equal to 100000 (got 100000000)"),
        ("rate: 5", "rate: 5, class: vip",
         "line 7: workload.sources.0.class: should be 'interactive', 'agent' or 'batch' (got 'vip')"),
        ("rate: 5", "rate: 5, max_tokens: 99999999999999999999",
         "line 7: workload.sources.0.max_tokens: should be less than or equal to 10000000"),
        ("mix: m-small", LENGTHS.replace("9}", "9000000000}", 1),
         "line 7: workload.sources.0.prompt: Expected int <= 10000000 - at $.tokens"),
        ("mix: m-small", LENGTHS + ", gaps: {kind: weibull, shape: 0.0001}",
         "line 7: workload.sources.0.gaps: Expected float >= 0.1 - at $.shape"),
        ("mix: m-small", LENGTHS.replace("kind: fixed, tokens: 9",
                                         "kind: quantiles, points: [[0, 1], [1, 99999999]]", 1),
         "line 7: workload.sources.0.prompt: lengths lie between 1 and 10,000,000 tokens"),
        ("mix: m-small", "trace: {file: /dev/zero}",
         "line 7: workload.sources.0.trace.file: there is no file /dev/zero"),
        ("mix: m-small, rate: 5}", "mix: m-small, rate: 5}\n  times: .inf",
         "line 8: workload.times: inf is no number to calculate with"),
        ("    - {name: chat, mix: m-small, rate: 5}", "    []", "workload.sources: at least one is needed"),
        ("[{engine: h100-8b}]", "[]", "line 4: fleet: at least one is needed"),
        ("[{engine: h100-8b}]", "h100-8b", "line 4: fleet: should be a list (got 'h100-8b')"),
        ("[{engine: h100-8b}]", "[{engine: h100-8b, replicas: 600, name: a}, {engine: h100-8b, "
         "replicas: 600, name: b}]", "line 4: fleet: 1,200 replicas are more than 1,000"),
        ("h100-8b}", "h100-8b, constants: {host_ms: -5.0}}",
         "line 4: fleet.0: constants: Expected float >= 0.0 - at $.host_ms"),
        ("h100-8b}", "h100-8b, constants: {weights_ms: 0.0}}",
         "line 4: fleet.0: constants: Expected float > 0.0 - at $.weights_ms"),
        ("h100-8b}", "h100-8b, options: {num_gpu_blocks: -5}}",
         "line 4: fleet.0: options: -5 blocks of 16 hold -96 tokens, less than max_model_len"),
        ("title: least", "title: least\nscrape: {interval: 2s, timeout: 4s}",
         "line 2: scrape: timeout (4s) is not under interval (2s): no daemon starts so"),
        ("title: least", "title: least\npolicy: {interval: 0.001ms}",
         "line 2: policy.interval: should be greater than or equal to 0.01"),
        ("title: least", "title: !!python/object/apply:os.system [id]",
         "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system has no meaning here"),
        ("title: least", "title: &a [*a]", "this is nested too deeply"),
        ("title: least", "title: " + "[" * 3000 + "]" * 3000, "line 1: this is not YAML: "),
        ("title: least", "\n".join(f"{a}: &{a} [{', '.join([f'*{b}' if b else 'x'] * 20)}]"
                                   for a, b in zip("abcde", ["", *"abcd"], strict=True)),
         "this holds more than 100000 values"),
    ],
)  # fmt: skip
def test_what_would_run_for_ever_or_nowhere_is_refused(old: str, new: str, sentence: str) -> None:
    assert LEAST.count(old) == 1
    with pytest.raises(SettingsError) as caught:
        parse(LEAST.replace(old, new))
    assert len(caught.value.sentences) == 1
    assert sentence in caught.value.sentences[0]
    assert caught.value.sentences[0].startswith("s.yaml: ")


def test_all_that_is_wrong_is_told_at_once_in_the_order_of_the_lines() -> None:
    bad = GOOD.replace("seed: 7", "seed: x").replace("tries: 3", "tries: 0")
    bad = bad.replace("kind: wedged", "kind: w")
    with pytest.raises(SettingsError) as caught:
        parse(bad)
    lines = [sentence.split(": ")[1] for sentence in caught.value.sentences]
    assert lines == ["line 4", "line 32", "line 35"]


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n", "title: [\n", "a: b: c\n"])
def test_what_is_no_scenario_at_all_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse(text)


def test_a_file_that_is_not_there_and_a_name_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no-such\.yaml: cannot be read: No such file"):
        load_scenario(str(tmp_path / "no-such.yaml"))
    with pytest.raises(SettingsError, match="no file and no built-in scenario 'stedy-2x'"):
        load_scenario("stedy-2x")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8 text"):
        load_scenario(str(tmp_path / "binary.yaml"))


@pytest.mark.parametrize("name", built_in_names())
def test_a_built_in_scenario_is_the_same_when_written_and_read(name: str) -> None:
    scenario = load_scenario(name)
    assert Scenario.model_validate_json(scenario.model_dump_json(by_alias=True)) == scenario


def test_all_built_in_scenarios_are_good_and_cover_what_goes_wrong() -> None:
    names = built_in_names()
    assert len(names) >= 15
    scenarios = {name: load_scenario(name) for name in names}
    assert len({scenario.title for scenario in scenarios.values()}) == len(names)
    kinds = {fault.kind for scenario in scenarios.values() for fault in scenario.faults}
    assert kinds == set(FAULT_KINDS)
    for times in ("0.8", "1", "2", "3", "10"):
        assert scenarios[f"steady-{times}x"].workload.times == float(times)


def test_a_trace_is_found_beside_its_scenario_and_must_be_long_enough(tmp_path: Path) -> None:
    rows = "".join(f"{i * 0.5},{100 + i},{10 + i}\n" for i in range(100))
    (tmp_path / "t.csv").write_text("t_s,input_tokens,output_tokens\n" + rows)
    file = tmp_path / "s.yaml"
    trace = LEAST.replace("mix: m-small", "trace: {file: t.csv%s}")
    file.write_text(trace % ", resample: 10s")
    source = load_scenario(str(file)).workload.sources[0]
    assert source.trace is not None
    assert source.trace.file == tmp_path / "t.csv"
    for more, sentence in {
        "": "line 7: workload.sources.0.trace: 100 requests are too few for 60 s",
        ", window: [20s, 10s]": "line 7: workload.sources.0.trace: window must end after it starts",
        ", window: [0s, 10s], resample: 20s": "resample (20 s) is longer than what there is (10 s)",
    }.items():
        file.write_text(trace % more)
        with pytest.raises(SettingsError) as caught:
            load_scenario(str(file))
        assert sentence in str(caught.value)
    (tmp_path / "t.csv").write_text("t_s,input_tokens,output_tokens\n1,2,x\n")
    with pytest.raises(SettingsError, match=r"line 7: .*t\.csv:2: not a time and two numbers of tokens"):
        load_scenario(str(file))
    (tmp_path / "t.csv").unlink()
    with pytest.raises(SettingsError, match=r"line 7: workload\.sources\.0\.trace\.file: there is no file"):
        load_scenario(str(file))


def test_the_example_in_the_documentation_is_good(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    (tmp_path / "example.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    rows = "".join(f"{i},100,50\n" for i in range(2000))
    (tmp_path / "trace.csv").write_text("t_s,input_tokens,output_tokens\n" + rows)
    scenario = load_scenario(str(tmp_path / "example.yaml"))
    assert len(scenario.workload.sources) == 3
    for kind in FAULT_KINDS:
        assert f"`{kind}`" in page


def test_two_pools_are_told_to_the_gateway() -> None:
    text = LEAST.replace("fleet: [{engine: h100-8b}]", "fleet:\n  - {engine: h100-8b, name: s, pool: short}")
    text += "admission:\n  pools: {short: short, long: long, boundary: 2000}\n"
    scenario = parse_scenario(text, "s.yaml", Path())
    assert scenario.admission_settings.pools is not None
    assert scenario.admission_settings.pools.boundary == 2000
    assert scenario.fleet[0].pool == "short"
