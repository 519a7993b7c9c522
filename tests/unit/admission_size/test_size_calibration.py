"""Bytes per token: how fast it is learned, on which side it errs, and what cannot spoil it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.admission.size_calibration import Category, SizeCalibration, category_of

TRUE_RATIOS = {Category.PROSE: 4.48, Category.CODE: 3.52, Category.SCRIPT: 2.01}
"""Of the dual-pool paper's English, code and CJK."""


def taught(category: Category, samples: int, seed: int, gamma: float, spread: float = 0.1) -> float:
    """The ratio after `samples` requests of 4,000 bytes whose own ratio scatters around the true one."""
    rng = random.Random(seed)
    calibration = SizeCalibration(gamma=gamma)
    for _ in range(samples):
        ratio = TRUE_RATIOS[category] * rng.lognormvariate(0, spread)
        calibration.learn(category, "acme", 4000, round(4000 / ratio))
    return calibration.bytes_per_token(category, "acme")


@pytest.mark.parametrize("category", TRUE_RATIOS)
def test_after_50_requests_the_ratio_is_within_4_percent(category: Category) -> None:
    errors = [abs(taught(category, 50, seed, gamma=0.0) / TRUE_RATIOS[category] - 1) for seed in range(100)]
    assert sum(errors) / len(errors) < 0.02
    assert sorted(errors)[94] < 0.04


@pytest.mark.parametrize("category", TRUE_RATIOS)
def test_the_careful_ratio_errs_on_the_side_of_more_tokens(category: Category) -> None:
    ratios = [taught(category, 50, seed, gamma=1.0) / TRUE_RATIOS[category] for seed in range(100)]
    assert max(ratios) < 1.0
    assert min(ratios) > 0.8


def test_the_start_is_4_bytes_and_one_request_already_counts_half() -> None:
    calibration = SizeCalibration(gamma=0.0)
    assert calibration.bytes_per_token(Category.PROSE, "acme") == 4.0
    assert calibration.tokens(401, Category.PROSE, "acme") == 101
    calibration.learn(Category.PROSE, "acme", 200, 100)
    assert calibration.bytes_per_token(Category.PROSE, "acme") == pytest.approx(3.0)
    careful = SizeCalibration(gamma=1.0)
    careful.learn(Category.PROSE, "acme", 200, 100)
    assert careful.bytes_per_token(Category.PROSE, "acme") == pytest.approx(3.0 - 1.0)


def test_later_the_past_weighs_beta() -> None:
    calibration = SizeCalibration(beta=0.95, gamma=0.0)
    for _ in range(500):
        calibration.learn(Category.PROSE, "acme", 400, 100)
    calibration.learn(Category.PROSE, "acme", 200, 100)
    assert calibration.bytes_per_token(Category.PROSE, "acme") == pytest.approx(0.95 * 4 + 0.05 * 2)


def test_tenants_learn_apart_and_a_new_one_starts_from_all() -> None:
    calibration = SizeCalibration(gamma=0.0)
    for _ in range(200):
        calibration.learn(Category.PROSE, "one", 300, 100)
        calibration.learn(Category.PROSE, "two", 500, 100)
    assert calibration.bytes_per_token(Category.PROSE, "one") == pytest.approx(3.0, rel=1e-2)
    assert calibration.bytes_per_token(Category.PROSE, "two") == pytest.approx(5.0, rel=1e-2)
    assert 3.0 < calibration.bytes_per_token(Category.PROSE, "new") < 5.0
    assert calibration.bytes_per_token(Category.CODE, "new") == 4.0


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(-5, 10**7))))
def test_no_report_leads_astray(reports: list[tuple[int, int]]) -> None:
    calibration = SizeCalibration()
    for text_bytes, tokens in reports:
        calibration.learn(Category.PROSE, "acme", text_bytes, tokens)
    assert 0.25 <= calibration.bytes_per_token(Category.PROSE, "acme") <= 16.0
    assert calibration.tokens(0, Category.PROSE, "acme") == 0


def test_classes_are_bounded() -> None:
    calibration = SizeCalibration()
    for tenant in range(9000):
        calibration.learn(Category.PROSE, str(tenant), 400, 100)
    assert len(calibration._ratios) == 8192


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("", Category.PROSE),
        ("The quick brown fox, it is said, jumps over the lazy dog; nobody knows why.", Category.PROSE),
        ("Überall ist's schöner, wo wir nicht sind – das weiß doch jedes Kind.", Category.PROSE),
        ("def f(x):\n    return {k: v[0] for k, v in x.items() if v}\n", Category.CODE),
        ('{"a": [1, 2, {"b": "c"}], "d": null}', Category.CODE),
        ("敏捷的棕色狐狸跳过了懒狗。", Category.SCRIPT),
        ("Съешь же ещё этих мягких французских булок", Category.SCRIPT),
        ("a" * 5000 + "漢" * 5000 + "a" * 600, Category.SCRIPT),
    ],
)
def test_categories(text: str, category: Category) -> None:
    assert category_of(text) is category
