"""What a decision on a limit may say, and which one is the newest."""

import pytest
from actuator_fakes import decision
from hypothesis import given
from hypothesis import strategies as st

from controlplane.actuators.limit import MOST, Newest, RefusedError, limit_of


@pytest.mark.parametrize("text", ["1", "58", str(MOST)])
def test_a_limit_is_a_whole_number(text: str) -> None:
    assert limit_of(decision(text)) == int(text)


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "58.0", "1e3", " 58", "٥٨", "abc", str(MOST + 1), "9" * 5000]
)
def test_anything_else_is_refused_with_what_was_said(text: str) -> None:
    with pytest.raises(RefusedError) as refused:
        limit_of(decision(text))
    assert str(refused.value) == (f"the limit of a:1 is a whole number from 1 to {MOST} (got {text[:50]!r})")


@given(st.text())
def test_no_text_passes_that_is_not_a_limit(text: str) -> None:
    try:
        limit = limit_of(decision(text))
    except RefusedError:
        return
    assert 1 <= limit <= MOST


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab")), max_size=40))
def test_what_is_taken_never_goes_back(given: list[tuple[int, str]]) -> None:
    newest, taken = Newest(), dict[str, int]()
    for tick, target in given:
        older = tick < taken.get(target, 0)
        if older:
            with pytest.raises(RefusedError, match=f"superseded by decision {taken[target]}-1 on {target}"):
                newest.take(decision(1, target, tick))
        else:
            newest.take(decision(1, target, tick))
            taken[target] = tick


def test_the_clock_does_not_matter_but_the_tick_does() -> None:
    newest = Newest()
    newest.take(decision(8, tick=9, at=1000.0))
    newest.take(decision(8, tick=10, at=500.0))  # a clock that was set back
    with pytest.raises(RefusedError):
        newest.take(decision(8, tick=9, at=2000.0))


def test_targets_that_come_and_go_are_forgotten_one_day() -> None:
    newest = Newest()
    newest.take(decision(8, "old", tick=9))
    for i in range(20_000):
        newest.take(decision(8, f"pod-{i}", tick=10))
    newest.take(decision(8, "old", tick=1))
