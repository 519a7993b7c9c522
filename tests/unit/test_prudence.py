"""Properties of prudence and readiness over random histories: what must hold whatever comes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.readiness import Fault, ReadinessSettings, Standing
from controlplane.policy.readiness import Look as ReplicaLook
from controlplane.policy.readiness import look as judge
from controlplane.policy.scaling.prudence import Look, Wish, look
from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.signals.probe import ProbeResult
from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.signals.snapshot import Number

STEP_SECONDS = 15.0
SETTINGS = ScaleSettings(
    min=1, max=12, down_after="5m", down_every="2m", fallback_replicas=4, startup_timeout="3m"
)

needs = st.one_of(
    st.none(),
    st.tuples(st.floats(0, 30, allow_nan=False), st.sampled_from([Quality.EXACT, Quality.LOWER_BOUND])),
)
steps = st.lists(st.tuples(needs, st.integers(0, 12)), min_size=1, max_size=120)


def reading(need: tuple[float, Quality] | None, at: float) -> Number:
    return Unknown(Reason.STALE, at) if need is None else Known(need[0], at, need[1])


@given(steps)
def test_a_count_stays_in_bounds_and_falls_one_by_one_on_evidence(
    history: list[tuple[tuple[float, Quality] | None, int]],
) -> None:
    wish: Wish | None = None
    lowered_at = raised_at = -math.inf
    for i, (need, ready) in enumerate(history):
        at = i * STEP_SECONDS
        before = wish
        wish = look(wish, Look(at=at, ready=ready, need=reading(need, at)), SETTINGS)
        assert SETTINGS.min <= wish.replicas <= SETTINGS.max
        if before is None:
            continue
        if wish.replicas > before.replicas:
            assert wish.replicas <= max(before.replicas, ready + SETTINGS.surge(ready))
            assert at - lowered_at >= SETTINGS.cold_start or need is None
            raised_at = at
        if wish.replicas < before.replicas:
            assert wish.replicas == before.replicas - 1
            assert need is not None
            assert at - lowered_at >= SETTINGS.down_every
            assert at - raised_at >= SETTINGS.cold_start
            quiet = history[max(0, i - int(SETTINGS.down_after / STEP_SECONDS)) : i + 1]
            for past, _ in quiet:
                assert past is not None
                assert past[1] is Quality.EXACT
                assert past[0] < before.replicas
            lowered_at = at


@given(st.lists(st.floats(0, 12, allow_nan=False), min_size=1, max_size=60), st.integers(1, 12))
def test_what_is_needed_is_asked_for_at_once(values: list[float], ready: int) -> None:
    wish: Wish | None = None
    for i, value in enumerate(values):
        at = i * STEP_SECONDS
        wish = look(wish, Look(at=at, ready=ready, need=Known(value, at)), SETTINGS)
        enough = value <= wish.replicas * (1 + SETTINGS.tolerance) + 1e-6
        assert enough or wish.replicas in (SETTINGS.max, ready + SETTINGS.surge(ready))


def test_what_was_needed_long_ago_does_not_keep_replicas() -> None:
    settings = ScaleSettings(min=1, max=20, down_after="5m", down_every="1m", cold_start="3m", tolerance=0.0)
    wish: Wish | None = Wish(12, "start", "")
    for i in range(200):
        need = 11.0 if i == 0 else 3.0
        at = i * STEP_SECONDS
        ready = wish.replicas if wish else 0
        wish = look(wish, Look(at=at, ready=ready, need=Known(need, at)), settings)
    assert wish is not None
    assert wish.replicas == 3


def test_none_is_taken_away_under_what_must_be_kept() -> None:
    settings = ScaleSettings(min=1, max=20, down_after="1m", down_every="15s", tolerance=0.0)
    wish: Wish | None = Wish(8, "start", "")
    for i in range(100):
        at = i * STEP_SECONDS
        wish = look(wish, Look(at=at, ready=8, need=Known(4.0, at), keep=6.2), settings)
    assert wish is not None
    assert wish.replicas == 7


@given(st.integers(0, 12), st.integers(1, 20), st.data())
def test_overdue_replicas_are_replaced_once(ready: int, stuck: int, data: st.DataObject) -> None:
    settings = ScaleSettings(min=0, max=100, max_surge_replicas=50, startup_timeout="3m")
    need = float(ready + stuck)
    wish = Wish(ready + stuck, "start", "")
    since: list[float] = [0.0] * stuck
    for i in range(40):
        at = i * 60.0
        wish = look(
            wish, Look(at=at, ready=ready, loading_since=tuple(since), need=Known(need, at)), settings
        )
        assert wish.replicas <= ready + 2 * stuck
        since += [at] * (wish.replicas - ready - len(since))
    assert wish.replicas == ready + 2 * stuck


looks = st.builds(
    ReplicaLook,
    probe=st.one_of(
        st.none(), st.sampled_from([one for one in ProbeResult if one is not ProbeResult.NO_VERDICT])
    ),
    answered=st.booleans(),
    flowing=st.booleans(),
    serves=st.booleans(),
    faults=st.frozensets(st.sampled_from(Fault), max_size=2),
    badness=st.floats(0, 1),
)


@given(st.integers(1, 6), st.floats(0, 1), st.data())
def test_readiness_never_empties_a_pool(size: int, ratio: float, data: st.DataObject) -> None:
    settings = ReadinessSettings(max_unready_ratio=ratio, hold_down="1m")
    names = [f"r{i}" for i in range(size)]
    standings = {name: Standing(0.0, started=True, ready=True) for name in names}
    for i in range(data.draw(st.integers(1, 20))):
        seen = {name: data.draw(looks) for name in names}
        answers = data.draw(st.sampled_from([True, False, None]))
        pool = judge(standings, seen, 5.0 * i, settings, backend_answers=answers)
        standings = dict(pool.standings)
        out = [name for name in names if not standings[name].ready]
        broken = [name for name in names if standings[name].fault is Fault.GPU]
        assert len(out) <= max(1, math.floor(ratio * size + 1e-9), len(broken))
        assert len(out) < size


@given(st.lists(looks, min_size=1, max_size=30))
def test_a_replica_gets_nothing_before_it_has_answered(history: list[ReplicaLook]) -> None:
    standings: dict[str, Standing] = {}
    answered = False
    for i, seen in enumerate(history):
        standings = dict(judge(standings, {"it": seen}, 5.0 * i, ReadinessSettings()).standings)
        answered |= seen.answered or seen.flowing
        assert standings["it"].ready == answered
