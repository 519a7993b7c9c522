"""An HPA behind what we tell, sync by sync: where it ends, and that it creates nothing to remove it again."""

import functools
import math
from collections.abc import Callable, Coroutine, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import fleet_fakes as fakes
import hpa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from test_advice import scaled

from controlplane.api import metrics
from controlplane.api.autoscaling import HPA_TOLERANCE
from controlplane.api.autoscaling_route import routes
from controlplane.api.external_scaler import ExternalScaler
from controlplane.api.external_scaler_settings import ExternalScalerSettings
from controlplane.api.external_scaler_wire import GetMetricsRequest, ScaledObjectRef
from controlplane.render.manifests import keda
from controlplane.render.manifests.settings import ManifestSettings
from controlplane.signals.decision import Orders, Standing
from controlplane.signals.reading import Reason, Unknown

NOWHERE = ExternalScalerSettings(tls_cert=Path("c"), tls_key=Path("k"), client_ca=Path("a"))


def result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


# Three ways to the HPA: each gives the value, and whether KEDA holds the trigger for active.


def by_grpc(daemon: fakes.FakeDaemon, tolerance: str) -> tuple[float, bool]:
    """KEDA's trigger `external`: the float where it is over 0, else the whole number."""
    asked = ScaledObjectRef(scalerMetadata={"pool": "chat", "tolerance": tolerance})
    scaler = ExternalScaler(daemon, NOWHERE)
    (value,) = result(scaler._metrics(GetMetricsRequest(scaledObjectRef=asked), None)).metricValues
    active = result(scaler._is_active(asked, None)).result
    return (value.metricValueFloat if value.metricValueFloat > 0 else float(value.metricValue)), active


def by_http(daemon: fakes.FakeDaemon, tolerance: str) -> tuple[float, bool]:
    """KEDA's trigger `metrics-api`: the number at `value`; active where it is over 0."""
    (route,) = routes(daemon).routes
    told = result(route.endpoint(name="chat", tolerance=tolerance))
    return told.value, told.value > 0


def by_metric(daemon: fakes.FakeDaemon, tolerance: str) -> tuple[float, bool]:
    """An HPA without KEDA, by Prometheus: the metric is for the usual tolerance."""
    assert tolerance == "0.1"
    page = metrics.page(daemon.seen, daemon.how, Orders(), daemon.clock).text(openmetrics=False)
    (line,) = (
        line for line in page.splitlines() if line.startswith("controlplane_pool_autoscaler_replicas{")
    )
    return float(line.split()[-1]), True


Tells = Callable[[fakes.FakeDaemon, str], tuple[float, bool]]
WAYS = [(by_grpc, "0.1"), (by_grpc, "0"), (by_http, "0.1"), (by_http, "0"), (by_metric, "0.1")]


def shipped(tolerance: str) -> dict[str, hpa.Way]:
    """The ways that the ScaledObjects of the manifests state; both kinds state the same."""
    given = ManifestSettings(hpa_tolerance=tolerance == "0")
    stated = [
        one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        for one in (*keda.external(given), *keda.metrics_api(given))
        if one["kind"] == "ScaledObject"
    ]
    assert all(one == stated[0] for one in stated)
    return {"up": hpa.way(stated[0]["scaleUp"]), "down": hpa.way(stated[0]["scaleDown"])}


def usual(tolerance: str) -> dict[str, hpa.Way]:
    """What an HPA does that states nothing but its tolerance."""
    return {
        "up": hpa.USUAL_UP._replace(tolerance=float(tolerance)),
        "down": hpa.USUAL_DOWN._replace(tolerance=float(tolerance)),
    }


@functools.cache
def told(tells: Tells, tolerance: str, wish: int, there: int) -> tuple[float, bool]:
    return tells(scaled(wish, there), tolerance)


class Sync(NamedTuple):
    """One look of the HPA: what is wished then, whether that has just been lowered, the counts around it."""

    wish: int
    is_lowered: bool
    before: int
    after: int


def followed(
    tells: Tells, tolerance: str, autoscaler: hpa.Hpa, wishes: list[tuple[int, int]], there: int
) -> Iterator[Sync]:
    """What becomes of `there` replicas while each wish stands for so many syncs. Pods come and go at once."""
    least = min(wish for wish, _ in wishes)
    sleeper = hpa.Keda(min(least, 1), cooldown_seconds=300.0)
    now, last = 0.0, math.inf
    for wish, syncs in wishes:
        for _ in range(syncs):
            now += hpa.SYNC_SECONDS
            before = there
            value, active = told(tells, tolerance, wish, there)
            there = sleeper.poll(now, active=active, asked=there)
            there = autoscaler.sync(now, value, there, there, there)
            yield Sync(wish, wish < last, before, there)
            last = wish


def sequences(counts: SearchStrategy[int]) -> SearchStrategy[list[tuple[int, int]]]:
    """Wishes that really change, each for some syncs, and the last one for long."""
    steps = st.lists(st.tuples(counts, st.integers(1, 30)), min_size=1, max_size=6)
    return steps.map(lambda wishes: [*wishes[:-1], (wishes[-1][0], 160)])


