"""Own metrics, read back with prometheus_client's parsers in both formats."""

import re
from collections.abc import Iterable
from math import inf, isfinite, nan

import fleet_fakes as fakes
import msgspec
import pytest
from fleet_fakes import AT, fleet, known, replica, status
from hypothesis import HealthCheck, given, settings
from prometheus_client import Metric as LibraryMetric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from controlplane.api import metrics
from controlplane.api.exposition import LONGEST_LABEL_CHARS, label_value
from controlplane.api.settings import MetricsSettings
from controlplane.signals.decision import Hold, Orders, Standing
from controlplane.signals.histogram import Histogram
from controlplane.signals.interval import Interval
from controlplane.signals.probe import Probe, ProbeKind, ProbeResult
from controlplane.signals.reading import Quality, Reason, Unknown
from controlplane.signals.registry import BY_NAME, METRICS, Kind
from controlplane.signals.snapshot import (
    Condition,
    FleetSnapshot,
    Goodput,
    Out,
    PoolBoundary,
    Probed,
    ReplicaSnapshot,
    ReplicaState,
)
from controlplane.signals.status import Status

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page_of(
    seen: FleetSnapshot | None = None, how: Status | None = None, orders: Orders | None = None
) -> metrics.Page:
    return metrics.page(fleet() if seen is None else seen, how or status(), orders or Orders(), AT + 1)


def samples_of(families: Iterable[LibraryMetric]) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def read(page: metrics.Page) -> Samples:
    """The samples of a page, which must be the same in both formats, finite and registered."""
    text = samples_of(parse_text(page.text(openmetrics=False)))
    assert samples_of(parse_openmetrics(page.text(openmetrics=True))) == text
    for (name, labels), value in text.items():
        assert isfinite(value)
        base = re.sub(r"_(bucket|count|sum)$", "", name) if name not in BY_NAME else name
        assert {label for label, _ in labels} - {"le"} == set(BY_NAME[base].labels)
    return text


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def test_a_lower_bound_never_stands_under_the_signal_s_own_name() -> None:
    seen = fleet()
    part = known(0.0, Quality.LOWER_BOUND)
    load = msgspec.structs.replace(seen.pools["chat"].load, waiting=part)
    chat = msgspec.structs.replace(seen.pools["chat"], load=load)
    found = read(page_of(msgspec.structs.replace(seen, pools={"chat": chat})))
    owner = {"pool": "chat", "replica": "", "signal": "waiting"}
    assert value(found, "controlplane_pool_waiting_requests", pool="chat") is None
    assert value(found, "controlplane_reading_unknown", **owner, reason="partial") == 1
    assert value(found, "controlplane_reading_lower_bound", **owner) == 0
    assert value(found, "controlplane_pool_running_requests", pool="chat") == 12


def test_what_is_held_against_gpus() -> None:
    seen = fleet(
        replica("a", quarantined_since=AT - 5),
        replica("b"),
        nodes={
            "n1": fakes.node("n1", verdicts=(fakes.verdict("GPU-1"),), quarantined=fakes.mark()),
            "n2": fakes.node("n2", blind_since=AT - 60),
        },
    )
    found = read(page_of(seen))
    replicas = [value(found, "controlplane_replica_quarantined", pool="chat", replica=one) for one in "ab"]
    assert replicas == [1, 0]
    assert [value(found, "controlplane_node_quarantined", node=one) for one in ("n1", "n2")] == [1, 0]
    assert [value(found, "controlplane_node_blind", node=one) for one in ("n1", "n2")] == [0, 1]
    assert value(found, "controlplane_node_gpus", node="n2") == 8
    held = {
        "check": "xid",
        "fault_class": "hardware-fatal",
        "remedy": "drain-and-reset",
        "stage": "held-down",
    }
    assert value(found, "controlplane_gpu_fault", node="n1", UUID="GPU-1", **held) == 1


def test_more_nodes_than_have_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_NODES", 2)
    found = read(page_of(fleet(nodes={name: fakes.node(name) for name in ("n1", "n2", "n3")})))
    assert value(found, "controlplane_omitted_nodes") == 1
    assert value(found, "controlplane_node_gpus", node="n3") is None


def test_failed_scrapes_of_each_replica() -> None:
    found = read(page_of(fleet(replica("a"), replica("b")), status(scrape_failures={"a": 17})))
    name = "controlplane_replica_scrape_failures_total"
    assert [value(found, name, pool="chat", replica=one) for one in ("a", "b")] == [17, 0]


