"""The metric registry: names that Prometheus likes, and nothing exported that is not in it."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.api.exposition import Page
from controlplane.signals.registry import (
    BOUNDED_TOTALS,
    BY_NAME,
    LATENCY,
    LOAD,
    METRICS,
    QUANTILES,
    TOTALS,
    Kind,
    Metric,
)
from controlplane.signals.snapshot import Latency, Load, Quantiles, Totals

# Base units of Prometheus, things counted, and rates of those.
UNITS = {"seconds", "ratio", "requests", "tokens", "sequences", "replicas", "pools", "ticks", "overrides"}
UNITS |= {"streams", "nodes", "gpus", "probes"}
RATES = {"tokens_per_second", "requests_per_second", "preemptions_per_second"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_follows_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"controlplane_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
    assert metric.unit in {"", *UNITS, *RATES}
    assert metric.family.endswith(metric.unit)
    for unit in ("seconds", "ratio", "bytes", "timestamp"):  # a name that ends in a unit declares it
        assert not metric.family.endswith(f"_{unit}") or metric.unit == unit
    assert re.fullmatch(r"[A-Z0-9].+[.]", metric.help)
    assert "\n" not in metric.help
    assert "\\" not in metric.help
    assert len(set(metric.labels)) == len(metric.labels)
    # dcgm-exporter writes UUID so, and one variable of a dashboard must do for its series and for ours.
    labels = [label for label in metric.labels if label != "UUID"]
    assert all(re.fullmatch(r"[a-z_]+", label) and label not in {"le", "job", "instance"} for label in labels)


def test_no_name_stands_twice() -> None:
    assert len(BY_NAME) == len(METRICS)
    families = [metric.family for metric in METRICS]
    assert len(set(families)) == len(families)


def test_the_tables_name_every_field_they_speak_of() -> None:
    assert tuple(LOAD) == Load.__struct_fields__
    assert tuple(LATENCY) == Latency.__struct_fields__
    assert {*TOTALS, *BOUNDED_TOTALS.values()} == set(Totals.__struct_fields__)
    assert {"count", "mean", "lowest", "highest", *QUANTILES.values()} == set(Quantiles.__struct_fields__)


def test_pools_and_replicas_have_families_of_their_own() -> None:
    for metric in METRICS:
        if metric.name.startswith("controlplane_replica_"):
            assert metric.labels[:2] == ("pool", "replica")
        elif metric.name.startswith("controlplane_pool_"):
            assert metric.labels[0] == "pool"
            assert "replica" not in metric.labels


def test_the_exporter_writes_the_registered_families_and_no_other() -> None:
    page = Page()
    with pytest.raises(KeyError):
        page.add("controlplane_surprise", 1.0)
    exported = {family.name for family in text_string_to_metric_families(page.text(openmetrics=False))}
    in_text = {m.family if m.kind is Kind.COUNTER else m.name for m in METRICS}
    assert exported == in_text
