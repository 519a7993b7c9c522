"""From pages to signals: each trap of each engine, and every captured page."""

import math
import re
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from controlplane.policy import view
from controlplane.policy.growth import Mark
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Signals
from controlplane.sources.catalog import INFERENCE_PATHS, TICK_SIGNALS, Catalog, full, tick
from controlplane.sources.compiler import LONGEST_LABEL, MOST_ENGINES, MOST_MODELS, MOST_PARTS
from controlplane.sources.dialect import Translator
from controlplane.sources.dialects import ENGINES, SERVER, Dialect, Row, dialect, engines
from controlplane.sources.exposition import MOST_SERIES, Reader
from controlplane.sources.version import Bound, VersionRange, version_range

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
PAGES = sorted(CAPTURES.rglob("*.prom"))


def translate(page: str | bytes, catalog: Catalog | None = None) -> Scrape | ScrapeFailure:
    catalog = catalog or full()
    body = page.encode() if isinstance(page, str) else page
    read = Reader(catalog.wanted).read(body)
    return Translator(catalog).translate(read, body, target="t", at=1.0, seconds=0.1)


def scrape(page: str | bytes, catalog: Catalog | None = None) -> Scrape:
    result = translate(page, catalog)
    assert isinstance(result, Scrape), result
    return result


def only(page: str | bytes, catalog: Catalog | None = None) -> Signals:
    """The signals of a page with one engine."""
    engines_ = scrape(page, catalog).engines
    assert len(engines_) == 1
    return next(iter(engines_.values()))


# --- captured pages -------------------------------------------------------------------------------------