def test_who_gets_no_new_request_and_why() -> None:
    def one(name: str, **changes: object) -> ReplicaSnapshot:
        return msgspec.structs.replace(replica(name), was_ready=True, **changes)

    health = Probe("a", AT, 2.0, ProbeKind.HEALTH, ProbeResult.TIMEOUT, "a: no whole answer within 2 s")
    trial = Probe("a", AT, 0.3, ProbeKind.TRIAL, ProbeResult.OK)
    seen = fleet(
        one("a", out=Out(AT, "unreachable", "it does not answer"), probed=Probed(health, trial, 4)),
        one("b", out=Out(AT, "wedged", "it makes no token")),
        one("c"),
        msgspec.structs.replace(replica("d"), was_ready=False),
    )
    how = status(out=frozenset({"a"}), probes={(ProbeKind.HEALTH, ProbeResult.TIMEOUT): 5})
    found = read(page_of(seen, how))
    why = {
        dict(labels)["replica"]: dict(labels) for name, labels in found if name.endswith("_out_of_rotation")
    }
    assert {name: (labels["reason"], labels["in_force"]) for name, labels in why.items()} == {
        "a": ("unreachable", "true"),
        "b": ("wedged", "false"),
        "d": ("starting", "true"),
    }
    a = {"pool": "chat", "replica": "a"}
    assert value(found, "controlplane_replica_failed_health_probes", **a) == 4
    assert value(found, "controlplane_replica_probe_duration_seconds", **a, kind="health") == 2.0
    assert value(found, "controlplane_replica_probe_duration_seconds", **a, kind="trial") == 0.3
    assert value(found, "controlplane_probes_total", kind="health", result="timeout") == 5


def test_a_replica_and_its_pool_as_a_query_sees_them() -> None:
    found = read(page_of())
    one = {"pool": "chat", "replica": "vllm-0:8000"}
    assert value(found, "controlplane_replica_running_requests", **one) == 12
    assert value(found, "controlplane_replica_waiting_tokens", **one) == 1500
    assert value(found, "controlplane_replica_kv_usage_ratio", **one) == 0.62
    assert value(found, "controlplane_replica_ttft_seconds", **one, quantile="0.95") == pytest.approx(0.85)
    assert value(found, "controlplane_pool_ttft_mean_seconds", pool="chat") == 0.5
    assert value(found, "controlplane_replica_state", **one, state="up") == 1
    assert value(found, "controlplane_replica_state", **one, state="asleep") == 0
    assert value(found, "controlplane_replica_restarts_total", **one) == 1
    assert value(found, "controlplane_replica_last_scrape_timestamp_seconds", **one) == AT - 1.5
    assert value(found, "controlplane_pool_window_good_requests", pool="chat", bound="low") == 80
    assert value(found, "controlplane_pool_goodput_ratio", pool="chat", bound="high") == 0.96
    assert value(found, "controlplane_pool_goodput_ratio", pool="chat", bound="point") == 0.88
    assert value(found, "controlplane_pool_token_goodput_ratio", pool="chat", bound="low") == 0.8
    assert value(found, "controlplane_pool_window_ended_requests", pool="chat", outcome="failed") == 2
    assert value(found, "controlplane_pool_goodput_denominator_info", pool="chat", denominator="http") == 1
    assert value(found, "controlplane_pool_objective_ttft_seconds", pool="chat") == 2.5
    assert value(found, "controlplane_pool_good_requests_total", pool="chat", bound="low") == 800
    assert value(found, "controlplane_pool_good_requests_total", pool="chat", bound="point") == 840
    assert value(found, "controlplane_pool_finished_requests_total", pool="chat") == 900
    assert value(found, "controlplane_replica_limit_sequences", **one) == 137
    assert value(found, "controlplane_replica_limit_in_force_sequences", **one) == 136
    why = {"law": "slo-gradient", "reason": "tpot-near", "standing": ""}
    assert value(found, "controlplane_replica_limit_info", **one, **why) == 1
    facts = {"url": "http://vllm-0:8000/metrics", "engine": "vllm", "version": ">=0.20"}
    assert value(found, "controlplane_replica_info", **one, **facts) == 1


