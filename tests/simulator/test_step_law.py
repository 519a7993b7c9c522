"""The step law at measured and at predicted points."""

from math import hypot

import msgspec
import pytest

from controlplane.simulator.constants import engine_model, engine_models
from controlplane.simulator.step import StepLaw


@pytest.mark.parametrize(
    ("weights_ms", "token_us", "tokens", "measured_ms"),
    [
        # Sums of operator times without lm_head: A100, Llama-3-8B, and RTX PRO 6000, Llama-3.1-8B.
        (9.7, 71.0, 128, 13.2),
        (9.7, 71.0, 2048, 145.6),
        (10.0, 37.2, 256, 13.8),
        (10.0, 37.2, 2048, 76.2),
    ],
)
def test_hypot_joins_the_regimes(weights_ms: float, token_us: float, tokens: int, measured_ms: float) -> None:
    law = StepLaw(0.0, weights_ms * 1e-3, token_us * 1e-6, 0.0, 0.0, 0.0)
    assert law.seconds(tokens, 0, 0.0, 0) * 1e3 == pytest.approx(measured_ms, rel=0.01)


def test_every_term_counts() -> None:
    law = StepLaw(host=1.0, weights=3.0, token=0.4, kv_token=0.01, pair=0.001, sequence=0.1)
    # Host, the hypotenuse of 3 and 4, context, pairs, sequences.
    assert law.seconds(tokens=10, context=200, pairs=500.0, sampled=7) == pytest.approx(1 + 5 + 2 + 0.5 + 0.7)


@pytest.mark.parametrize(("name", "tpot_ms"), [("a100-8b", 11.9), ("h100-8b", 8.0), ("2xh100-70b-fp8", 18.2)])
def test_a_lone_sequence_at_1500_tokens(name: str, tpot_ms: float) -> None:
    """The published constants make these decode steps (1000 in, 1000 out, alone)."""
    assert engine_model(name).law.seconds(1, 1500, 0.0, 1) * 1e3 == pytest.approx(tpot_ms, rel=0.005)


def test_time_to_first_token_of_the_70b_model_alone() -> None:
    """Measured 406.8 ms for 5000 tokens, in the law's chunks of 2048."""
    law = engine_model("2xh100-70b-fp8").law
    chunks = [(0, 2048), (2048, 2048), (4096, 904)]
    seconds = sum(law.seconds(n, 0, n * (past + n / 2), n == 904) for past, n in chunks)
    assert seconds * 1e3 == pytest.approx(406.8, rel=0.05)


def test_a_slowed_engine_takes_as_many_times_as_long() -> None:
    law = engine_model("h100-8b").law
    args = (300, 40_000, 1e6, 120)
    assert law.slowed(1.7).seconds(*args) == pytest.approx(1.7 * law.seconds(*args))


def test_constants_are_complete_and_have_sources() -> None:
    models = engine_models()
    assert {"a100-8b", "h100-8b", "2xh100-70b-fp8", "rtx-pro-6000-8b"} <= models.keys()
    for model in models.values():
        assert model.sources
        assert all(value >= 0 for value in msgspec.structs.astuple(model.law))
        assert model.law.weights == pytest.approx(hypot(model.weights_ms * 1e-3, 0))
        assert model.settings.kv_tokens >= model.settings.max_model_len


def test_an_unknown_engine_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'b200'.*h100-8b"):
        engine_model("b200")