def printed(path: Path) -> dict[str, dict[str, float]]:
    """Sums of sample values by sample name and engine label, read by another parser."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            if sample.labels.get("le") in (None, "+Inf"):
                sums[sample.name][sample.labels.get("engine", "")] += sample.value
    return sums


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_captured_page_gives_the_values_that_are_on_it(path: Path) -> None:
    page = scrape(path.read_bytes())
    sums = printed(path)
    checked = 0
    signals_seen = set()
    for row in dialect("vllm").metrics:
        if row.signal in signals_seen or row.kind in ("fact", "adapters"):
            continue
        name = "vllm:" + row.name
        for engine, value in sums[name + ("_count" if row.kind == "histogram" else "")].items():
            signals_seen.add(row.signal)
            signals = page.engines.get(engine) or (
                page.engines["0"] if len(page.engines) == 1 else page.server
            )
            if row.kind == "histogram":
                assert signals.histograms[row.signal].count == value
                assert signals.histograms[row.signal].total == pytest.approx(sums[name + "_sum"][engine])
                assert signals.histograms[row.signal].bounds[-1] == math.inf
            elif row.value_of:
                assert sum(signals.by[row.signal].values()) == value
            else:
                assert signals.numbers[row.signal] == value
            checked += 1
    assert checked > 20
    starts = sums["process_start_time_seconds"]
    assert page.server.numbers.get("start_time") == (starts[""] if starts else None)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_captured_page_is_of_its_version_whoever_looks(path: Path) -> None:
    version = re.match(r"vllm-([\d.]+)", path.name)
    assert version
    true = tuple(int(number) for number in version[1].split("."))
    page = scrape(path.read_bytes())
    assert page.engine == "vllm"
    assert page.models == ("tiny",)
    for bound in page.version.split():
        sign, text = re.fullmatch(r"(>=|<=|<|>)([\d.]+)", bound).groups()  # type: ignore[union-attr]
        end = tuple(int(number) for number in text.split("."))
        assert {">=": true >= end, "<": true < end, "<=": true <= end, ">": true > end}[sign], page.version
    assert scrape(path.read_bytes(), tick()).version == page.version


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("logger-only/vllm-0.8.5-idle", ">=0.7.3 <0.9.2"),
        ("logger-only/vllm-0.10.2-idle", ">=0.10.2 <0.11"),
        ("logger-only/vllm-0.12.0-idle", ">=0.11.1 <0.13"),
        ("logger-only/vllm-0.17.0-idle", ">=0.17 <0.20"),
        ("vllm-0.27-overload", ">=0.20 <0.30"),
        ("vllm-0.32-overload", ">=0.32"),
    ],
)
def test_the_names_on_a_captured_page_narrow_its_version(name: str, version: str) -> None:
    assert scrape((CAPTURES / f"{name}.prom").read_bytes()).version == version


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_tick_reads_the_same_values_from_fewer_series(path: Path) -> None:
    body = path.read_bytes()
    whole, narrow = scrape(body), scrape(body, tick())
    assert whole.engines.keys() == narrow.engines.keys()
    for all_of_it, part in [
        (whole.server, narrow.server),
        *((whole.engines[engine], narrow.engines[engine]) for engine in whole.engines),
    ]:
        for field in Signals.__struct_fields__:
            kept = {name: value for name, value in getattr(all_of_it, field).items() if name in TICK_SIGNALS}
            assert getattr(part, field) == kept | getattr(part, field)
            assert kept.keys() == getattr(part, field).keys()
    assert Reader(tick().wanted).read(body).samples == Reader(full().wanted).read(body).samples


def test_overload_capture_by_hand() -> None:
    page = scrape((CAPTURES / "vllm-0.32-overload.prom").read_bytes())
    engine = page.engines["0"]
    assert engine.numbers["running"] == 9
    assert engine.numbers["waiting"] == 31
    assert engine.by["waiting_by_reason"] == {"capacity": 31, "deferred": 0}
    assert engine.numbers["preemptions_total"] == 163
    assert engine.numbers["kv_usage"] == 1.0
    assert engine.numbers["kv_capacity_tokens"] == 2048
    assert engine.numbers["kv_blocks"] == 64
    assert engine.numbers["kv_block_size"] == 32
    assert engine.by["sleep_state"] == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    assert "sleep_state" not in engine.numbers  # its parts are states: their sum means nothing
    assert engine.by["finished_total"]["length"] == engine.numbers["finished_total"]
    assert page.server.by["http_inference_requests"] == {"2xx": 1105}
    assert page.warnings == ()
    assert engine.unknown == {}


def test_two_engines_behind_two_servers_by_hand() -> None:
    """Figures from the capture: each engine has 64 blocks, and num_gpu_blocks says 128 for both together."""
    page = scrape((CAPTURES / "vllm-0.32-dp2-api2-overload.prom").read_bytes())
    assert {name: engine.numbers["waiting"] for name, engine in page.engines.items()} == {"0": 15, "1": 26}
    assert page.engines["1"].numbers["kv_usage"] == pytest.approx(60 / 63)
    assert page.engines["1"].numbers["kv_capacity_tokens"] == 2048
    assert page.engines["0"].numbers["kv_blocks"] == 128
    assert page.server.by["rejected_total"] == {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
    assert "start_time" not in page.server.numbers
    assert page.server.numbers["http_inference_requests"] == 51


def test_gauges_that_wait_for_the_first_step_are_absent_and_no_warning() -> None:
    page = scrape((CAPTURES / "vllm-0.32-dp2-api2-idle.prom").read_bytes())
    gauges = {"running", "waiting", "kv_usage"}
    assert page.engines["1"].unknown == dict.fromkeys(gauges, Reason.ABSENT)
    assert page.warnings == ()


def test_http_requests_are_zero_before_the_first_and_absent_without_the_instrumentator() -> None:
    idle = scrape((CAPTURES / "vllm-0.32-idle.prom").read_bytes()).server.numbers
    assert idle["http_inference_requests"] == 0
    assert idle["http_requests_total"] == 0
    silent = scrape((CAPTURES / "logger-only" / "vllm-0.22.0-idle.prom").read_bytes()).server.numbers
    assert "http_inference_requests" not in silent


def test_http_inference_requests_are_posts_to_inference_paths_only() -> None:
    path = CAPTURES / "vllm-0.32-devmode-end.prom"
    by: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            asked = sample.labels.get("handler") in ("/v1/completions", "/v1/chat/completions")
            if sample.name == "http_requests_total" and sample.labels["method"] == "POST" and asked:
                by[sample.labels["status"]] += sample.value
    page = scrape(path.read_bytes())
    assert page.server.by["http_inference_requests"] == dict(by)
    assert page.server.numbers["http_inference_requests"] == sum(by.values()) == 552
    assert page.server.numbers["http_requests_total"] > 552


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catalog", [full(), tick()], ids=["full", "tick"])
def test_wanted_names(catalog: Catalog) -> None:
    for name in ("vllm:num_requests_running", "vllm_num_requests_running", "sglang_token_usage"):
        assert catalog.wanted(name)
    for suffix in ("_bucket", "_sum", "_count"):
        assert catalog.wanted("vllm:time_to_first_token_seconds" + suffix)
    for name in (
        "vllm_router:num_requests_running",
        "vllm_router_num_requests_running",
        "vllm:num_incoming_requests_total",
        "vllm:request_success_created",
        "vllm:time_to_first_token_seconds_created",
        "vllm:time_to_first_token_seconds",
        "num_requests_running_of_someone",
        "python_info",
        "",
    ):
        assert not catalog.wanted(name)


def test_names_with_an_underscore_for_the_colon_are_the_same_names() -> None:
    body = (CAPTURES / "vllm-0.32-overload.prom").read_bytes()
    mangled = re.sub(rb"^vllm:", b"vllm_", body, flags=re.MULTILINE)
    assert mangled != body
    assert scrape(mangled) == scrape(body)


def test_both_spellings_on_one_page_count_once() -> None:
    page = scrape(
        'vllm:num_requests_running{model_name="m"} 3\nvllm_num_requests_running{model_name="m"} 3\n'
    )
    assert page.engines["0"].numbers["running"] == 3
    assert any("twice" in warning for warning in page.warnings)


def test_a_name_that_a_user_asked_for_keeps_it() -> None:
    catalog = Catalog(TICK_SIGNALS, extra=("acme:batch_fill", "acme:done_total", "acme:wait_seconds"))
    page = scrape(
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 1\n'
        'acme:batch_fill{engine="0",slot="a"} 0.25\nacme:batch_fill{engine="0",slot="b"} 0.75\n'
        'acme:done_total{engine="1",kind="x"} 4\nacme:done_total{engine="1",kind="y"} 5\n'
        'acme:wait_seconds_bucket{le="1.0"} 3\nacme:wait_seconds_bucket{le="+Inf"} 4\n'
        "acme:wait_seconds_sum 2.5\nacme:wait_seconds_count 4\n"
        "acme:unasked 7\n",
        catalog,
    )
    assert page.engines["0"].numbers["acme:batch_fill"] == 0.75
    assert page.engines["1"].numbers["acme:done_total"] == 9
    assert page.server.histograms["acme:wait_seconds"].counts == (3, 4)
    assert "acme:unasked" not in str(page)


# --- engines and labels ---------------------------------------------------------------------------------


def test_kv_usage_of_many_processes_is_the_highest_never_the_sum() -> None:
    """vllm#28792: with several API servers there is one series for each process id."""
    engine = only(
        'vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="11"} 0.5\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="12"} 0.875\n'
        'vllm:num_requests_running{engine="0",model_name="m",pid="11"} 4\n'
        'vllm:num_requests_running{engine="0",model_name="m",pid="12"} 6\n'
        'vllm:generation_tokens_total{engine="0",model_name="m",pid="11"} 100\n'
        'vllm:generation_tokens_total{engine="0",model_name="m",pid="12"} 50\n'
    )
    assert engine.numbers["kv_usage"] == 0.875
    assert engine.numbers["running"] == 6
    assert engine.numbers["generation_tokens_total"] == 150