def test_the_boundary_between_two_pools() -> None:
    boundary = PoolBoundary("small", "large", 8192, "fewer-replicas", "better", AT - 9, in_force=4096)
    how = msgspec.structs.replace(status(), boundary_standing=Standing.HELD)
    found = read(page_of(fleet(boundary=boundary), how))
    both = {"pool": "small", "long_pool": "large"}
    assert value(found, "controlplane_pool_boundary_tokens", **both) == 8192
    assert value(found, "controlplane_pool_boundary_in_force_tokens", **both) == 4096
    why = {"reason": "fewer-replicas", "standing": "held"}
    assert value(found, "controlplane_pool_boundary_info", **both, **why) == 1
    assert not any("boundary" in name for name, _ in read(page_of()))


def test_the_daemon_itself() -> None:
    found = read(page_of(orders=Orders(Hold(AT, "ann", "deploy"))))
    assert value(found, "controlplane_ticks_total") == 7
    assert value(found, "controlplane_scrapes_total", result="ok", reason="") == 40
    assert value(found, "controlplane_scrapes_total", result="failed", reason="scrape-failed") == 2
    assert value(found, "controlplane_decisions_total", action="assess", reason="goodput-low") == 3
    assert value(found, "controlplane_hold_active") == 1
    assert value(found, "controlplane_last_tick_timestamp_seconds") == AT
    assert value(found, "controlplane_tick_duration_seconds_bucket", le="0.1") == 7
    assert value(found, "controlplane_tick_duration_seconds_sum") == 0.09
    assert value(found, "controlplane_omitted_replicas") == 0


def test_an_unknown_reading_has_no_sample_but_a_reason() -> None:
    load = msgspec.structs.replace(
        fakes.load(), running=Unknown(Reason.SCRAPE_FAILED, AT), kv_usage=known(nan), waiting=known(inf)
    )
    nothing = Goodput(60.0, fakes.goodput().denominator, unknown=Reason.TOO_FEW)
    found = read(page_of(fleet(replica(load=load, latency=fakes.NO_LATENCY, goodput=nothing))))
    one = {"pool": "chat", "replica": "vllm-0:8000"}
    reasons = {
        "running": "scrape-failed",
        "kv_usage": "not-a-number",
        "waiting": "not-finite",
        "ttft": "no-traffic",
        "goodput": "too-few",
    }
    for signal, reason in reasons.items():
        assert value(found, "controlplane_reading_unknown", **one, signal=signal, reason=reason) == 1
    for name in ("running_requests", "kv_usage_ratio", "waiting_requests", "ttft_mean_seconds"):
        assert value(found, f"controlplane_replica_{name}", **one) is None
    assert value(found, "controlplane_replica_goodput_ratio", **one, bound="low") is None
    pool = {"pool": "chat", "replica": "", "signal": "prefix_hit_ratio", "reason": "no-traffic"}
    assert value(found, "controlplane_reading_unknown", **pool) == 1


def test_an_open_bound_has_no_sample() -> None:
    wide = msgspec.structs.replace(fakes.goodput(), good_requests=Interval(3.0, inf))
    found = read(page_of(fleet(replica(goodput=wide))))
    one = {"pool": "chat", "replica": "vllm-0:8000"}
    assert value(found, "controlplane_replica_window_good_requests", **one, bound="low") == 3
    assert value(found, "controlplane_replica_window_good_requests", **one, bound="high") is None


def test_conditions_of_one_kind_are_one_sample() -> None:
    stalled = tuple(Condition("stalled", AT, text) for text in ("no token for 40 s", "another"))
    found = read(page_of(fleet(replica(conditions=stalled))))
    one = {"pool": "chat", "replica": "vllm-0:8000", "kind": "stalled"}
    assert value(found, "controlplane_replica_condition", **one) == 1


def test_a_stuck_loop_shows_itself_and_no_old_fleet() -> None:
    found = read(page_of(how=status(last_tick_at=AT - 60)))
    assert value(found, "controlplane_last_tick_timestamp_seconds") == AT - 60
    assert not any(name.startswith(("controlplane_replica_", "controlplane_pool_")) for name, _ in found)


def test_before_the_first_tick_there_is_only_the_daemon() -> None:
    found = read(metrics.page(None, status(last_tick_at=None, ticks=0), Orders(), AT))
    assert value(found, "controlplane_ticks_total") == 0
    assert value(found, "controlplane_last_tick_timestamp_seconds") is None


