"""What one leader leaves and the next one takes over: no budget grows by it."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from quarantine_fleet import Fleet

from controlplane.policy import keeping
from controlplane.policy.limiting import LimitMemory
from controlplane.policy.limits.windows import Sight
from controlplane.policy.memory import Memory, PoolMemory, ReplicaMemory, ScaleMemory
from controlplane.policy.quarantine.budget import HOUR_SECONDS
from controlplane.policy.quarantine.memory import NodeMemory, Past, Quarantine, QuarantineMemory
from controlplane.policy.scaling.prudence import Wish
from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.policy.tick import tick
from controlplane.signals.decision import SCALE, SET_LIMIT
from controlplane.signals.kept import Handed, Kept, KeptWish
from controlplane.signals.node import Mark
from controlplane.signals.samples import Samples, Target

NOW = 1_764_000_000.0
SCALED = PolicySettings(pools={"chat": PoolPolicy(scale=ScaleSettings(min=1, max=9))})

times = st.floats(NOW - 2 * HOUR_SECONDS, NOW)
nodes = st.sampled_from(["n1", "n2", "n3", "n4"])


def mark(at: float) -> Mark:
    return Mark(
        fault=f"xid-79-{at}", check="xid-79", uuid="GPU-1", remedy="drain-and-reboot", reason="x", since=at
    )


@st.composite
def quarantines(draw: st.DrawFn) -> QuarantineMemory:
    """Each node was taken at a time of its own; of some that was not seen yet."""
    taken = draw(st.dictionaries(nodes, st.tuples(times, st.booleans())))
    return QuarantineMemory(
        now=NOW,
        nodes={
            name: NodeMemory(NOW, overruled=at) for name, at in draw(st.dictionaries(nodes, times)).items()
        },
        quarantines={name: Quarantine(mark(at), at, placed) for name, (at, placed) in taken.items()},
        taken=(*draw(st.lists(times, max_size=4)), *(at for at, _ in taken.values())),
        past=tuple(Past(name, "GPU-1", "xid-79", at) for name, (at, _) in taken.items()),
        restarted=draw(st.dictionaries(st.sampled_from(["a", "b"]), times)),
        tripped=draw(st.none() | times),
        trip_seen=draw(times),
    )


def spent(memory: QuarantineMemory) -> set[float]:
    return {at for at in memory.taken if NOW - at < HOUR_SECONDS}


@given(quarantines(), quarantines(), st.booleans())
def test_a_new_leader_counts_at_least_what_the_last_one_did(
    old: QuarantineMemory, own: QuarantineMemory, leads: bool
) -> None:
    kept = keeping.left(Memory(now=NOW, quarantine=old))
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Kept) == kept
    new = keeping.adopted(Memory(now=NOW, quarantine=own), Handed(kept, leads), SCALED, NOW).quarantine
    assert spent(old) <= spent(new)
    only_wanted = {one.mark.since for one in own.quarantines.values() if not one.placed}
    assert spent(own) - (only_wanted if leads else set()) <= spent(new)
    for name, at in (*old.restarted.items(), *own.restarted.items()):
        assert new.restarted[name] >= at
    for memory in (old, own):
        assert all(new.nodes[name].overruled is not None for name in memory.nodes)
        if memory.tripped is not None:
            assert new.tripped is not None
            assert new.tripped <= memory.tripped
            assert new.trip_seen >= memory.trip_seen
    again = keeping.adopted(Memory(now=NOW, quarantine=new), Handed(kept, leads), SCALED, NOW).quarantine
    assert again == new, "what is read twice counts once"


@given(quarantines())
def test_what_nobody_has_done_is_decided_anew(own: QuarantineMemory) -> None:
    new = keeping.adopted(Memory(now=NOW, quarantine=own), Handed(Kept(), leads=True), SCALED, NOW).quarantine
    assert all(one.placed for one in new.quarantines.values())
    wanted = {(name, one.mark.since) for name, one in own.quarantines.items() if not one.placed}
    assert not wanted & {(one.node, one.at) for one in new.past}


def test_the_text_is_small_however_much_there_is() -> None:
    quarantine = QuarantineMemory(
        nodes={f"node-{n}": NodeMemory(NOW, overruled=NOW - n) for n in range(5000)},
        taken=tuple(NOW - n / 10 for n in range(5000)),
        past=tuple(Past(f"node-{n}", "GPU-" + "0" * 36, "row-remap-failure", NOW) for n in range(5000)),
        restarted={f"serving/engine-{n}": NOW - n for n in range(5000)},
    )
    kept = keeping.left(Memory(now=NOW, quarantine=quarantine))
    assert len(msgspec.json.encode(kept)) < 64 * 1024
    assert ("node-0" in kept.overruled, "serving/engine-0" in kept.restarted) == (True, True), (
        "the newest stay"
    )


def test_a_mark_of_another_leader_takes_the_place_of_what_was_wanted() -> None:
    fleet = Fleet(8, cluster=True, max_per_hour=8)
    name = fleet.names[0]
    fleet.tick(times=2)
    fleet.obey = lambda decisions: None  # a follower: nothing of it is done
    fleet.show(name, row_remap_failure=1.0)
    fleet.tick(times=10)
    ours = fleet.memory.quarantines[name]
    assert not ours.placed
    theirs = msgspec.structs.replace(ours.mark, since=ours.mark.since - 0.2)
    fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], mark=theirs, tainted=True)
    fleet.tick()
    found = fleet.memory.quarantines[name]
    assert (found.mark, found.placed) == (theirs, True)
    assert fleet.memory.taken == (theirs.since,), "one node, counted once"
    assert [one.at for one in fleet.memory.past] == [theirs.since]


def test_limits_and_counts_go_on_where_they_stood() -> None:
    target = Target("a", "http://a", "chat")
    limit = LimitMemory(77, None, Sight(NOW, 0), NOW)
    wish = Wish(5, "need", "5 are needed", lowered_at=NOW - 20, raised_at=NOW - 900)
    before = Memory(
        now=NOW,
        replicas={"a": ReplicaMemory(target, limit=limit)},
        pools={"chat": PoolMemory(scale=ScaleMemory(NOW, wish=wish)), "gone": PoolMemory()},
    )
    kept = keeping.left(before)
    assert kept.wishes == {"chat": KeptWish(5, NOW - 20, NOW - 900)}
    samples = Samples(targets=(target,), handed=Handed(kept, leads=True))
    _, decisions, after = tick(samples, Memory(), SCALED, NOW + 15)
    new = {one.action: one.new for one in decisions}
    assert (new[SCALE], new[SET_LIMIT]) == ("5", "77")
    scale = after.pools["chat"].scale
    assert scale is not None
    assert scale.wish is not None
    assert (scale.wish.lowered_at, scale.wish.raised_at) == (NOW - 20, NOW - 900)
    _, decisions, after = tick(Samples(), after, SCALED, NOW + 45)
    assert [one for one in decisions if one.action == SCALE and one.new == "6"] == [], "no turn"
    late = Samples(targets=(target, Target("b", "http://b", "chat")))
    _, decisions, _ = tick(late, msgspec.structs.replace(after, limits_left={"b": 9}), SCALED, NOW + 900)
    assert [one.new for one in decisions if (one.action, one.target) == (SET_LIMIT, "b")] != ["9"]


def test_a_pool_that_is_not_scaled_here_gets_no_count() -> None:
    kept = Kept(wishes={"chat": KeptWish(5, 0.0, 0.0), "other": KeptWish(5, 0.0, 0.0)})
    after = keeping.adopted(Memory(), Handed(kept, leads=True), PolicySettings(), NOW)
    assert after.pools == {}