def test_several_models_on_one_page_add_up_and_are_named() -> None:
    page = scrape(
        'vllm:num_requests_running{engine="0",model_name="acme/a"} 2\n'
        'vllm:num_requests_running{engine="0",model_name="acme/b"} 3\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="acme/a"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="acme/b"} 0.5\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="1",model_name="acme/a"} 1\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="acme/a"} 2\n'
        'vllm:time_to_first_token_seconds_sum{engine="0",model_name="acme/a"} 3\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="acme/b"} 4\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="acme/b"} 4\n'
        'vllm:time_to_first_token_seconds_sum{engine="0",model_name="acme/b"} 1\n'
    )
    assert page.models == ("acme/a", "acme/b")
    engine = page.engines["0"]
    assert engine.numbers["running"] == 5
    assert engine.numbers["kv_usage"] == 0.5
    ttft = engine.histograms["ttft"]
    assert (ttft.bounds, ttft.counts, ttft.total) == ((1.0, math.inf), (5, 6), 4)


def test_engines_are_in_the_order_of_their_numbers() -> None:
    lines = [f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {i}\n' for i in (10, 2, 0)]
    assert list(scrape("".join(lines)).engines) == ["0", "2", "10"]


def test_a_series_without_the_engine_label_is_of_the_only_engine_or_of_the_server() -> None:
    rejected = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 5\n'
    one = scrape('vllm:num_requests_running{engine="0",model_name="m"} 1\n' + rejected)
    assert one.engines["0"].numbers["rejected_total"] == 5
    two = scrape(
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 1\n' + rejected
    )
    assert two.server.by["rejected_total"] == {"max_num_queued_reqs": 5}
    assert all("rejected_total" not in engine.numbers for engine in two.engines.values())


def test_a_signal_that_one_of_two_engines_lacks_is_absent_there() -> None:
    page = scrape(
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 1\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    )
    assert "kv_usage" not in page.engines["0"].unknown
    assert page.engines["1"].unknown["kv_usage"] is Reason.ABSENT
    assert page.warnings == ()


def test_a_sleeping_engine_is_told_by_its_state() -> None:
    engine = only(
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0\n'
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1\n'
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0\n'
    )
    assert engine.by["sleep_state"] == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}


def test_lora_adapters_are_those_of_the_newest_series_and_never_its_time() -> None:
    running = 'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    old = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.764e9\n'
    new = (
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="law, sql",'
        'waiting_lora_adapters="sql,chat"} 1.7641e9\n'
    )
    for page in (running + old + new, running + new + old):
        engine = only(page)
        assert engine.by["lora_info"] == {"law": 1, "sql": 1, "chat": 0}
        assert engine.numbers["lora_info"] == 2
    assert only(running + old).by["lora_info"] == {}
    two = scrape(running + 'vllm:num_requests_running{engine="1",model_name="m"} 1\n' + new)
    assert any("lora_info" in warning for warning in two.warnings)


def test_new_adapters_change_the_layout_and_are_seen() -> None:
    reader, translator = Reader(full().wanted), Translator(full())
    lines = ['vllm:num_requests_running{engine="0",model_name="m"} 1\n']
    for i in range(3):
        labels = f'max_lora="4",running_lora_adapters="a{i}",waiting_lora_adapters=""'
        lines.append(f"vllm:lora_requests_info{{{labels}}} {1.764e9 + i}\n")
        body = "".join(lines).encode()
        result = translator.translate(reader.read(body), body, target="t", at=float(i), seconds=0)
        assert isinstance(result, Scrape)
        assert result.engines["0"].by["lora_info"] == {f"a{i}": 1}


def test_mixes_of_adapters_without_end_do_not_blind_the_daemon() -> None:
    """vLLM prints one series more for each mix of adapters it ever ran: in the end most of a page."""
    mixes = "".join(
        f'vllm:lora_requests_info{{running_lora_adapters="a{i}",waiting_lora_adapters="b"}} 1.764e9\n'
        for i in range(MOST_SERIES + 1)
    )
    page = scrape(f'vllm:num_requests_running{{engine="0",model_name="m"}} 3\n{mixes}', tick())
    assert page.engines["0"].numbers["running"] == 3


def test_facts_stand_in_labels_and_may_be_missing_there() -> None:
    def info(**labels: str) -> str:
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        return f'vllm:num_requests_running{{engine="0"}} 1\nvllm:cache_config_info{{engine="0",{text}}} 1\n'

    whole = only(info(num_gpu_blocks="100", block_size="16", kv_cache_size_tokens="1500"))
    assert [whole.numbers[name] for name in ("kv_blocks", "kv_block_size", "kv_capacity_tokens")] == [
        100,
        16,
        1500,
    ]
    page = scrape(info(num_gpu_blocks="100", block_size="16", kv_cache_size_tokens="None"))
    assert page.engines["0"].numbers["kv_capacity_tokens"] == 1600
    assert any("hybrid" in warning for warning in page.warnings)
    none = only(info(num_gpu_blocks="None", block_size="16"))
    assert "kv_blocks" not in none.numbers
    assert "kv_capacity_tokens" not in none.numbers


def test_blocks_that_each_of_several_engines_prints_are_those_of_all_together() -> None:
    """As in all releases of vLLM before they print the capacity itself; taken as each engine's own they would
    promise room for as many times the tokens as there are engines."""
    page = scrape(
        'vllm:cache_config_info{engine="0",num_gpu_blocks="128",block_size="32"} 1\n'
        'vllm:cache_config_info{engine="1",num_gpu_blocks="128",block_size="32"} 1\n'
    )
    assert [engine.numbers["kv_capacity_tokens"] for engine in page.engines.values()] == [2048, 2048]
    assert view.kv_tokens(Mark(page.at, page.engines, page.server)) == 4096


