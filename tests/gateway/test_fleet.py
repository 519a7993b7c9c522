"""What the gateway knows of engines: rotation, budgets, model list. No I/O, times are given."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from controlplane.gateway.fleet import GONE_SECONDS, Fleet
from controlplane.gateway.model_list import read_cards
from controlplane.gateway.outbound import UnreachableError
from controlplane.signals.control import ReplicaOrder
from controlplane.signals.samples import Scrape, Signals, Target

E10 = json.loads((Path(__file__).parents[1] / "cases/data/E10/models.json").read_text())
CHAT: tuple[dict[str, Any], ...] = ({"id": "acme/chat-8b", "max_model_len": 32768},)


def target(name: str, pool: str = "chat", port: int = 8000) -> Target:
    return Target(name, pool, f"http://{name}:{port}/metrics")


def fleet(*names: str, now: float = 100.0) -> Fleet:
    made = Fleet(now)
    made.set_targets([target(name) for name in names], now)
    return made


def rotations(fleet: Fleet, now: float) -> dict[str, str]:
    return {spec.name: spec.rotation.value for spec in fleet.specs(now)}


def test_alone_an_engine_is_in_once_it_has_said_what_it_serves() -> None:
    seen = fleet("a", "b")
    assert rotations(seen, 100) == {"a": "starting", "b": "starting"}
    seen.took_models("a", (), 101)
    assert rotations(seen, 101)["a"] == "starting"
    seen.took_models("a", CHAT, 102)
    assert rotations(seen, 102) == {"a": "in", "b": "starting"}
    assert rotations(seen, 102 + GONE_SECONDS)["a"] == "in"


def test_who_answers_nothing_for_long_is_unready_but_never_all_of_them() -> None:
    seen = fleet("a", "b")
    for name in ("a", "b"):
        seen.took_models(name, CHAT, 101)
    late = 101 + GONE_SECONDS + 1
    seen.took_models("b", CHAT, late)
    assert rotations(seen, late) == {"a": "unready", "b": "in"}
    assert rotations(seen, late + GONE_SECONDS + 1) == {"a": "in", "b": "in"}


def test_ready_since_is_known_only_of_those_that_came_later() -> None:
    seen = fleet("a")
    seen.took_models("a", CHAT, 105)
    seen.set_targets([target("a"), target("b")], 200)
    seen.took_models("b", CHAT, 210)
    since = {spec.name: spec.ready_since for spec in seen.specs(210)}
    assert since == {"a": None, "b": 210}


def test_an_engine_at_another_address_is_another_engine() -> None:
    seen = fleet("a")
    seen.took_models("a", CHAT, 101)
    seen.set_targets([target("a", port=9000)], 102)
    assert rotations(seen, 102) == {"a": "starting"}
    assert seen.origin("a").port == 9000
    with pytest.raises(UnreachableError):
        seen.origin("b")


def test_orders_win_and_looks_go_on() -> None:
    seen = fleet("a", "b")
    seen.took_models("a", CHAT, 101)
    order = ReplicaOrder(
        name="a", pool="chat", url="http://a:8000/metrics", rotation="draining", kv_tokens=99
    )
    seen.obey([order], 110)
    (spec,) = seen.specs(110)
    assert (spec.rotation, spec.kv_tokens, spec.models) == ("draining", 99, ("acme/chat-8b",))
    assert seen.draining_since("a") == 110
    seen.obey([order], 120)
    assert seen.draining_since("a") == 110
    seen.set_targets([target("a")], 130)
    assert rotations(seen, 130) == {"a": "in"}


def scrape(engines: dict[str, dict[str, float]]) -> Scrape:
    signals = {name: Signals(numbers=numbers) for name, numbers in engines.items()}
    return Scrape("a", time.time(), 0.1, "vllm", "0.32", ("m",), signals, Signals())


def test_who_answers_requests_is_not_gone_for_want_of_time_for_looks() -> None:
    seen = fleet("a", "b", "c")
    for name in "ab":
        seen.took_models(name, CHAT, 100)
    for name in "ac":
        seen.answered(name, 150)
    seen.took_models("b", CHAT, 150)
    assert rotations(seen, 151 + GONE_SECONDS - 2) == {"a": "in", "b": "in", "c": "starting"}
    seen.took_models("b", CHAT, 300)
    assert rotations(seen, 300) == {"a": "unready", "b": "in", "c": "starting"}


def test_budget_and_reading_of_one_engine_and_of_several() -> None:
    seen = fleet("a")
    one = {"running": 3, "waiting": 1, "kv_usage": 0.4, "kv_blocks": 100, "kv_block_size": 16}
    reading = seen.took_scrape(scrape({"0": one}), 105)
    assert reading is not None
    assert (reading.at, reading.running, reading.waiting, reading.kv_usage) == (105, 3, 1, 0.4)
    assert seen.specs(105)[0].kv_tokens == 1600
    # Data-parallel engines: work adds up, the fullest cache counts, each engine's own word on its capacity.
    two = {"0": one | {"kv_capacity_tokens": 1000}, "1": one | {"kv_usage": 0.9, "kv_capacity_tokens": 1000}}
    reading = seen.took_scrape(scrape(two), 106)
    assert reading is not None
    assert (reading.running, reading.waiting, reading.kv_usage) == (6, 2, 0.9)
    assert seen.specs(106)[0].kv_tokens == 2000
    encoder = one | {"kv_blocks": 1, "kv_capacity_tokens": 16}
    assert fleet("a").took_scrape(scrape({"0": encoder}), 106) is not None
    other = fleet("a")
    other.took_scrape(scrape({"0": encoder}), 106)
    assert other.specs(106)[0].kv_tokens is None, "one block is no cache: an encoder's requests hold none"
    reading = seen.took_scrape(scrape({"0": {}}), 107)
    assert reading is not None
    assert (reading.running, reading.kv_usage) == (None, None)
    assert seen.specs(107)[0].kv_tokens == 2000


def test_one_that_has_not_said_yet_will_serve_what_its_pool_does() -> None:
    seen = fleet("a", "b")
    assert {spec.models for spec in seen.specs(100)} == {()}
    seen.took_models("a", CHAT, 101)
    assert {spec.models for spec in seen.specs(101)} == {("acme/chat-8b",)}


# Case E10 without a network


def e10() -> Fleet:
    seen = Fleet(100.0)
    rows = E10["replicas"]
    seen.set_targets([target(row["id"], row["id"].partition("-")[0]) for row in rows], 100.0)
    for row in rows:
        seen.took_models(row["id"], tuple(row["models"]), 100.0)
    return seen


def ids(cards: Any) -> list[str] | None:
    return None if cards is None else [card["id"] for card in cards]


def test_E10_as_above() -> None:
    seen, later = e10(), 100.0 + GONE_SECONDS + 1
    for row in E10["replicas"]:
        if row["state"] == "ready":
            seen.took_models(row["id"], tuple(row["models"]), later)
    cards = seen.model_list(None, later)
    assert ids(cards) == E10["want"][0]["ids"]
    assert cards is not None
    assert cards[0]["max_model_len"] == 16384
    assert ids(seen.model_list(["acme/embed"], later)) == E10["want"][4]["ids"]


def test_E10_nothing_known_and_nothing_reachable() -> None:
    assert fleet("a").model_list(None, 100.0) is None
    assert e10().model_list(None, 100.0 + 600) is None


def test_E10_scaled_to_zero_is_still_listed() -> None:
    seen = e10()
    seen.set_targets([target("embed-0", "embed")], 110.0)
    assert ids(seen.model_list(None, 110.0)) == ["acme/chat-8b", "acme/embed", "acme/old", "sql-adapter"]
    seen.set_targets([], 120.0)
    assert ids(seen.model_list(None, 120.0)) == ["acme/chat-8b", "acme/embed", "acme/old", "sql-adapter"]


def test_empty_pools_and_what_they_served() -> None:
    seen = Fleet(100.0, ["chat", "embed"])
    assert seen.empty_pools() == {"chat": frozenset(), "embed": frozenset()}
    seen.set_targets([target("a")], 100)
    assert seen.empty_pools() == {"embed": frozenset()}
    seen.took_models("a", CHAT, 101)
    seen.set_targets([], 102)
    assert seen.empty_pools() == {"chat": {"acme/chat-8b"}, "embed": frozenset()}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"data":[{"id":"a"},{"id":""},{"id":3},{"x":1},"b",{"id":"c"}]}', ["a", "c"]),
        (b'{"data":[]}', []),
        (b'{"data":{}}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"\xff", None),
    ],
)
def test_lists_of_engines_are_read_with_care(body: bytes, names: list[str] | None) -> None:
    assert ids(read_cards(body)) == names


def test_odd_lengths_are_not_believed() -> None:
    seen = fleet("a")
    cards = tuple(
        {"id": f"m{i}", "max_model_len": odd} for i, odd in enumerate((True, -1, "x", math.nan, None))
    )
    seen.took_models("a", cards, 101)
    assert seen.specs(101)[0].max_model_len is None
    assert seen.max_model_len("m0") is None
