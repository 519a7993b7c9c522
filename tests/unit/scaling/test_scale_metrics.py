"""Replica counts as an HPA or anybody else can read them."""

from pathlib import Path

import msgspec
import pytest
from fleet_fakes import AT, fleet, status

from controlplane.api import answers, metrics
from controlplane.api.shapes import KnownNumber
from controlplane.config import parse
from controlplane.explain import explanation
from controlplane.signals.decision import Orders
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import Number, Scale


def lines(need: Number, cold_start: float | None = None) -> list[str]:
    seen = fleet()
    name, pool = next(iter(seen.pools.items()))
    scale = Scale("work", 5, 3, 2, need, "need", "", AT, cold_start)
    pools = {**seen.pools, name: msgspec.structs.replace(pool, scale=scale)}
    page = metrics.page(msgspec.structs.replace(seen, pools=pools), status(), Orders(), AT + 1)
    text = page.text(openmetrics=False)
    body = text.decode() if isinstance(text, bytes) else text
    return [line for line in body.splitlines() if f'pool="{name}"' in line]


@pytest.mark.parametrize(
    ("metric", "value"), [("desired", 5.0), ("ready", 3.0), ("loading", 2.0), ("needed", 4.25)]
)
def test_counts_are_exported(metric: str, value: float) -> None:
    found = [one for one in lines(Known(4.25, AT)) if f"pool_{metric}_replicas" in one]
    assert [float(one.rsplit(" ", 1)[1]) for one in found] == [value]


def test_how_long_a_start_takes_is_exported_once_a_look_has_said_so() -> None:
    found = [one for one in lines(Known(4.25, AT), 195.0) if "pool_cold_start_seconds" in one]
    assert [float(one.rsplit(" ", 1)[1]) for one in found] == [195.0]
    assert not [one for one in lines(Known(4.25, AT)) if "pool_cold_start_seconds" in one]


def test_a_need_that_is_not_known_is_no_number_but_what_is_asked_for_stays() -> None:
    found = lines(Unknown(Reason.NO_DATA, AT))
    assert not [one for one in found if "pool_needed_replicas" in one]
    assert [one for one in found if "pool_desired_replicas" in one]
    assert [one for one in found if 'law="work"' in one and 'reason="need"' in one]


def test_the_api_says_it_with_its_sentence_and_null_where_a_pool_is_not_scaled() -> None:
    seen = fleet()
    pool = next(iter(seen.pools.values()))
    scale = Scale("work", 5, 3, 2, Known(4.25, AT), "need", "work grows by a third", AT, 195.0)
    told = answers.pool_of(msgspec.structs.replace(pool, scale=scale), status(), AT).scale
    assert told is not None
    assert (told.replicas, told.ready, told.loading, told.reason) == (5, 3, 2, "need")
    assert isinstance(told.need, KnownNumber)
    assert told.need.value == 4.25
    assert told.detail == "work grows by a third"
    assert told.cold_start_seconds == 195.0
    assert answers.pool_of(pool, status(), AT).scale is None


def test_check_says_between_which_bounds_a_pool_is_scaled() -> None:
    config = parse("pools: {chat: {targets: {static: [h:8000]}, scale: {min: 2, max: 9}}}\n", Path("c.yaml"))
    assert "  replicas: from 2 to 9, by the law work" in explanation(config)