# --- values that are none -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NaN", Reason.NOT_A_NUMBER),
        ("+Inf", Reason.NOT_FINITE),
        ("-Inf", Reason.NOT_FINITE),
        ("1e300", Reason.NOT_FINITE),
    ],
)
def test_a_bad_value_makes_its_signal_unknown_and_no_other(value: str, reason: Reason) -> None:
    page = scrape(
        f'vllm:num_requests_running{{engine="0",model_name="a"}} {value}\n'
        'vllm:num_requests_running{engine="0",model_name="b"} 3\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="a"}} {value}\n'
        f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="a"}} {value}\n'
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="a"} 4\n'
        f'vllm:e2e_request_latency_seconds_bucket{{engine="0",le="1.0"}} {value}\n'
        'vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf"} 4\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0"} 2\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4\n'
        f'vllm:time_to_first_token_seconds_sum{{engine="0"}} {value}\n'
        f'vllm:lora_requests_info{{running_lora_adapters="x"}} {value}\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.5\n'
    )
    engine = page.engines["0"]
    for signal in ("running", "waiting", "finished_total", "e2e", "lora_info"):
        assert engine.unknown[signal] is reason
        assert signal not in engine.numbers
        assert signal not in engine.histograms
    assert engine.by["finished_total"] == {"length": 4}
    assert engine.numbers["kv_usage"] == 0.5
    assert engine.histograms["ttft"].counts == (2, 4)
    assert engine.histograms["ttft"].total is None
    assert any("were left out" in warning for warning in page.warnings)


def test_a_switched_off_gauge_is_unavailable() -> None:
    off = only(
        'vllm:num_requests_running{model_name="m"} 1\nvllm:gpu_prefix_cache_hit_rate{model_name="m"} -1\n'
    )
    assert off.unknown["prefix_hit_ratio"] is Reason.UNAVAILABLE
    on = only('vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.25\n')
    assert on.numbers["prefix_hit_ratio"] == 0.25


@pytest.mark.parametrize(
    ("name", "value", "signal"),
    [
        ("num_requests_running", "-7", "running"),
        ("num_requests_waiting", "1e16", "waiting"),
        ("kv_cache_usage_perc", "142", "kv_usage"),
        ("kv_cache_usage_perc", "-0.5", "kv_usage"),
        ("generation_tokens_total", "-1", "generation_tokens_total"),
        ("num_preemptions_total", "1e30", "preemptions_total"),
    ],
)
@pytest.mark.parametrize("catalog", [full(), tick()], ids=["full", "tick"])
def test_a_number_that_cannot_be_is_unknown_and_said(
    name: str, value: str, signal: str, catalog: Catalog
) -> None:
    page = scrape(
        f'vllm:{name}{{engine="0",model_name="m"}} {value}\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 2\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 1\n',
        catalog,
    )
    assert page.engines["0"].unknown[signal] is Reason.IMPOSSIBLE
    assert signal not in page.engines["0"].numbers
    assert page.engines["1"].numbers == {"running": 2, "kv_usage": 1}
    assert page.warnings == (
        f"{signal} is left out: a value is impossible (below 0, too large, or buckets that fall)",
    )


def test_a_negative_repetition_does_not_hide_behind_a_higher_one() -> None:
    engine = only('vllm:num_requests_running{pid="1"} -7\nvllm:num_requests_running{pid="2"} 3\n')
    assert engine.unknown["running"] is Reason.IMPOSSIBLE


def test_estimates_of_work_may_be_huge() -> None:
    assert only('vllm:estimated_flops_per_gpu_total{engine="0"} 1e22\n').numbers["est_flops_total"] == 1e22


@pytest.mark.parametrize("counts", [(5, 4, 6), (-1, 4, 6), (1, 2, 1e17), (1, 7, 6)])
def test_buckets_that_cannot_be_make_their_signal_unknown(counts: tuple[float, ...]) -> None:
    page = scrape(
        "".join(
            f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{le}"}} {count}\n'
            for le, count in zip(("1.0", "2.0", "+Inf"), counts, strict=True)
        )
    )
    assert page.engines["0"].unknown["ttft"] is Reason.IMPOSSIBLE
    assert "ttft" not in page.engines["0"].histograms
    assert page.warnings[0].startswith("ttft is left out: ")


def test_a_negative_sum_is_no_mean() -> None:
    page = 'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 4\nvllm:time_to_first_token_seconds_sum -1\n'
    ttft = only(page).histograms["ttft"]
    assert (ttft.count, ttft.total) == (4, None)


def test_buckets_in_any_order_and_without_infinity() -> None:
    engine = only(
        'vllm:time_to_first_token_seconds_bucket{le="2.0"} 4\n'
        'vllm:time_to_first_token_seconds_bucket{le="1"} 3\n'
        "vllm:time_to_first_token_seconds_count 7\n"
    )
    ttft = engine.histograms["ttft"]
    assert (ttft.bounds, ttft.counts, ttft.total) == ((1.0, 2.0, math.inf), (3, 4, 7), None)


def test_a_histogram_with_sum_and_count_only_has_a_mean() -> None:
    ttft = only(
        "vllm:time_to_first_token_seconds_sum 6\nvllm:time_to_first_token_seconds_count 4\n"
    ).histograms["ttft"]
    assert (ttft.mean, ttft.quantile(0.5)) == (1.5, None)


@pytest.mark.parametrize(
    "lines",
    [
        'vllm:time_to_first_token_seconds_bucket{le="many"} 4\n',
        'vllm:time_to_first_token_seconds_bucket{le="nan"} 4\n',
        'vllm:time_to_first_token_seconds_bucket{le="1e300"} 4\n',
        'vllm:time_to_first_token_seconds_bucket{le="1.0"} 4\n',
        "vllm:time_to_first_token_seconds_sum 4\n",
    ],
)
def test_a_broken_histogram_is_unknown_and_said(lines: str) -> None:
    page = scrape("vllm:num_requests_running 1\n" + lines)
    assert page.engines["0"].unknown["ttft"] is Reason.NOT_A_NUMBER
    assert any("time_to_first_token_seconds is no histogram" in warning for warning in page.warnings)
    assert page.engines["0"].numbers["running"] == 1


