"""A slice of the campaign's random histories, quick enough for every run; and their judge can fail."""

import pytest
from gpu_histories import FAULTS, HARMLESS
from gpu_judge import Answer, confusion, run
from quarantine_fleet import Fleet

SEEDS = range(80)


def test_a_slice_of_the_campaign_is_answered_right() -> None:
    answers = [run(seed) for seed in SEEDS]
    wrong = [f"seed {one.seed}, {one.incident}: {'; '.join(one.flaws)}" for one in answers if one.flaws]
    assert not wrong, "\n".join([*wrong, confusion(answers)])
    assert len({one.incident for one in answers}) > 20


def test_the_judge_complains_where_faults_are_not_acted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = _with_settings(monkeypatch, hold_down="10m", storm_window="10m")
    assert any("acted" in flaw for one in answers for flaw in one.flaws)


def test_the_judge_complains_where_healthy_nodes_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs' XIDs taken for broken hardware: every such history must be called wrong."""
    codes = {code: {"class": "hardware-fatal", "action": "drain-and-reset"} for code in (13, 31, 43, 94)}
    answers = _with_settings(monkeypatch, xids=codes)
    assert any("took" in flaw for one in answers for flaw in one.flaws if one.wanted == "none")


def test_every_kind_of_incident_is_told_apart() -> None:
    assert len(FAULTS) >= 12
    assert len(HARMLESS) >= 15


def _with_settings(monkeypatch: pytest.MonkeyPatch, **settings: object) -> list[Answer]:
    make = Fleet.__init__

    def changed(self: Fleet, *args: object, **kwargs: object) -> None:
        make(self, *args, **{**kwargs, **settings})  # type: ignore[arg-type]

    monkeypatch.setattr(Fleet, "__init__", changed)
    return [run(seed) for seed in range(25)]