@pytest.mark.parametrize(("tells", "tolerance"), WAYS)
@pytest.mark.parametrize("behavior", [shipped, usual])
@settings(max_examples=60, deadline=None)
@given(wishes=sequences(st.integers(1, 60) | st.integers(9, 24)), there=st.integers(1, 60))
@example(wishes=[(10, 1), (11, 200)], there=10)
@example(wishes=[(12, 1), (11, 200)], there=10)
def test_it_ends_at_the_wish_and_removes_nothing_that_it_created_for_it(
    tells: Tells,
    tolerance: str,
    behavior: Callable[[str], dict[str, hpa.Way]],
    wishes: list[tuple[int, int]],
    there: int,
) -> None:
    created_for_this = False  # since the wish was last lowered
    for sync in followed(tells, tolerance, hpa.Hpa(**behavior(tolerance)), wishes, there):
        created_for_this = created_for_this and not sync.is_lowered
        assert not (created_for_this and sync.after < sync.before), "created, then removed"
        created_for_this = created_for_this or sync.after > sync.before
        if sync.before != sync.after:
            assert (sync.after > sync.before) is (sync.wish > sync.before), "away from the wish"
    surplus = sync.after - sync.wish
    assert sync.before == sync.after
    assert surplus >= 0
    assert surplus == 0 if tolerance == "0" or sync.wish <= 10 else 10 * surplus < sync.wish


@settings(max_examples=50, deadline=None)
@given(wishes=sequences(st.integers(0, 5)), there=st.integers(0, 5))
def test_to_zero_and_from_it_too(wishes: list[tuple[int, int]], there: int) -> None:
    for tells in (by_grpc, by_http):
        *_, last = followed(tells, "0.1", hpa.Hpa(**shipped("0.1")), wishes, there)
        assert last.after == last.wish


@pytest.mark.parametrize(("tells", "tolerance"), WAYS)
@given(there=st.integers(1, 60), wish=st.integers(0, 60), blind=st.booleans())
@settings(max_examples=20, deadline=None)
def test_in_observe_and_with_unknown_data_it_stays(
    tells: Tells, tolerance: str, there: int, wish: int, blind: bool
) -> None:
    need = Unknown(Reason.NO_DATA, fakes.AT) if blind else fakes.known(float(wish))
    daemon = scaled(wish, there, standing=Standing.ENFORCE if blind else Standing.OBSERVE, need=need)
    assert tells(daemon, tolerance) == (float(there), True)
    autoscaler = hpa.Hpa(**shipped(tolerance))
    assert autoscaler.sync(15.0, float(there), there, there, there) == there


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_no_value_lies_on_the_edge_of_the_tolerance(wish: int, there: int) -> None:
    """Versions of Kubernetes compare there with another rounding."""
    value, _ = by_grpc(scaled(wish, there), "0.1")
    for edge in (1 - HPA_TOLERANCE, 1 + HPA_TOLERANCE):
        assert abs(Fraction(value) / there - edge) > Fraction(1, 10**7)


def test_the_kind_value_is_not_for_a_count() -> None:
    """It takes the number for a ratio, and multiplies: the manifests and the manual say AverageValue."""
    value, _ = by_grpc(scaled(12, 10), "0.1")
    assert hpa.Hpa().sync(15.0, value, 10, 10, 10) == 12
    assert hpa.Hpa(kind="Value").recommendation(value, 10, 10, 10) == 120
    objects = (*keda.external(ManifestSettings()), *keda.metrics_api(ManifestSettings()))
    triggers = [one["spec"]["triggers"] for one in objects if one["kind"] == "ScaledObject"]
    assert {trigger["metricType"] for (trigger,) in triggers} == {"AverageValue"}


# -- the model itself ----------------------------------------------------------------------------------


def test_the_model_does_what_the_documentation_says() -> None:
    """Its own examples: twice the target doubles, half halves, a tenth away does nothing."""
    ratio = hpa.Hpa(kind="Value", target=100)
    assert ratio.recommendation(200, 5, 5, 5) == 10
    assert ratio.recommendation(50, 6, 6, 6) == 3
    assert ratio.recommendation(110, 5, 5, 5) == 5
    average = hpa.Hpa(target=100)
    assert average.recommendation(1000, 5, 5, 5) == 10
    assert average.recommendation(550, 5, 5, 5) == 5
    assert average.recommendation(550, 5, 6, 6) == 6, "of the pods that are there, whatever was asked for"


def test_the_model_waits_out_its_window_and_keeps_to_its_policies() -> None:
    waits = hpa.Hpa()
    counts = [10]
    for sync in range(1, 40):
        value = 10.0 if sync == 1 else 4.0
        counts.append(waits.sync(15.0 * sync, value, counts[-1], counts[-1], counts[-1]))
    assert counts.index(4) == 21, "300 seconds after the last higher recommendation"
    slow = hpa.Hpa(down=hpa.Way(0, (hpa.Policy("Pods", 4, 60), hpa.Policy("Percent", 10, 60))))
    count, counts = 80, []
    for sync in range(1, 14):
        count = slow.sync(15.0 * sync, 10.0, count, count, count)
        counts.append(count)
    assert counts == [72] * 4 + [64] * 4 + [57] * 4 + [51], "as in the documentation's example of 80 replicas"
    quick = hpa.Hpa()
    assert [quick.sync(15.0, 99.0, 3, 3, 3), quick.sync(30.0, 99.0, 7, 7, 7)] == [7, 14]