# --- other engines --------------------------------------------------------------------------------------


def sglang(name: str, value: float, **labels: str) -> str:
    text = ",".join(f'{key}="{text}"' for key, text in sorted({"model_name": "m", **labels}.items()))
    return f"sglang:{name}{{{text}}} {value}\n"


def test_sglang_ranks_repeat_and_one_counts() -> None:
    """--enable-metrics-for-all-schedulers: every tensor parallel rank prints the same request."""
    page = "".join(
        sglang("num_running_reqs", 4, tp_rank=str(rank), pp_rank="0", engine_type="unified")
        + sglang("token_usage", 0.5, tp_rank=str(rank), pp_rank="0", engine_type="unified")
        + sglang("num_retracted_requests_total", 3, tp_rank=str(rank), pp_rank="0", engine_type="unified")
        + sglang("queue_time_seconds_bucket", 7, tp_rank=str(rank), le="+Inf")
        for rank in range(8)
    )
    engine = only(page)
    assert engine.numbers["running"] == 4
    assert engine.numbers["kv_usage"] == 0.5
    assert engine.numbers["preemptions_total"] == 3
    assert engine.histograms["queue_time"].count == 7


def test_sglang_context_parallel_ranks_repeat_too() -> None:
    """sglang#29372: context parallelism turned one series into eight."""
    assert (
        only("".join(sglang("num_queue_reqs", 5, attn_cp_rank=str(i)) for i in range(8))).numbers["waiting"]
        == 5
    )


def test_sglang_dp_ranks_are_engines_and_their_tensor_ranks_differ() -> None:
    """With data-parallel attention engine i lives on tensor rank i: rank 0 alone would lose the others."""
    page = scrape(
        sglang("num_running_reqs", 3, dp_rank="0", tp_rank="0")
        + sglang("num_running_reqs", 4, dp_rank="1", tp_rank="1")
        + sglang("token_usage", 0.25, dp_rank="0", tp_rank="0")
        + sglang("token_usage", 0.75, dp_rank="1", tp_rank="1")
        + sglang("prompt_tokens_total", 100)
        + sglang("time_to_first_token_seconds_count", 5)
        + sglang("time_to_first_token_seconds_sum", 1)
    )
    assert {name: engine.numbers["running"] for name, engine in page.engines.items()} == {"0": 3, "1": 4}
    assert page.engines["1"].numbers["kv_usage"] == 0.75
    assert page.server.numbers["prompt_tokens_total"] == 100
    assert page.server.histograms["ttft"].count == 5
    assert "ttft" not in page.engines["0"].unknown  # it is known, of all engines together
    assert page.engines["0"].unknown["e2e"] is Reason.ABSENT


def test_sglang_priorities_are_parts_of_the_total() -> None:
    engine = only(
        sglang("num_running_reqs", 5, priority="")
        + sglang("num_running_reqs", 2, priority="1")
        + sglang("num_running_reqs", 3, priority="7")
    )
    assert engine.numbers["running"] == 5
    assert only(sglang("num_running_reqs", 2, priority="1")).numbers["running"] == 2


def test_sglang_prefix_cache_and_streams_add_up() -> None:
    engine = only(
        sglang("prompt_tokens_total", 100, is_streaming="true")
        + sglang("prompt_tokens_total", 300, is_streaming="false")
        + sglang("cached_tokens_total", 90, cache_source="device")
        + sglang("cached_tokens_total", 30, cache_source="host")
    )
    assert engine.numbers["prompt_tokens_total"] == engine.numbers["prefix_queries_total"] == 400
    assert engine.numbers["prefix_hits_total"] == 120
    assert engine.by["prefix_hits_total"] == {"device": 90, "host": 30}


def test_sglang_milliseconds_become_seconds() -> None:
    engine = only(
        sglang("kv_transfer_latency_ms_bucket", 3, le="250.0")
        + sglang("kv_transfer_latency_ms_bucket", 4, le="+Inf")
        + sglang("kv_transfer_latency_ms_sum", 1500)
        + sglang("kv_transfer_latency_ms_count", 4)
        + sglang("kv_transfer_speed_gb_s", 2.5)
    )
    histogram = engine.histograms["kv_xfer_time"]
    assert histogram.bounds == (0.25, math.inf)
    assert histogram.total == pytest.approx(1.5)
    assert engine.numbers["kv_xfer_speed"] == 2.5e9


def test_sglang_stages_are_prefill_and_decode_time() -> None:
    page = "".join(
        sglang("per_stage_req_latency_seconds_bucket", count, stage=stage, le="+Inf", tp_rank="0")
        + sglang("per_stage_req_latency_seconds_sum", total, stage=stage, tp_rank="0")
        for stage, count, total in (
            ("prefill_forward", 4, 2),
            ("decode_forward", 4, 40),
            ("prefill_waiting", 4, 1),
        )
    )
    histograms = only(page).histograms
    assert (histograms["prefill_time"].count, histograms["prefill_time"].total) == (4, 2)
    assert histograms["decode_time"].total == 40
    assert histograms["stage_time"].count == 12


def test_sglang_names_that_replaced_others_count_alone() -> None:
    both = only(sglang("num_used_tokens", 90) + sglang("kv_used_tokens", 100))
    assert both.numbers["kv_used_tokens"] == 100
    assert only(sglang("num_used_tokens", 90)).numbers["kv_used_tokens"] == 90


