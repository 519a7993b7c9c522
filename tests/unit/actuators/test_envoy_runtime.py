"""The Envoy actuator with an admin interface in memory, in virtual time (a real one: tests/integration)."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from actuator_fakes import SNAPSHOT, FakeEnvoy, chat, decision, virtually
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import VirtualLoop

from controlplane.actuators.call import Call, CallFailedError, Reply
from controlplane.actuators.envoy_admin import EnvoyAdmin
from controlplane.actuators.envoy_runtime import EnvoyError, EnvoyRuntime, pool_limit
from controlplane.actuators.limit import RefusedError, UnfinishedError
from controlplane.actuators.pace import LOOK_AGAIN_SECONDS
from controlplane.actuators.runtime_file import RuntimeFileError
from controlplane.actuators.settings import EnvoySettings
from controlplane.signals.snapshot import FleetSnapshot, ReplicaState

UP, AWAY = ReplicaState.UP, ReplicaState.UNREACHABLE
POOL = [{"name": "vllm", "pool": "chat"}]
REPLICA = [{"name": "vllm", "replica": "a:1"}]


class Rig:
    """One actuator with one Envoy, in a folder of its own."""

    def __init__(self, path: Path, loop: VirtualLoop, clusters: Any = None, **changes: Any) -> None:
        self.file, self.loop = path / "limits.json", loop
        self.envoy = FakeEnvoy(self.file, loop)
        self.seen: FleetSnapshot | None = SNAPSHOT
        self.settings = EnvoySettings.model_validate(
            {
                "runtime_file": self.file,
                "admin": ["http://envoy:9901"],
                "clusters": clusters or REPLICA,
                **changes,
            }
        )
        self.start()

    def start(self) -> None:
        """As a new process would."""
        self.actuator = EnvoyRuntime(
            self.settings, self.envoy.send, lambda: self.seen, steady=self.loop.time, luck=lambda: 0.0
        )

    def written(self, cluster: str = "vllm") -> int:
        layer = json.loads(self.file.read_bytes())["resources"][0]["layer"]
        return int(layer[f"circuit_breakers.{cluster}.default.max_requests"])

    async def fails(self, error: type[Exception], *arguments: Any, **more: Any) -> str:
        with pytest.raises(error) as failed:
            await self.actuator.apply(decision(*arguments, **more))
        return str(failed.value)

    async def pass_(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def test_a_limit_is_written_and_returned_from_once_envoy_goes_by_it(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop)
        await rig.actuator.apply(decision(58))
        assert rig.written() == 58
        assert rig.envoy.max_requests("vllm", loop.time()) == 58
        assert 0.03 <= loop.time() < 0.1
        await rig.actuator.apply(decision(58))  # again, as after a crash
        assert rig.written() == 58

    virtually(test)


def test_a_limit_moves_by_its_rate_and_says_where_it_is(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop, max_change=0.5)
        await rig.actuator.apply(decision(60))
        await rig.pass_(100)
        assert await rig.fails(UnfinishedError, 500) == (
            "cluster vllm is at 90 on its way to 500: a limit moves 50% a second at most"
        )
        for expected in (135, 202, 303, 454):
            await rig.pass_(1)
            await rig.fails(UnfinishedError, 500)
            assert rig.written() == expected
        await rig.pass_(1)
        await rig.actuator.apply(decision(500))
        assert rig.written() == 500

    virtually(test)


def test_a_limit_that_stands_still_is_read_back_again_and_written_where_it_was_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop, verify_within="200ms")
        await rig.actuator.apply(decision(178))

        async def later() -> None:
            assert not rig.actuator.is_undone(decision(178))
            await rig.pass_(LOOK_AGAIN_SECONDS)
            assert rig.actuator.is_undone(decision(178))

        await later()
        rig.file.unlink()
        await rig.actuator.apply(decision(178))
        assert rig.envoy.max_requests("vllm", loop.time()) == 178
        assert caplog.messages == [f"{rig.file} had nothing for cluster vllm, not the 178 of before"]
        await later()
        rig.envoy.overrides["vllm"] = 3
        for _ in range(2):
            assert "holds cluster vllm to 3" in await rig.fails(EnvoyError, 178)
            assert rig.actuator.is_undone(decision(178))
        rig.envoy.overrides.clear()
        await rig.actuator.apply(decision(178))
        await later()
        rig.file.write_bytes(b"theirs")
        assert "move it away" in await rig.fails(RuntimeFileError, 178)
        assert rig.actuator.is_undone(decision(178))

    virtually(test)


def test_the_replicas_of_a_pool_have_its_cluster_looked_at_once(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop, POOL)
        rig.seen = chat(a=(UP, 40), b=(UP, 40))
        given = decision(40, "a:1"), decision(40, "b:1")

        async def looks() -> int:
            before = len(rig.envoy.calls)
            for one in given:
                await rig.actuator.apply(one)
            assert not any(rig.actuator.is_undone(one) for one in given)
            return len(rig.envoy.calls) - before

        assert await looks() >= 1
        await rig.pass_(LOOK_AGAIN_SECONDS)
        assert all(rig.actuator.is_undone(one) for one in given)
        assert await looks() == 1
        assert not rig.actuator.is_undone(decision(40, "z:1")), "a replica that has left"

    virtually(test)


def test_a_new_process_moves_on_from_what_stands_in_the_file(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop)
        await rig.actuator.apply(decision(60))
        rig.start()
        await rig.fails(UnfinishedError, 10)
        assert rig.written() == 40

    virtually(test)


@pytest.mark.parametrize("new", ["abc", "-5", "0", "58.5", ""])
def test_a_wrong_value_touches_nothing(tmp_path: Path, new: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop)
        await rig.fails(RefusedError, new)
        assert not rig.file.exists()
        assert rig.envoy.calls == []

    virtually(test)


def test_an_older_decision_is_refused_after_a_newer_one(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop)
        await rig.actuator.apply(decision(58, tick=7))
        assert await rig.fails(RefusedError, 50, tick=6) == "superseded by decision 7-1 on a:1"
        assert rig.written() == 58

    virtually(test)


def test_a_replica_that_no_cluster_is_for(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop)
        assert not rig.actuator.takes("c:1", "batch")
        assert await rig.fails(RefusedError, 58, "c:1") == (
            "envoy.clusters has none for replica c:1 nor for pool batch"
        )
        assert await rig.fails(RefusedError, 58, "z:1") == "envoy.clusters has none for replica z:1"

    virtually(test)


def test_it_takes_what_its_clusters_are_for(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        one, pool = Rig(tmp_path, loop).actuator, Rig(tmp_path, loop, POOL).actuator
        assert [one.takes("a:1", "chat"), one.takes("a:1", None), one.takes("b:1", "chat")] == [
            True,
            True,
            False,
        ]
        assert [pool.takes("a:1", "chat"), pool.takes("a:1", None), pool.takes("a:1", "x")] == [
            True,
            False,
            False,
        ]

    virtually(test)


def test_the_limit_of_a_pool_is_that_of_all_its_replicas(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop, POOL)
        rig.seen = chat(a=(UP, 20), b=(UP, 40))
        await rig.actuator.apply(decision(20, "a:1"))
        assert rig.written() == 60
        rig.seen = chat(a=(UP, 20), b=(UP, 30))
        await rig.pass_(1)
        await rig.actuator.apply(decision(31, "b:1"))
        assert rig.written() == 50, "the snapshot is newer than a decision that had to wait"

    virtually(test)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"a": (UP, 10), "b": (UP, 40)}, 50),
        ({"a": (UP, 10), "b": (AWAY, 40)}, 10),
        ({"a": (AWAY, 10), "b": (AWAY, 40)}, 50),  # none is seen: it may be us
        ({"a": (UP, None), "b": (UP, None)}, 14),  # only the decision, which is 7 for a
        ({"a": (UP, None), "b": (UP, 40)}, 47),
        ({"a": (AWAY, None), "b": (UP, 40)}, 40),
        ({"a": (AWAY, 10), "b": (UP, None)}, 7),
        ({"a": (UP, 10), "b": (UP, None), "c": (UP, 20)}, 45),
    ],
)
def test_the_sum_over_a_pool(members: dict[str, tuple[ReplicaState, int | None]], expected: int) -> None:
    assert pool_limit(list(chat(**members).replicas.values()), "a:1", 7) == expected


def test_two_envoys_behind_one_file_share_the_limit(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop, admin=["http://one:9901", "http://two:9901"])
        await rig.actuator.apply(decision(59))
        assert rig.written() == 29
        assert {url.partition("/clusters")[0] for _, url in rig.envoy.calls} == set(rig.settings.admin)

    virtually(test)


def test_an_admin_that_is_away_holds_up_no_write_and_is_left_alone_for_a_while(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop, max_change=1.0)
        rig.envoy.away = "connection refused"
        assert await rig.fails(EnvoyError, 58) == (
            "58 is written for cluster vllm, not read back: http://envoy:9901/clusters: connection refused"
        )
        for tick in range(2, 30):
            await rig.pass_(1)
            await rig.fails(EnvoyError, 58 - tick, tick=tick)
            assert rig.written() == 58 - tick
        assert [round(at) for at, _ in rig.envoy.calls] == [0, 1, 3, 7, 15]
        rig.envoy.away = ""
        await rig.pass_(10)
        await rig.actuator.apply(decision(58, tick=30))

    virtually(test)


def test_a_person_who_overrides_in_the_admin_layer_is_named_and_wins(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop)
        rig.envoy.overrides["vllm"] = 3
        assert await rig.fails(EnvoyError, 58) == (
            "Envoy at http://envoy:9901 holds cluster vllm to 3, not to the 58 that is written: "
            "so says its runtime layer 'admin_layer'"
        )
        assert 1.5 < loop.time() < 2.1, "so long the value could have come"
        before = loop.time()
        await rig.fails(EnvoyError, 57)
        assert loop.time() - before < 0.2, "others wait behind this one"
        rig.envoy.overrides.clear()
        await rig.actuator.apply(decision(56, tick=2))

    virtually(test)


def test_an_envoy_that_watches_another_file(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop)
        rig.envoy.file = tmp_path / "other.json"
        assert await rig.fails(EnvoyError, 58) == (
            "Envoy at http://envoy:9901 holds cluster vllm to 100, not to the 58 that is written: "
            f"does it watch {rig.file}?"
        )

    virtually(test)


def test_a_cluster_that_envoy_does_not_have(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path, loop, [{"name": "v.l+m", "replica": "a:1"}])
        assert await rig.fails(EnvoyError, 58) == "Envoy at http://envoy:9901 has no cluster 'v.l+m'"
        rig.envoy.thresholds["v.l+m"] = 100
        await rig.actuator.apply(decision(58))

    virtually(test)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply(404, {}, b""), "http://e: HTTP status 404: is this Envoy's admin interface?"),
        (Reply(200, {}, b"<html>"), "http://e: this is not how Envoy's admin interface answers"),
        (
            Reply(200, {}, b'{"cluster_statuses": 3}'),
            "http://e: this is not how Envoy's admin interface answers",
        ),
        (Reply(200, {}, b"[" * 100_000), "http://e: this is not how Envoy's admin interface answers"),
    ],
)
async def test_something_that_is_no_admin_interface(reply: Reply, sentence: str) -> None:
    async def send(_: Call) -> Reply:
        return reply

    with pytest.raises(CallFailedError) as failed:
        await EnvoyAdmin("http://e", send, 1.0).max_requests("vllm")
    assert str(failed.value) == sentence


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.floats(0.0, 5.0), st.booleans(), st.sampled_from([None, 3])),
        min_size=1,
        max_size=25,
    )
)
def test_whatever_comes_the_file_moves_by_its_rate_and_ends_where_it_should(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, float, bool, int | None]]
) -> None:
    """Decisions at any pace while the admin goes and comes and people override."""

    async def test(loop: VirtualLoop) -> None:
        rig = Rig(tmp_path_factory.mktemp("envoy"), loop, max_change=0.5)
        moves: list[tuple[float, int]] = []

        async def apply(new: int, tick: int) -> bool:
            began = loop.time()
            try:
                await rig.actuator.apply(decision(new, tick=tick))
                settled = True
            except (UnfinishedError, EnvoyError):
                settled = False
            if not moves or rig.written() != moves[-1][1]:
                moves.append((began, rig.written()))
            return settled

        for tick, (new, wait, away, override) in enumerate(story, 1):
            rig.envoy.away = "connection refused" if away else ""
            rig.envoy.overrides = {} if override is None else {"vllm": override}
            await apply(new, tick)
            await rig.pass_(wait)
        rig.envoy.away, rig.envoy.overrides = "", {}
        await rig.pass_(60)
        last = story[-1][0]
        for _ in range(100):
            if await apply(last, len(story)):
                break
            await rig.pass_(1)
        assert rig.written() == last
        assert rig.envoy.max_requests("vllm", loop.time()) == last
        for (begun, before), (at, after) in pairwise(moves):
            factor = 1.5 ** min(1.0, at - begun)
            assert before / factor - 1.001 <= after <= before * factor + 1.001

    virtually(test)
