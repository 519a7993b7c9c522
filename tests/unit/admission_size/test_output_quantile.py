"""Learned output lengths: coverage, change, keys, bounds; fingerprints of system prompts."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.output_quantile import OutputKey, OutputQuantiles, system_fingerprint

KEY = OutputKey("acme", "chat-8b chat", "f00d")


@given(st.lists(st.integers(0, 10**6), max_size=200), st.sampled_from([0.5, 0.75, 0.9]), st.integers(1, 64))
def test_it_is_the_order_statistic_of_the_latest_outputs(
    outputs: list[int], share: float, window: int
) -> None:
    quantiles = OutputQuantiles(share, window=window, enough=1)
    for tokens in outputs:
        quantiles.learn(KEY, tokens)
    latest = sorted(outputs[-window:])
    rank = math.ceil(share * (len(latest) + 1))
    assert quantiles.learned_tokens(KEY) == (latest[rank - 1] if rank <= len(latest) else None)


@pytest.mark.parametrize("share", [0.75, 0.9])
def test_the_next_output_is_covered_as_often_as_promised(share: float) -> None:
    rng = random.Random(7)
    quantiles, covered, asked = OutputQuantiles(share), 0, 0
    for _ in range(6000):
        output = round(rng.lognormvariate(5.5, 1.0))
        learned = quantiles.learned_tokens(KEY)
        if learned is not None:
            asked += 1
            covered += output <= learned
        quantiles.learn(KEY, output)
    assert asked == 6000 - 20
    assert share - 0.01 < covered / asked < share + 0.025


def test_a_change_is_followed_within_the_window() -> None:
    quantiles = OutputQuantiles(window=100)
    for _ in range(300):
        quantiles.learn(KEY, 2000)
    for _ in range(100):
        quantiles.learn(KEY, 50)
    assert quantiles.learned_tokens(KEY) == 50


def test_nothing_is_said_before_enough_is_known() -> None:
    quantiles = OutputQuantiles(enough=20)
    for _ in range(19):
        quantiles.learn(KEY, 100)
    assert quantiles.learned_tokens(KEY) is None
    quantiles.learn(KEY, 100)
    assert quantiles.learned_tokens(KEY) == 100


def test_applications_learn_apart_and_new_ones_hear_the_route() -> None:
    quantiles = OutputQuantiles()
    short, long = OutputKey("acme", "r", "1"), OutputKey("acme", "r", "2")
    for _ in range(100):
        quantiles.learn(short, 10)
        quantiles.learn(long, 1000)
    assert quantiles.learned_tokens(short) == 10
    assert quantiles.learned_tokens(long) == 1000
    assert quantiles.learned_tokens(OutputKey("acme", "r", "3")) == 1000
    assert quantiles.learned_tokens(OutputKey("acme", "r")) == 1000
    assert quantiles.learned_tokens(OutputKey("acme", "other")) is None
    assert quantiles.learned_tokens(OutputKey("else", "r", "1")) is None


def test_a_prompt_of_its_own_in_every_request_still_learns() -> None:
    quantiles = OutputQuantiles(most_keys=8)
    for i in range(1000):
        quantiles.learn(OutputKey("acme", "r", f"{i:x}"), 70)
    assert quantiles.learned_tokens(OutputKey("acme", "r", "new")) == 70
    assert len(quantiles._windows) == 8


def test_odd_outputs_are_kept_within_bounds() -> None:
    quantiles = OutputQuantiles(enough=1, share=0.5)
    for tokens in (-5, 10**30, 10):
        quantiles.learn(KEY, tokens)
    assert quantiles.learned_tokens(KEY) == 10


def test_a_quantile_lies_between_0_and_1() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1 \(got 90\)"):
        OutputQuantiles(share=90)


def fingerprint(content: Any, role: str = "system") -> str:
    return system_fingerprint(Endpoint.CHAT, {"messages": [{"role": role, "content": content}]})


def test_fingerprints_tell_system_prompts_apart() -> None:
    one = fingerprint("You are a pirate.")
    assert len(one) == 16
    assert one == fingerprint("You are a pirate.", role="developer")
    assert one == fingerprint([{"type": "text", "text": "You are a pirate."}])
    assert one != fingerprint("You are a parrot.")
    assert one == system_fingerprint(Endpoint.MESSAGES, {"system": "You are a pirate."})
    assert one == system_fingerprint(Endpoint.RESPONSES, {"instructions": "You are a pirate."})
    assert one == system_fingerprint(
        Endpoint.RESPONSES, {"input": [{"role": "system", "content": "You are a pirate."}]}
    )
    assert fingerprint("x" * 5000) == fingerprint("x" * 9000), "only the beginning is looked at"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": []},
        {"messages": ["x"]},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"messages": [{"role": "system"}]},
        {"messages": [{"role": "system", "content": [5, {"text": 5}]}]},
        {"prompt": "hello"},
    ],
)
def test_without_a_system_prompt_there_is_no_fingerprint(body: dict[str, Any]) -> None:
    for endpoint in Endpoint:
        assert system_fingerprint(endpoint, body) == ""


def test_a_lone_surrogate_has_a_fingerprint_too() -> None:
    assert fingerprint("\ud800")