def test_sglang_http_responses() -> None:
    def responses(endpoint: str, code: str, method: str, value: float) -> str:
        labels = f'endpoint="{endpoint}",method="{method}",status_code="{code}"'
        return f"sglang:http_responses_total{{{labels}}} {value}\n"

    page = scrape(
        sglang("num_running_reqs", 1)
        + responses("/generate", "200", "POST", 10)
        + responses("/v1/chat/completions", "200", "POST", 20)
        + responses("/v1/chat/completions", "503", "POST", 5)
        + responses("/metrics", "200", "GET", 999)
        + responses("/flush_cache", "200", "POST", 1)
    )
    assert page.server.by["http_inference_requests"] == {"2xx": 30, "5xx": 5}
    assert page.server.by["http_responses_total"] == {"200": 1030, "503": 5}
    idle = scrape(sglang("num_running_reqs", 1) + responses("/metrics", "200", "GET", 3))
    assert idle.server.numbers["http_inference_requests"] == 0


TGI = """\
tgi_batch_current_size 3
tgi_queue_size 2
tgi_request_count 12
tgi_request_success 10
tgi_request_failure{err="overloaded"} 2
tgi_request_generated_tokens_bucket{le="100"} 10
tgi_request_generated_tokens_bucket{le="+Inf"} 10
tgi_request_generated_tokens_sum 640
tgi_request_generated_tokens_count 10
tgi_request_input_length_sum 320
tgi_request_input_length_count 10
tgi_request_mean_time_per_token_duration_bucket{le="0.05"} 9
tgi_request_mean_time_per_token_duration_bucket{le="+Inf"} 10
"""


def test_tgi_has_neither_ttft_nor_kv_usage_and_its_tokens_are_sums() -> None:
    page = scrape(TGI)
    engine = page.engines["0"]
    assert page.engine == "tgi"
    assert page.models == ()
    assert (engine.numbers["running"], engine.numbers["waiting"]) == (3, 2)
    assert engine.numbers["finished_total"] == 10
    assert engine.numbers["received_total"] == 12
    assert engine.by["failed_total"] == {"overloaded": 2}
    assert engine.numbers["generation_tokens_total"] == 640
    assert engine.numbers["prompt_tokens_total"] == 320
    assert engine.histograms["tpot"].counts == (9, 10)
    for signal in ("ttft", "kv_usage", "itl", "preemptions_total"):
        assert engine.unknown[signal] is Reason.UNSUPPORTED
    assert engine.unknown["e2e"] is Reason.ABSENT
    assert page.warnings == ()


LLAMACPP = """\
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:prompt_tokens_total 900
llamacpp:prompt_seconds_total 3.5
llamacpp:tokens_predicted_total 1250
llamacpp:tokens_predicted_seconds_total 25
llamacpp:prompt_tokens_seconds 260
llamacpp:predicted_tokens_seconds 48
llamacpp:n_decode_total 700
llamacpp:n_busy_slots_per_decode 1.8
"""
OLD_LLAMACPP = LLAMACPP + "llamacpp:kv_cache_usage_ratio 0.42\nllamacpp:kv_cache_tokens 3440\n"


def test_llamacpp_has_only_a_mean_time_per_token() -> None:
    page = scrape(LLAMACPP)
    engine = page.engines["0"]
    assert (page.engine, page.version, page.warnings) == ("llamacpp", ">2025-05", ())
    assert engine.numbers["generation_tokens_total"] == 1250
    assert engine.numbers["decode_seconds_total"] == 25
    assert engine.histograms["tpot"].mean == pytest.approx(0.02)
    assert engine.histograms["tpot"].quantile(0.9) is None
    assert engine.unknown["kv_usage"] is Reason.ABSENT
    assert engine.unknown["ttft"] is Reason.UNSUPPORTED
    assert scrape(LLAMACPP, tick()).engines["0"].histograms["tpot"].mean == pytest.approx(0.02)


def test_llamacpp_before_its_kv_gauge_went() -> None:
    page = scrape(OLD_LLAMACPP)
    assert page.version == ">=2024-02 <=2025-05"
    assert page.engines["0"].numbers["kv_usage"] == 0.42


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:", ""])
def test_trtllm_has_three_spellings(prefix: str) -> None:
    labels = 'model_name="m",engine_type="trtllm"'
    page = scrape(
        f'{prefix}request_success_total{{{labels},finished_reason="stop"}} 95\n'
        f'{prefix}request_success_total{{{labels},finished_reason="length"}} 5\n'
        f'{prefix}time_per_output_token_seconds_bucket{{{labels},le="0.05"}} 90\n'
        f'{prefix}time_per_output_token_seconds_bucket{{{labels},le="+Inf"}} 100\n'
    )
    assert page.engine == "trtllm"
    assert page.models == ("m",)
    assert page.engines["0"].by["finished_total"] == {"stop": 95, "length": 5}
    assert page.engines["0"].histograms["tpot"].counts == (90, 100)


def test_a_bare_name_without_trtllm_labels_is_anybodys() -> None:
    assert isinstance(translate('request_success_total{model_name="m"} 95\n'), ScrapeFailure)


def test_lmdeploy_kept_old_names_and_means_tpot_by_them() -> None:
    page = scrape(
        'lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
        'lmdeploy:gpu_cache_usage_perc{engine="1",model_name="m"} 0.25\n'
        'lmdeploy:time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4\n'
        'lmdeploy:iter_token_latency_bucket{engine="0",le="+Inf",model_name="m"} 40\n'
    )
    assert page.engine == "lmdeploy"
    assert page.engines["1"].numbers["kv_usage"] == 0.25
    assert page.engines["0"].histograms["tpot"].count == 4
    assert page.engines["0"].histograms["itl"].count == 40


# --- pages of nobody, and of several --------------------------------------------------------------------


def failure(page: str) -> str:
    result = translate(page)
    assert isinstance(result, ScrapeFailure)
    assert result.reason is Reason.NOT_AN_ENGINE
    return result.detail


