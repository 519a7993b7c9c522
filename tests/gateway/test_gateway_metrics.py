"""The sheet of one worker, of several, and the page; windows that are told."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.replica import ReplicaSpec
from controlplane.gateway.admission.request import Request, ServiceClass
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.verdict import Admitted, Queued
from controlplane.gateway.metrics import Metrics, Sheet, merged, page
from controlplane.gateway.record import End, Record
from controlplane.gateway.told_windows import KEPT_SECONDS, MOST_PARTS, ToldWindows
from controlplane.signals.gateway_registry import METRICS, SECONDS
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow


def record(**changes: object) -> Record:
    made = Record(Endpoint.CHAT, "acme", ServiceClass.INTERACTIVE, 10.0)
    fields = {"end": End.FINISHED, "status": 200, "pool": "chat", "streams": True, "output_tokens": 5}
    for name, value in {**fields, "sent": 10.5, "first": 11.0, "ended": 12.0, **changes}.items():
        setattr(made, name, value)
    return made


def sheet(*records: Record, **process: float) -> Sheet:
    metrics = Metrics(["acme"])
    for each in records:
        metrics.record(each)
    admission = Admission(AdmissionSettings(), gateway="gw", now=0.0)
    admission.set_replicas([ReplicaSpec(name="r", pool="chat", kv_tokens=100)], 0.0)
    return metrics.sheet(admission.status(1.0), process)


def samples(sheet: Sheet) -> dict[str, float]:
    text = page(sheet).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix('controlplane_gateway_')}{{{labels}}}"] = sample.value
    return found


def test_one_request_is_counted_once_in_each_layer() -> None:
    found = samples(sheet(record()))
    where = "class=interactive,pool=chat"
    assert found["requests_total{end=finished,endpoint=/v1/chat/completions,tenant=acme}"] == 1
    for what, seconds in (
        ("queue_time", 0.5),
        ("ttft", 1.0),
        ("e2e", 2.0),
        ("engine_time", 1.5),
        ("tpot", 0.25),
    ):
        assert found[f"{what}_seconds_count{{{where}}}"] == 1
        assert found[f"{what}_seconds_sum{{{where}}}"] == seconds
    assert found["ttft_seconds_bucket{class=interactive,le=1.0,pool=chat}"] == 1
    assert found["ttft_seconds_bucket{class=interactive,le=0.5,pool=chat}"] == 0
    assert found["replica_budget_tokens{pool=chat,replica=r}"] == 100


def test_what_did_not_happen_has_no_sample() -> None:
    never_sent = record(end=End.REFUSED, status=429, reason="queue_full", sent=0.0, first=0.0)
    found = samples(sheet(never_sent))
    assert found["refused_requests_total{reason=queue_full,status=429}"] == 1
    assert not any("seconds" in name for name in found)
    no_token = record(end=End.FAILED, first=0.0)
    assert not any("ttft" in name or "e2e" in name for name in samples(sheet(no_token)))
    whole = record(streams=False, first=0.0)
    found = samples(sheet(whole))
    assert any("e2e" in name for name in found)
    assert not any("ttft" in name or "tpot" in name for name in found)


def test_a_tenant_that_nobody_configured_is_no_label() -> None:
    found = samples(sheet(record(tenant="made-up")))
    assert found["requests_total{end=finished,endpoint=/v1/chat/completions,tenant=other}"] == 1


def test_workers_add_up_but_for_what_is_largest() -> None:
    one = sheet(record(), record(), ready=1.0, limit_files=100.0, open_streams=3.0)
    other = sheet(record(), ready=0.0, limit_files=50.0, open_streams=4.0)
    found = samples(merged([one, other]))
    assert found["requests_total{end=finished,endpoint=/v1/chat/completions,tenant=acme}"] == 3
    assert found["ttft_seconds_count{class=interactive,pool=chat}"] == 3
    assert (found["ready{}"], found["limit_files{}"], found["open_streams{}"]) == (1, 100, 7)
    assert found["replica_budget_tokens{pool=chat,replica=r}"] == 200
    assert found["replica_breaker{pool=chat,replica=r,state=closed}"] == 1


def test_odd_label_values_and_numbers_stay_readable() -> None:
    made = sheet(record(pool='a"b\\c\nd'), open_streams=float("nan"))
    found = samples(made)
    assert any('pool=a"b\\c\nd' in name for name in found)
    assert "open_streams{}" not in found


def test_registered_names_keep_the_rules() -> None:
    for metric in METRICS:
        assert metric.name.startswith("controlplane_gateway_")
        assert not metric.unit or metric.unit in metric.name
        assert metric.help.endswith(".")
        if metric.kind == "histogram":
            bounds = SECONDS[metric.name.removeprefix("controlplane_gateway_").removesuffix("_seconds")]
            assert list(bounds) == sorted(set(bounds))
    assert len({metric.name for metric in METRICS}) == len(METRICS)


TOLD_SECONDS = 600


def window(start: float, end: float) -> OutcomeWindow:
    return OutcomeWindow("gw", "chat", start, end, 1, 1, 1, 0, 0, {}, 5, 5, 0)


def test_windows_get_their_unix_time_once_and_are_told_from_a_time_on() -> None:
    told = ToldWindows()
    (first,) = told.add([window(1.0, 2.0)], 1000.0)
    assert (first.start, first.end) == (1001.0, 1002.0)
    told.add([window(2.0, 3.0), window(3.0, 4.0)], 1000.5)
    assert [each.end for each in told.after(0)] == [1002.0, 1003.5, 1004.5]
    assert [each.end for each in told.after(1002.0)] == [1003.5, 1004.5]
    assert told.after(2000.0) == []


def test_old_windows_are_forgotten() -> None:
    told = ToldWindows()
    told.add([window(0.0, 1.0)], 0.0)
    told.add([window(KEPT_SECONDS + 2, KEPT_SECONDS + 3)], 0.0)
    assert {each.end for each in told.after(0.0)} == {KEPT_SECONDS + 3}


@pytest.mark.parametrize("replicas", [0, 9, 99, MOST_PARTS])
def test_no_more_are_kept_than_fit_into_memory(replicas: int) -> None:
    told, seen = ToldWindows(), dict.fromkeys(map(str, range(replicas)), ReplicaWindow())
    for end in range(1, TOLD_SECONDS + 1):
        told.add([msgspec.structs.replace(window(end - 1.0, float(end)), replicas=seen)], 0.0)
    kept = told.after(0.0)
    assert len(kept) == max(1, min(TOLD_SECONDS, MOST_PARTS // (1 + replicas)))
    assert kept[-1].end == TOLD_SECONDS


def test_the_queue_s_caps_and_outgrown_streams_are_shown() -> None:
    settings = AdmissionSettings.model_validate({"mode": "enforce"})
    admission = Admission(settings, gateway="gw", now=0.0)
    admission.set_replicas([ReplicaSpec(name="r", pool="chat", kv_tokens=1000)], 0.0)
    admission.set_limits({"r": 1.0}, {}, 0.0)
    ask = Request(tenant="acme", prompt_tokens=100, output_tokens=10, most_output_tokens=500)
    running = admission.offer(ask, 0.0, 0.5)
    assert isinstance(running, Admitted)
    admission.tokens(running.ticket, 50, 0.1)
    assert isinstance(admission.offer(ask, 0.1, 0.5), Queued)
    assert "queue_cap_requests{class=interactive,pool=chat}" not in samples(
        Metrics(["acme"]).sheet(admission.status(0.2), {})
    ), "nobody knows yet how fast the queue is served"
    admission.poll(1.5)
    found = samples(Metrics(["acme"]).sheet(admission.status(1.5), {}))
    assert found["replica_extensions_total{pool=chat,replica=r}"] == 1
    assert found["queued_requests{pool=chat}"] == 1
    assert found["queue_cap_requests{class=interactive,pool=chat}"] > 0
    assert found["queue_cap_requests{class=batch,pool=chat}"] > 60, "two minutes may pass, at one in 1.4 s"
    assert "queue_cap_tokens{class=batch,pool=chat}" in found
    assert found["spilled_requests_total{}"] == 0
