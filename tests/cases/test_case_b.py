"""Cases B1 to B5: how many replicas are asked for, and when none are."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from controlplane.actuators import contention
from controlplane.actuators.contention import Contention, ContentionSettings
from controlplane.policy.scaling.prudence import Look, Wish, look, reports
from controlplane.policy.scaling.quantity import quantity
from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.policy.scaling.target_ratio import TargetRatio, imbalance, wanted
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import Number

DATA = Path(__file__).parent / "data"
START = 1_000_000.0


def load(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text())


class Scaler:
    """One pool's wish, look by look; what was reported so far."""

    def __init__(self, settings: ScaleSettings, replicas: int) -> None:
        self.settings = settings
        self.reports: list[tuple[str, str]] = []
        self.wish: Wish | None = Wish(replicas, "start", "")

    def look(self, t: float, need: Number, ready: int, loading_since: tuple[float, ...] = ()) -> int:
        seen = Look(at=START + t, ready=ready, loading_since=loading_since, need=need)
        after = look(self.wish, seen, self.settings)
        self.reports += reports(self.wish, after, self.settings)
        self.wish = after
        return after.replicas


def need(t: float, load: float | None, why: str = "") -> Number:
    return Unknown(Reason.UNAVAILABLE, START + t, why) if load is None else Known(float(load), START + t)


# --- B1 -------------------------------------------------------------------------------------------------

B1 = load("B1/trace.yaml")


def b1_settings() -> ScaleSettings:
    given = B1["config"]
    return ScaleSettings(
        min=given["min"],
        max=given["max"],
        hold=f"{given['hold_seconds']}s",
        fallback_replicas=given["fallback_replicas"],
    )


def test_B1_the_count_is_held_through_an_outage() -> None:
    scaler = Scaler(b1_settings(), B1["start"]["replicas"])
    for row in B1["rows"]:
        there = scaler.wish.replicas if scaler.wish else 0
        got = scaler.look(row["t"], need(row["t"], row["load"], row.get("why", "")), ready=there)
        assert got == row["want"], row
    assert [kind for kind, _ in scaler.reports] == ["scaling-blind", "scaling-sees"]


def test_B1_after_the_hold_the_fallback_raises() -> None:
    scaler = Scaler(b1_settings(), 2)
    counts = {}
    for row in B1["rows"]:
        if row["load"] is None:
            there = scaler.wish.replicas if scaler.wish else 0
            counts[row["t"]] = scaler.look(row["t"], need(row["t"], None), ready=there)
    assert counts[180] == 2
    assert counts[360] == B1["also_start_at_2"]["want_after_hold"]


# --- B2 -------------------------------------------------------------------------------------------------

B2 = load("B2/trace.yaml")


def play_b2(rows: list[dict[str, Any]]) -> list[tuple[int, list[str]]]:
    """What is asked for in each row, and the sentences reported there."""
    given = B2["config"]
    settings = ScaleSettings(
        min=given["min"],
        max=given["max"],
        tolerance=given["tolerance"],
        startup_timeout=f"{given['startup_timeout_seconds']}s",
        max_surge_replicas=given["max_surge_replicas"],
    )
    law = TargetRatio(target=given["target_per_replica"])
    scaler = Scaler(settings, rows[0]["ready"])
    since: list[float] = []  # when each loading replica was asked for
    asked_at, asked, found = 0.0, rows[0]["ready"], []
    for row in rows:
        since += [START + asked_at] * (row["ready"] + row["loading"] - rows[0]["ready"] - len(since))
        loading = tuple(since[len(since) - row["loading"] :]) if row["loading"] else ()
        told = len(scaler.reports)
        load = Known(law.need([row["waiting_plus_running"]]), START + row["t"])
        got = scaler.look(row["t"], load, row["ready"], loading)
        if got > asked:
            asked, asked_at = got, row["t"]
        found.append((got, [sentence for _, sentence in scaler.reports[told:]]))
    return found


def test_B2_loading_replicas_are_not_asked_for_again() -> None:
    assert [got for got, _ in play_b2(B2["rows"])] == [row["want"] for row in B2["rows"]]


def test_B2_overdue_replicas_are_told_of_and_replaced_once() -> None:
    for (got, told), row in zip(play_b2(B2["stuck"]), B2["stuck"], strict=True):
        assert got == row.get("want", got), row
        assert got <= row.get("want_max", got), row
        if "must_report" in row:
            assert row["must_report"] in told


# --- B3 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", load("B3/configs.yaml"), ids=lambda config: str(config["name"]))
def test_B3_impossible_bounds_are_refused_with_their_values(config: dict[str, Any]) -> None:
    scale = dict(config["scale"])
    if "target_per_replica" in scale:
        scale["law"] = {"target": scale.pop("target_per_replica")}
    if config["accept"]:
        ScaleSettings(**scale)
        return
    with pytest.raises(ValidationError) as refusal:
        ScaleSettings(**scale)
    for name in config.get("message_names", ()):
        assert name in str(refusal.value)


# --- B4 -------------------------------------------------------------------------------------------------

B4 = load("B4/table.yaml")


@pytest.mark.parametrize("row", B4["rows"], ids=lambda row: str(row["name"]))
def test_B4_each_kind_of_metric_counts_once(row: dict[str, Any]) -> None:
    signal = row["signal"]
    values = signal.get("values") or [quantity(signal["value"])]
    target = row.get("target_per_replica") or row.get("target") or quantity(row["target_quantity"])
    needed = TargetRatio(target=target).need(values)
    bounds = ScaleSettings(min=row.get("min", 1), max=100)
    assert bounds.clamp(wanted(needed, row["current"], B4["tolerance"])) == row["want"]
    assert (imbalance(values) is not None) == (row.get("must_report") == "imbalance")


# --- B5 -------------------------------------------------------------------------------------------------

B5 = load("B5/trace.yaml")


def test_B5_another_writer_is_told_of_and_not_fought() -> None:
    given = B5["config"]
    settings = ContentionSettings(
        resets_before_stop=given["resets_before_stop"], window=f"{given['window_seconds']}s"
    )
    memory, told = Contention(), ""
    for row in B5["rows"]:
        memory, write = contention.look(
            memory, row["observed"], row["wanted_by_load"], START + row["t"], settings
        )
        assert write == (None if row["write"] == "none" else row["write"]), row
        told = row.get("must_report", told)
        assert memory.why == told, row


def test_B5_writing_resumes_when_the_count_was_left_alone() -> None:
    settings = ContentionSettings(resets_before_stop=1, quiet="30m")
    memory, write = contention.look(Contention(), 2, 6, 0.0, settings)
    assert write == 6
    memory, write = contention.look(memory, 2, 6, 15.0, settings)
    assert (write, bool(memory.why)) == (None, True)
    memory, write = contention.look(memory, 3, 6, 1000.0, settings)  # it goes on being written
    memory, write = contention.look(memory, 3, 6, 1000.0 + 1799.0, settings)
    assert write is None
    memory, write = contention.look(memory, 3, 6, 1000.0 + 1800.0, settings)
    assert (write, memory.why) == (6, "")