def test_a_foreign_page_is_named_by_its_first_metrics() -> None:
    detail = failure('# HELP a b\nnode_load1 0.3\n  http_requests_total{handler="/"} 1\nb 1\nc 2\nd 3\n')
    assert "not a vLLM page" in detail
    assert "SGLang" in detail
    assert "5 samples, beginning with node_load1, http_requests_total, b" in detail


def test_a_very_long_name_is_not_repeated_whole() -> None:
    assert len(failure("a" * 10_000 + " 1\n")) < 400


def test_a_page_that_invents_engines_is_read_in_part() -> None:
    lines = [f'vllm:num_requests_running{{engine="{i}"}} 1\n' for i in range(MOST_ENGINES + 5)]
    page = scrape("".join(lines))
    assert len(page.engines) == MOST_ENGINES
    assert any(str(MOST_ENGINES) in warning for warning in page.warnings)


def test_models_and_parts_and_label_values_are_bounded() -> None:
    page = scrape(
        "".join(f'vllm:num_requests_running{{engine="0",model_name="m{i}"}} 1\n' for i in range(100))
        + "".join(
            f'vllm:request_success_total{{engine="0",finished_reason="r{i}"}} 2\n'
            for i in range(MOST_PARTS + 9)
        )
        + f'vllm:kv_cache_usage_perc{{engine="0",model_name="{"x" * 5000}"}} 0.5\n'
    )
    assert page.models == tuple(f"m{i}" for i in range(MOST_MODELS))
    engine = page.engines["0"]
    assert engine.numbers == {"running": 100, "kv_usage": 0.5, "finished_total": 2 * MOST_PARTS + 18}
    assert len(engine.by["finished_total"]) == MOST_PARTS + 1
    assert engine.by["finished_total"]["other"] == 18
    assert page.warnings == (
        f"label values over {LONGEST_LABEL} characters were cut",
        f"over {MOST_MODELS} models on one page: only {MOST_MODELS} are named",
        f"request_success_total has over {MOST_PARTS} values of finished_reason: more are other",
    )
    long = scrape(f'vllm:num_requests_running{{engine="0",model_name="{"x" * 5000}"}} 1\n')
    assert long.models == ("x" * LONGEST_LABEL,)


def test_the_texts_of_warnings_do_not_change_with_counts() -> None:
    """The daemon tells each text once."""

    def page(odd: int) -> str:
        lines = [f'vllm:num_requests_running{{engine="0",model_name="m{i}"}} NaN\n' for i in range(odd)]
        lines += [f'tgi_queue_size{{x="{i}"}} 1\n' for i in range(odd - 1)]
        lines += [f'vllm:num_requests_running{{server="http://a{i}"}} 3\n' for i in range(odd)]
        lines += [f'vllm:num_requests_running{{engine="{i}"}} 3\n' for i in range(1020 + odd)]
        return "".join(lines + lines[:odd])

    assert scrape(page(5)).warnings == scrape(page(9)).warnings
    assert len(scrape(page(5)).warnings) == 6
    counted = Translator(full(), counted=True)
    body = page(5).encode()
    read = counted.translate(Reader(full().wanted).read(body), body, target="a", at=0.0, seconds=0.0)
    assert isinstance(read, Scrape)
    assert "10 samples are NaN or infinite and were left out" in read.warnings


def test_steps_are_read_for_the_tick_to_see_progress() -> None:
    names = {
        "llamacpp:requests_processing 1\nllamacpp:n_decode_total 5\n": "decode_steps_total",
        'sglang:num_running_reqs 1\nsglang:realtime_tokens_total{mode="decode"} 4\n'
        'sglang:realtime_tokens_total{mode="prefill_compute"} 1\n': "realtime_tokens_total",
    }
    for page, signal in names.items():
        assert scrape(page, tick()).engines["0"].numbers[signal] == 5
    tokens = 'iteration_tokens_total_bucket{le="+Inf"} 5\n'
    steps = {
        'tgi_queue_size 1\ntgi_batch_inference_duration_bucket{method="decode",le="+Inf"} 5\n': "step_time",
        f"lmdeploy:num_requests_running 1\nlmdeploy:{tokens}": "step_tokens",
    }
    for page, signal in steps.items():
        assert scrape(page, tick()).engines["0"].histograms[signal].count == 5


def test_what_is_not_observed_at_the_finish_and_whose_gauges_lag() -> None:
    queue = 'queue_time_seconds_bucket{le="+Inf"} 4\n'
    sglang = scrape(f"sglang:num_running_reqs 1\nsglang:{queue}", tick())
    assert (sglang.loose, sglang.gauges_lag) == (("queue_time",), True)
    stage = 'sglang:per_stage_req_latency_seconds_bucket{stage="prefill_forward",le="+Inf"} 4\n'
    assert scrape(f"sglang:{queue}{stage}", tick()).loose == ("queue_time", "prefill_time")
    vllm = scrape(f"vllm:num_requests_running 1\nvllm:request_{queue}", tick())
    assert (vllm.loose, vllm.gauges_lag) == ((), False)
    for page in (TGI, "llamacpp:requests_processing 1\n", "lmdeploy:num_requests_running 1\n"):
        lags = scrape(page, tick())
        assert (lags.loose, lags.gauges_lag) == ((), True)


def test_a_page_of_comments_is_named_too() -> None:
    assert "0 samples" in failure("# nothing here\n")


def test_a_router_that_copies_engine_gauges_is_no_engine() -> None:
    copies = (
        'vllm:num_requests_running{server="http://a"} 3\nvllm:num_requests_waiting{server="http://a"} 1\n'
    )
    assert "copy of engine figures by a router" in failure(copies + 'vllm:current_qps{server="http://a"} 3\n')
    both = scrape(copies + 'vllm:num_requests_running{engine="0",model_name="m"} 5\n')
    assert both.engines["0"].numbers["running"] == 5
    assert any("a router" in warning for warning in both.warnings)


