"""The KV ceiling against hand-computed numbers and against a simulated cache."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.limits.kv_ceiling import Lengths, kv_ceiling


def test_one_length() -> None:
    # 1000 in and 200 out hold 1100 on average: 0.9 * 110,000/1100 = 90
    assert kv_ceiling(110_000, Lengths().add(1000, 200)) == pytest.approx(90)


def test_long_requests_weigh_by_the_time_they_stay() -> None:
    # 99 of (100, 10): 10 * 105 = 1050 token steps; one of (100, 10,000): 10,000 * 5100 = 51,000,000
    lengths = Lengths()
    for _ in range(99):
        lengths = lengths.add(100, 10)
    lengths = lengths.add(100, 10_000)
    # E[out] sum 10,990; token steps 99 * 1050 + 51,000,000 = 51,103,950: 4650 tokens each
    assert kv_ceiling(446_000, lengths) == pytest.approx(0.9 * 446_000 * 10_990 / 51_103_950)
    # The plain mean, 100 + 109.9/2 = 155 tokens each, would let in thirty times as many
    assert 29 * (kv_ceiling(446_000, lengths) or 0) < 0.9 * 446_000 / 155


def test_is_what_a_full_set_of_slots_holds() -> None:
    """Slots that are refilled at once, one token a step: at the ceiling they hold 0.9 of the cache."""
    draw = random.Random(7)
    lengths = [(draw.choice([50, 400, 3000]), draw.choice([10, 150, 1500])) for _ in range(4000)]
    sums = Lengths()
    for prompt, output in lengths:
        sums = sums.add(prompt, output)
    ceiling = kv_ceiling(1_000_000, sums)
    assert ceiling is not None
    slots = [draw.choice(lengths) for _ in range(round(ceiling))]
    done = [draw.randrange(output) for _, output in slots]
    held, steps = 0.0, 6000
    for step in range(steps):
        for i, (prompt, output) in enumerate(slots):
            if done[i] == output:
                slots[i], done[i] = draw.choice(lengths), 0
            done[i] += 1
            if step >= 1000:
                held += prompt + done[i]
    assert held / (steps - 1000) == pytest.approx(900_000, rel=0.05)


def test_without_lengths_there_is_no_ceiling() -> None:
    assert kv_ceiling(446_000, Lengths()) is None
    assert kv_ceiling(446_000, Lengths().add(1000, 0)) is None


def test_decay_forgets_the_old_mix() -> None:
    lengths = Lengths().add(100, 100).decayed(1e-6).add(10_000, 100)
    assert kv_ceiling(100_500, lengths) == pytest.approx(0.9 * 10, rel=1e-3)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 10_000)), min_size=1),
    st.floats(1e-6, 1),
)
def test_decay_alone_changes_nothing(pairs: list[tuple[int, int]], factor: float) -> None:
    lengths = Lengths()
    for prompt, output in pairs:
        lengths = lengths.add(prompt, output)
    assert kv_ceiling(1e6, lengths.decayed(factor)) == pytest.approx(kv_ceiling(1e6, lengths))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 10_000)), min_size=1))
def test_lies_between_the_ceilings_of_its_requests(pairs: list[tuple[int, int]]) -> None:
    lengths = Lengths()
    for prompt, output in pairs:
        lengths = lengths.add(prompt, output)
    alone = [1e6 * 0.9 / (prompt + output / 2) for prompt, output in pairs]
    ceiling = kv_ceiling(1e6, lengths)
    assert ceiling is not None
    assert min(alone) * (1 - 1e-9) <= ceiling <= max(alone) * (1 + 1e-9)


def test_the_mean_of_what_is_asked_for_follows_a_change_of_mix_whatever_came_before() -> None:
    """A minute of 75 small requests a second, then 4 large ones a second for a minute."""
    lengths, forgotten_a_second = Lengths(), math.exp(-1 / 60)
    for _ in range(60):
        lengths = lengths.decayed(forgotten_a_second).with_asked(75, 75 * 200.0)
    assert lengths.request_tokens == pytest.approx(200.0)
    for _ in range(60):
        lengths = lengths.decayed(forgotten_a_second).with_asked(4, 4 * 2000.0)
    assert lengths.request_tokens is not None
    assert lengths.request_tokens > 1200.0
    flood = lengths.with_asked(10_000, 10_000 * 50.0)
    assert flood.request_tokens == pytest.approx(50.0)