def test_a_large_fleet_has_latency_quantiles_by_pool_only() -> None:
    seen = fleet(*[replica(f"vllm-{i}") for i in range(3)])
    few, many = (
        read(metrics.page(seen, status(), Orders(), AT + 1, bounds=MetricsSettings(latency_replicas=most)))
        for most in (3, 2)
    )
    quantiles = [
        [
            len([1 for name, _ in found if name == f"controlplane_{of}_ttft_seconds"])
            for of in ("replica", "pool")
        ]
        for found in (few, many)
    ]
    assert quantiles == [[12, 4], [0, 4]]
    assert [value(found, "controlplane_omitted_latency_replicas") for found in (few, many)] == [0, 3]
    assert value(many, "controlplane_replica_running_requests", pool="chat", replica="vllm-0") == 12


def test_500_replicas_make_a_page_of_less_than_5_MB() -> None:
    seen = fleet(*[replica(f"vllm-{i:03}.engines.svc:8000", f"pool-{i % 10}") for i in range(500)])
    text = metrics.page(seen, status(), Orders(), AT + 1).text(openmetrics=False)
    assert text.count("controlplane_replica_running_requests{") == 500
    assert 500_000 < len(text) < 5_000_000


def test_too_many_replicas_are_counted_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_POOLS", 1)
    seen, bounds = fleet(*[replica(f"vllm-{i}", f"pool-{i}") for i in range(5)]), MetricsSettings(replicas=2)
    found = read(metrics.page(seen, status(), Orders(), AT + 1, bounds=bounds))
    assert value(found, "controlplane_omitted_replicas") == 3
    assert value(found, "controlplane_omitted_pools") == 4
    assert len([name for name, _ in found if name == "controlplane_replica_running_requests"]) == 2
    assert len([name for name, _ in found if name == "controlplane_pool_running_requests"]) == 1


def test_passwords_in_an_address_are_not_exported() -> None:
    text = page_of(fleet(replica(url="http://ann:secret@vllm-0:8000/metrics?token=hidden"))).text(
        openmetrics=False
    )
    assert 'url="http://vllm-0:8000/metrics"' in text
    assert "secret" not in text
    assert "hidden" not in text


def test_long_label_values_are_cut_and_stay_apart() -> None:
    first, second = label_value("x" * 500 + "a"), label_value("x" * 500 + "b")
    assert first != second
    assert len(first) == len(second) == LONGEST_LABEL_CHARS + 2
    assert label_value('a"b\\c\nd\ud800') == '"a\\"b\\\\c\\nd?"'


def test_the_writer_agrees_with_the_library() -> None:
    page = page_of()
    for openmetrics, parse, generate in (
        (False, parse_text, generate_latest),
        (True, parse_openmetrics, generate_openmetrics),
    ):
        ours = page.text(openmetrics=openmetrics)
        theirs = generate(Collected(parse(ours))).decode()
        assert lines(ours) == lines(theirs)


class Collected:
    """A collector of families that are there already."""

    def __init__(self, families: Iterable[LibraryMetric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[LibraryMetric]:
        return self._families


def lines(page: str) -> list[str]:
    """The lines of a page with labels in alphabetical order, as the library sorts them."""
    return [
        re.sub(r"\{(.*)\}", lambda m: "{" + ",".join(sorted(m[1].split(","))) + "}", x)
        for x in page.split("\n")
    ]


def test_kinds_and_units_are_declared() -> None:
    families = {f.name: f for f in parse_openmetrics(page_of().text(openmetrics=True))}
    for metric in METRICS:
        family = families[metric.family]
        assert family.type == metric.kind
        assert family.unit == metric.unit
        assert family.documentation == metric.help
    assert {m.kind for m in METRICS} == set(Kind)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seen=fakes.fleets, how=fakes.statuses, orders=fakes.orders)
def test_any_snapshot_gives_a_valid_page(seen: FleetSnapshot, how: Status, orders: Orders) -> None:
    read(metrics.page(seen, how, orders, AT))


def test_every_state_is_exported_one_hot() -> None:
    for state in ReplicaState:
        found = read(page_of(fleet(replica(state=state))))
        hot = [
            dict(labels)["state"]
            for (name, labels), on in found.items()
            if name == "controlplane_replica_state" and on
        ]
        assert hot == [state]


def test_histogram_without_a_known_sum_has_neither_sum_nor_count() -> None:
    found = read(page_of(how=status(tick_seconds=Histogram((inf,), (3.0,), None))))
    assert value(found, "controlplane_tick_duration_seconds_bucket", le="+Inf") == 3
    assert value(found, "controlplane_tick_duration_seconds_count") is None