def test_an_ollama_page_says_how_ollama_is_watched() -> None:
    assert "no metrics page" in failure("ollama_requests_queued 3\n")
    assert "Ollama" not in failure("node_load1 0.3\n")


def test_of_two_engines_on_one_page_the_larger_counts() -> None:
    page = scrape(TGI + 'vllm:num_requests_running{engine="0"} 9\n')
    assert page.engine == "tgi"
    assert page.engines["0"].numbers["running"] == 3
    assert page.warnings == ("some series of vLLM on a page of TGI are left out",)


def test_names_of_no_single_version_are_told() -> None:
    page = scrape(
        'vllm:num_requests_swapped{model_name="m"} 0\n'
        'vllm:request_num_preemptions_count{engine="0",model_name="m"} 0\n'
    )
    assert page.version == "none"
    assert any("no single version" in warning for warning in page.warnings)


# --- tables and versions --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [*ENGINES, SERVER])
def test_tables_are_sound(engine: str) -> None:
    table = dialect(engine)
    assert table.engine == engine
    assert len({(row.name, row.signal, row.kind) for row in table.metrics}) == len(table.metrics)
    for row in table.metrics:
        assert row.signal
        assert (row.kind == "fact") == bool(row.label)
        assert (row.kind == "mean") == bool(row.per)
        for version in filter(None, (row.since, row.until)):
            assert re.fullmatch(r"\d+(\.\d+)+|\d{4}-\d{2}", version)
        # A ratio of parts is never their sum.
        if row.signal.endswith(("_ratio", "kv_usage", "kv_usage_cpu", "utilization")):
            assert row.over != "sum"
    for signal in {row.signal for row in table.metrics}:
        kinds = {row.by for row in table.metrics if row.signal == signal}
        assert len(kinds) == 1


def test_every_tick_signal_is_in_the_tables() -> None:
    known = {row.signal for table in (*engines(), dialect(SERVER)) for row in table.metrics}
    assert known >= TICK_SIGNALS


def test_a_table_with_a_misspelt_key_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="labels"):
        msgspec.convert({"name": "a", "kind": "gauge", "signal": "b", "labels": "c"}, Row)


def test_inference_paths_hold_what_people_call() -> None:
    assert {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses"} < INFERENCE_PATHS
    assert {"/v1/messages", "/generate"} < INFERENCE_PATHS
    assert INFERENCE_PATHS.isdisjoint(
        {"/v1/models", "/tokenize", "/health", "/v1/messages/count_tokens", "/"}
    )


def table(*rows: Row) -> Dialect:
    return Dialect(engine="x", title="X", spellings=("x:",), metrics=rows)


def row(name: str, since: str = "", until: str = "", *, always: bool = True) -> Row:
    return Row(name=name, kind="gauge", signal=name, since=since, until=until, always=always)


BASE, NEW, GONE, OPTION = (
    row("base", "0.1"),
    row("new", "0.5.0"),
    row("gone", "0.1", "0.3"),
    row("option", "0.9", always=False),
)


@pytest.mark.parametrize(
    ("present", "whole", "expected"),
    [
        ({"base"}, True, ">0.3 <0.5"),
        ({"base"}, False, ">=0.1"),
        ({"base", "gone"}, True, ">=0.1 <=0.3"),
        ({"base", "new"}, True, ">=0.5"),
        ({"base", "new", "option"}, True, ">=0.9"),
        ({"new"}, True, ">=0.5"),  # a hole where `base` should be: absence tells nothing
        ({"base", "gone", "new"}, True, "none"),
        (set(), True, "any"),
    ],
)
def test_version_range(present: set[str], whole: bool, expected: str) -> None:
    assert str(version_range(table(BASE, NEW, GONE, OPTION), present, whole=whole)) == expected


def test_a_version_range_knows_which_names_it_may_have() -> None:
    between = VersionRange(Bound("0.3", False), Bound("0.5.0", False))
    assert not between.may_have(GONE)
    assert not between.may_have(NEW)
    assert between.may_have(BASE)
    assert VersionRange().may_have(GONE)
    assert VersionRange(Bound("0.3", True)).may_have(GONE)


def test_versions_compare_as_numbers() -> None:
    rows = table(row("a", "0.9.0"), row("b", "0.10.2"), row("c", "0.32.0"))
    assert str(version_range(rows, {"a", "b"}, whole=True)) == ">=0.10.2 <0.32"


# --- any page at all ------------------------------------------------------------------------------------

NAMES = st.sampled_from(sorted(full().uses))
LABELS = st.dictionaries(
    st.sampled_from(
        ["engine", "model_name", "le", "pid", "dp_rank", "tp_rank", "priority", "finished_reason"]
    ),
    st.sampled_from(["0", "1", "a", "", "+Inf", "0.5", "nan"]),
    max_size=4,
)
VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-3, 3)


def finite(signals: Signals) -> bool:
    values = [
        *signals.numbers.values(),
        *(value for parts in signals.by.values() for value in parts.values()),
    ]
    for histogram in signals.histograms.values():
        values += [*histogram.counts, *([] if histogram.total is None else [histogram.total])]
        if list(histogram.counts) != sorted(histogram.counts) or histogram.bounds[-1] != math.inf:
            return False
    return all(map(math.isfinite, values))


@given(st.lists(st.tuples(NAMES, LABELS, VALUES), max_size=40))
def test_whatever_a_page_says_no_signal_is_nan_and_none_is_both_known_and_unknown(
    samples: list[tuple[str, dict[str, str], float]],
) -> None:
    lines = []
    for name, labels, value in samples:
        inner = ",".join(f'{label}="{text}"' for label, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value}\n")
    for catalog in (full(), tick()):
        result = translate("".join(lines), catalog)
        if isinstance(result, Scrape):
            for signals in (*result.engines.values(), result.server):
                assert finite(signals)
                assert signals.unknown.keys().isdisjoint(signals.numbers.keys() | signals.histograms.keys())
