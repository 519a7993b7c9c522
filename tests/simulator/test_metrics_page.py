"""The simulated page is vLLM 0.32's, family by family, and reads as what the engine counted."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.signals.samples import Scrape, Target
from controlplane.simulator.constants import engine_model
from controlplane.simulator.engine import Engine
from controlplane.simulator.metrics_page import CONTENT_TYPE, Replica, render, scrape
from controlplane.simulator.request import Request, Segment
from controlplane.simulator.settings import EngineSettings
from controlplane.sources.catalog import full
from controlplane.sources.fetch import Answer
from controlplane.sources.pages import Pages

CAPTURE = Path(__file__).parents[1] / "data" / "captures" / "vllm-0.32-overload.prom"

# What a simulated process has not: a Python interpreter, file descriptors, memory, message bodies.
NOT_PRINTED = ("python_", "process_cpu", "process_open", "process_max", "process_virtual", "process_resident")
NO_BODIES = ("http_request_size_bytes", "http_response_size_bytes")


def busy_engine() -> tuple[Replica, Engine]:
    """An engine short of blocks in the midst of its work, with prefix hits, preemptions and hang-ups."""
    settings = EngineSettings(
        num_gpu_blocks=81, max_model_len=1024, max_num_seqs=16, max_num_batched_tokens=512
    )
    engine = Engine(engine_model("h100-8b").law, settings)
    for i in range(40):
        engine.submit(
            Request(f"r{i}", 100, 90, max_tokens=100 if i % 3 else 90, prefix=(Segment("s", 64),)), 0.05 * i
        )
        engine.advance(0.05 * i)
        if i % 10 == 9:
            engine.abort(f"r{i - 1}", 0.05 * i)
    return Replica("tiny", 1.7959950e9, settings), engine


def layout(text: str) -> dict[str, tuple[str, set[frozenset[tuple[str, str]]]]]:
    """Type and label sets of each family that the simulator prints; volatile handlers left out."""
    families = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith((*NOT_PRINTED, *NO_BODIES)):
            continue
        families[family.name] = (
            family.type,
            {
                frozenset({("__name__", sample.name), *sample.labels.items()})
                for sample in family.samples
                if sample.labels.get("handler", "/v1/completions") == "/v1/completions"
            },
        )
    return families


def test_families_types_labels_and_buckets_are_those_of_a_real_page() -> None:
    replica, engine = busy_engine()
    mine, real = layout(render(replica, engine.counters).decode()), layout(CAPTURE.read_text())
    config = "vllm:cache_config_info"  # its labels are options, of which the simulator has a few
    my_config, real_config = mine.pop(config), real.pop(config)
    assert mine == real
    (mine_labels,), (real_labels,) = my_config[1], real_config[1]
    assert {name for name, _ in mine_labels} <= {name for name, _ in real_labels}


def read(body: bytes) -> Scrape:
    target = Target("r", "p", "http://r")
    answer = Answer({"content-type": CONTENT_TYPE}, body)
    found = Pages(full(), 1 << 20).reader_for(target)(answer, 100.0, 0.01)
    assert isinstance(found, Scrape)
    return found


def test_the_direct_scrape_is_what_the_reader_makes_of_the_page() -> None:
    replica, engine = busy_engine()
    assert engine.counters.preemptions > 0
    assert engine.counters.prefix_hits > 0
    assert engine.counters.aborted > 0
    direct = scrape(replica, engine.counters, "r", 100.0, 0.01)
    reread = read(render(replica, engine.counters))
    assert direct.engines == reread.engines
    assert direct.server == reread.server
    assert direct == reread


def test_an_idle_engine_is_read_too() -> None:
    replica, _ = busy_engine()
    engine = Engine(engine_model("h100-8b").law, replica.settings)
    assert scrape(replica, engine.counters, "r", 100.0, 0.01) == read(render(replica, engine.counters))


def test_hang_ups_are_visible_to_the_http_server_only() -> None:
    """As on a real vLLM: no finish, no latency, but the tokens that came out and an HTTP answer."""
    settings = EngineSettings(81, max_model_len=1024, max_num_batched_tokens=512)
    engine = Engine(engine_model("h100-8b").law, settings)
    engine.submit(Request("gives up", 100, 500), 0.0)
    engine.submit(Request("stays", 100, 5), 0.0)
    engine.advance(0.2)
    engine.abort("gives up", 0.2)
    engine.advance(20.0)
    page = scrape(Replica("tiny", 0.0, settings), engine.counters, "r", 20.0, 0.0)
    signals = page.engines["0"]
    assert signals.by["finished_total"] == {
        **dict.fromkeys(("stop", "abort", "error", "repetition"), 0.0),
        "length": 1.0,
    }
    assert signals.histograms["ttft"].count == 2
    assert signals.histograms["e2e"].count == 1
    assert signals.numbers["generation_tokens_total"] > signals.histograms["generation_len"].total == 5
    assert page.server.numbers["http_requests_total"] == 2
    assert signals.numbers["running"] == 0


def test_gauges_are_those_of_the_last_step_that_ended() -> None:
    settings = EngineSettings(81, max_model_len=1024, max_num_batched_tokens=512, async_scheduling=False)
    engine = Engine(engine_model("h100-8b").law, settings)
    engine.submit(Request("a", 400, 20), 0.0)
    engine.advance(0.001)
    assert engine.kv_usage == pytest.approx(25 / 80)
    assert (engine.counters.running, engine.counters.kv_usage) == (0, 0.0)
    engine.advance(engine.next_event_time())
    assert engine.counters.running == 1
    engine.wedge()
    engine.submit(Request("b", 100, 20), 1.0)
    engine.advance(50.0)
    assert (engine.counters.running, engine.counters.waiting) == (1, 0)
