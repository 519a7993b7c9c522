"""What every law must hold: bounds, whole slots, states that survive the journal, settable parameters."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limit_windows import told, trip
from pydantic import TypeAdapter, ValidationError

from controlplane.policy.limits.aimd import Aimd
from controlplane.policy.limits.envoy_gradient import EnvoyGradient
from controlplane.policy.limits.fixed import Fixed
from controlplane.policy.limits.gradient import Gradient
from controlplane.policy.limits.gradient2 import Gradient2
from controlplane.policy.limits.law import Law, LimitReason, RoundTrip, State, Window
from controlplane.policy.limits.laws import AnyLaw, AnyState
from controlplane.policy.limits.none import NoLimit
from controlplane.policy.limits.slo_gradient import SloGradient, SloGradientState
from controlplane.policy.limits.thresholds import Thresholds
from controlplane.policy.limits.vegas import Vegas
from controlplane.policy.limits.windowed import Windowed
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import Quantiles

# Each law with what its limit may be.
LAWS: list[tuple[Law[Any], float, float]] = [
    (NoLimit(), 1e6, 1e6),
    (Fixed(limit=60), 60, 60),
    (Aimd(), 20, 200),
    (Vegas(), 1, 1000),
    (Gradient(), 1, 1000),
    (Gradient(min_limit=8, probe_interval=3), 4, 1000),
    (Gradient2(), 20, 200),
    (Windowed(inner=Gradient2()), 20, 200),
    (Windowed(inner=Vegas(probe_multiplier=1), min_window="200ms", max_window="2s"), 1, 1000),
    (EnvoyGradient(update_interval="1s", interval="5s", request_count=3), 3, 1000),
    (Thresholds(), 1, 1e6),
    (SloGradient(), 2, math.inf),
    (SloGradient(min_limit=4, max_limit=256, start_limit=64), 4, 256),
]

_DECODER: msgspec.msgpack.Decoder[AnyState] = msgspec.msgpack.Decoder(AnyState)

_seconds = st.floats(1e-6, 1e5)
_round_trips = st.lists(
    st.builds(RoundTrip, st.floats(0, 100), _seconds, st.integers(0, 2000), st.booleans()), max_size=25
).map(tuple)
_values = st.one_of(st.floats(0, 1e9), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0]))


@st.composite
def _histories(draw: st.DrawFn) -> list[Window]:
    """Windows in a row, with all that a source may say or not say."""
    windows = []
    start = draw(st.floats(0, 1000))

    def number(end: float) -> Known[float] | Unknown:
        if draw(st.booleans()):
            return Known(draw(_values), end - draw(st.floats(0, 40)))
        return Unknown(draw(st.sampled_from(Reason)), end)

    for _ in range(draw(st.integers(1, 12))):
        end = start + draw(st.sampled_from([0.1, 1.0, 5.0, 600.0]))
        p90, count = draw(_values), draw(st.floats(0, 1e6))
        first_token = (
            Known(Quantiles(count, None, None, p90, None, None), end) if draw(st.booleans()) else None
        )
        windows.append(
            Window(
                start=start,
                end=end,
                round_trips=draw(_round_trips),
                random=draw(st.floats(0, 1, exclude_max=True)),
                max_in_flight=draw(st.none() | st.floats(0, 1e6)),
                in_flight=draw(st.none() | st.floats(0, 1e6)),
                mean_in_flight=draw(st.none() | st.floats(0, 1e6)),
                paced=draw(st.none() | st.floats(0, 1e6)),
                slow=draw(st.none() | st.floats(0, 1e6)),
                tokens=draw(st.none() | st.floats(0, 1e9)),
                first_token=first_token or Unknown(Reason.NO_TRAFFIC, end),
                step_gap=number(end),
                kv_usage=number(end),
                running=number(end),
                waiting=number(end),
                preemptions=number(end),
                max_num_seqs=draw(st.none() | st.integers(1, 4096)),
                kv_ceiling=draw(st.none() | st.floats(0.01, 1e5)),
                restarted=draw(st.booleans()),
            )
        )
        start = end
    return windows


def _learned(state: State) -> int | None:
    return state.seats.number if isinstance(state, SloGradientState) else None


@settings(max_examples=150, deadline=None)
@given(windows=_histories())
def test_limits_stay_in_bounds_and_survive_the_journal_whatever_comes(windows: list[Window]) -> None:
    for law, low, high in LAWS:
        state: State = law.start()
        journaled: State = state
        for window in windows:
            state = law.observe(state, window)
            assert math.isfinite(state.limit)
            # An engine that runs fewer sequences than a law's floor has them for a floor.
            assert min(low, window.max_num_seqs or low, _learned(state) or low) <= state.limit <= high
            assert isinstance(state.slots, int)
            assert 1 <= state.slots <= state.limit
            assert state.detail
            # A state from the journal goes on as if nothing had happened.
            journaled = _DECODER.decode(msgspec.msgpack.encode(law.observe(journaled, window)))
            # As texts: a NaN that was seen is not equal to itself.
            assert repr(journaled) == repr(_DECODER.decode(msgspec.msgpack.encode(state)))


def test_windows_survive_the_journal() -> None:
    window = Window(
        start=0.0,
        end=1.0,
        round_trips=(trip(1.0, dropped=True),),
        kv_usage=Known(0.5, 1.0),
        first_token=Known(Quantiles(3, 0.1, 0.1, 0.2, None, None), 1.0),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(window), type=Window) == window


@pytest.mark.parametrize("law", [law for law, _, _ in LAWS], ids=lambda value: type(value).__name__)
def test_laws_survive_the_configuration(law: Any) -> None:
    adapter: TypeAdapter[AnyLaw] = TypeAdapter(AnyLaw)
    assert adapter.validate_json(law.model_dump_json()) == law


def test_a_law_is_chosen_by_its_name() -> None:
    adapter: TypeAdapter[AnyLaw] = TypeAdapter(AnyLaw)
    law = adapter.validate_python({"law": "windowed", "inner": {"law": "gradient2", "min_limit": 4}})
    assert law == Windowed(inner=Gradient2(min_limit=4))
    assert adapter.validate_python(
        {"law": "slo-gradient", "ttft": "1s", "tpot_margin": "75%"}
    ) == SloGradient(ttft="1s", tpot_margin=0.75)
    with pytest.raises(ValidationError, match="'law'"):
        adapter.validate_python({"law": "vegass"})
    with pytest.raises(ValidationError, match="Extra inputs"):
        adapter.validate_python({"law": "vegas", "smooth": 1})


def test_slots_are_whole_and_at_least_one() -> None:
    for limit, slots in [(0.3, 1), (1.0, 1), (2.99, 2), (3.0, 3)]:
        assert State(limit, LimitReason.START, "").slots == slots


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_round_trip_takes_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        RoundTrip(0.0, seconds, 1)


def test_a_window_ends_after_it_starts() -> None:
    with pytest.raises(ValueError, match=r"ends after it starts \(got 2.0 to 2.0\)"):
        Window(start=2.0, end=2.0)
    with pytest.raises(ValueError, match=r"in \[0, 1\) \(got 1.0\)"):
        Window(start=1.0, end=2.0, random=1.0)


def test_a_window_in_which_the_limit_went_up_and_came_back_tells_the_last_reason() -> None:
    law = Aimd(initial_limit=100, backoff_ratio=0.5)
    up = trip(1.0)
    state = law.observe(law.start(), told(up, trip(1.0, dropped=True), *[up] * 50))
    assert (state.limit, state.reason) == (100, LimitReason.ROOM)
