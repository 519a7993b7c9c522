"""Case F1: a healthy engine whose time to first token is a large part of the objective, and a limit that must
neither stick to its minimum nor fall through it.

With c in flight a first token takes b up to a knee k, and b c / k from there on; so the objective S is met up
to c = k S / b, and without a limit a load of r a second with answers of A seconds settles where
c = r (b c / k + A), beyond it.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from closed_form import Loop, steadily

CASE = yaml.safe_load((Path(__file__).parent / "data/F1/sim.yaml").read_text())
FIRST, UNTIL_300, ALWAYS = CASE["want"][1], CASE["want"][0], CASE["want"][2]
GAP = 0.02


class Plant(NamedTuple):
    knee: int
    base: float
    objective: float
    answer: float
    rate: float

    @property
    def most(self) -> float:
        """In flight while the objective is just met."""
        return self.knee * self.objective / self.base

    @property
    def unlimited(self) -> float:
        """In flight without a limit: beyond the knee, or without end."""
        room = 1 - self.rate * self.base / self.knee
        return self.rate * self.answer / room if room > 0 else float("inf")

    def ttft(self, in_flight: int, now: float) -> float:
        return self.base * max(1.0, in_flight / self.knee)

    def loop(self, **limits: int) -> Loop:
        return Loop(
            {"min_limit": CASE["limiter"]["min"], "max_limit": CASE["limiter"]["max"], **limits},
            ttft_seconds=self.objective,
            tpot_seconds=0.1,
            ttft=self.ttft,
            gap=lambda now: GAP,
        )

    @property
    def tokens(self) -> int:
        return round(self.answer / GAP) + 1


GIVEN = Plant(64, 0.4, CASE["load"]["ttft_slo_seconds"], CASE["server"]["output_seconds"], 20.0)
ALIKE = (
    Plant(16, 0.4, 0.7, 6.0, 8.0),
    Plant(32, 0.2, 0.5, 3.0, 30.0),
    Plant(32, 1.0, 2.5, 10.0, 8.0),
    Plant(32, 1.7, 2.5, 3.0, 20.0),
)


def judge(loop: Loop, plant: Plant, settled: float, end: float) -> None:
    """What the case wants from second `settled` on, in units of the plant's own knee and most."""
    low, high = UNTIL_300["limit_between"]
    assert low / GIVEN.knee * plant.knee <= loop.limits[int(settled) - 1] <= high / GIVEN.most * plant.most
    assert loop.ttft_p95(settled) <= plant.objective
    assert all(isinstance(limit, int) and limit >= CASE["limiter"]["min"] for limit in loop.limits), ALWAYS
    # It is no use to meet the objective by serving nobody: nine tenths of what the knee bears are served.
    served = sum(at >= settled for at, _ in loop.ttft)
    assert served >= 0.9 * plant.knee / (plant.base + plant.answer) * (end - settled)


def test_F1_the_plant_is_that_of_the_case() -> None:
    assert GIVEN.most == pytest.approx(112)
    assert GIVEN.unlimited == pytest.approx(137, abs=1)
    assert GIVEN.ttft(137, 0.0) == pytest.approx(0.86, abs=0.01)


def test_F1_an_hour_of_tiny_prompts_at_night_is_no_measure_of_the_day() -> None:
    night = 3600.0
    plant = GIVEN

    def ttft(in_flight: int, now: float) -> float:
        return CASE["history"]["learned_baseline_ttft"] if now < night else plant.ttft(in_flight, now)

    loop = Loop(
        {f"{name}_limit": CASE["limiter"][name] for name in ("min", "max", "start")},
        ttft_seconds=plant.objective,
        tpot_seconds=0.1,
        ttft=ttft,
        gap=lambda now: GAP,
    )
    steadily(loop, 0.1, 0.0, night, 1)
    stop = night + CASE["load"]["stop"]
    steadily(loop, plant.rate, night, stop, plant.tokens)
    loop.run(stop)
    assert UNTIL_300["at"] == FIRST["from"]
    judge(loop, plant, night + FIRST["from"], stop)


@pytest.mark.parametrize(("plant", "start"), list(zip(ALIKE, (4, 256, 256, 4), strict=True)), ids=str)
def test_F1_every_such_engine_is_kept_at_its_objective(plant: Plant, start: int) -> None:
    assert plant.unlimited > plant.most, "a plant that needs no limit shows nothing"
    loop = plant.loop(start_limit=start)
    steadily(loop, plant.rate, 0.0, 300.0, plant.tokens)
    loop.run(300.0)
    judge(loop, plant, 150.0, 300.0)


@pytest.mark.parametrize(("seconds", "rate"), [(25e-6, 10_000.0), (1e-3, 200.0), (2e-2, 10.0)])
def test_F1_tiny_answers_do_not_end_in_refusing_everything(seconds: float, rate: float) -> None:
    """Less than one in flight on average (rate x latency is 0.25, 0.2, 0.2), and all are served."""
    assert CASE["second_run"]["want"].startswith("limit stays >= min")
    loop = Plant(64, seconds, 0.7, 0.0, rate).loop(start_limit=CASE["limiter"]["start"])
    steadily(loop, rate, 0.0, 3.0, 1)
    loop.run(4.0)
    assert min(loop.limits) >= CASE["limiter"]["min"]
    assert loop.refused == 0
    assert len(loop.ttft) == loop.admitted


@pytest.mark.parametrize("plant", [GIVEN, ALIKE[2]], ids=str)
def test_F1_it_comes_back_from_the_minimum(plant: Plant) -> None:
    """Half of the knee again within two minutes, or twenty answers where those are long."""
    assert CASE["third_run"]["want"] == "limit >= 32 within 120 s after the end"
    over, again = 500.0, max(120.0, 20 * plant.answer)
    loop = Loop(
        {f"{name}_limit": CASE["limiter"][name] for name in ("min", "max", "start")},
        ttft_seconds=plant.objective,
        tpot_seconds=0.1,
        ttft=lambda in_flight, now: 20.0 if now < over else plant.ttft(in_flight, now),
        gap=lambda now: GAP,
    )
    steadily(loop, plant.rate, 0.0, over + again, plant.tokens)
    loop.run(over)
    assert min(loop.limits[-60:]) <= 2 * CASE["limiter"]["min"], "there was no real overload"
    loop.run(over + again)
    assert loop.limit >= plant.knee / 2
