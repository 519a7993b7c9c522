"""What stands with the lease: its size, what is read back, and who waits for it."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from kube_api import KubeApi

from controlplane.daemon.handover import Handover, Left
from controlplane.daemon.leader import KEPT_BYTES, ByLease, LeadLostError
from controlplane.daemon.orders import OrderBook
from controlplane.policy.limiting import LimitMemory
from controlplane.policy.limits.windows import Sight
from controlplane.policy.memory import Memory, ReplicaMemory
from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.signals.decision import QUARANTINE_NODE, SET_LIMIT, Decision, Hold, Orders, Override
from controlplane.signals.kept import Handed, Kept
from controlplane.signals.samples import Target
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_settings import KubernetesSettings, LeaseSettings

NOW = 1_764_000_000.0


class Lead:
    """A lease that keeps what fits, at once."""

    def __init__(self) -> None:
        self.term: int | None = 1
        self.kept = self.trouble = self.follows = ""
        self.writes = self.waited = 0

    def keep(self, text: str) -> None:
        if len(text) > KEPT_BYTES:
            raise ValueError("too long")
        self.kept, self.writes = text, self.writes + 1

    async def stands(self) -> None:
        self.waited += 1

    def seconds_left(self) -> float:
        return 5.0

    async def close(self) -> None:
        pass


def book(path: Path) -> OrderBook:
    path.mkdir(exist_ok=True)
    return OrderBook(path / "hold", path / "overrides.json")


def memory(at: float, *, taken: tuple[float, ...] = (), slots: int = 8, replicas: int = 1) -> Memory:
    def one(name: str) -> ReplicaMemory:
        return ReplicaMemory(
            Target(name, "http://x", "chat"), limit=LimitMemory(slots, None, Sight(at, 0), at)
        )

    names = [f"serving/engine-of-a-large-pool-{n:05}" for n in range(replicas)]
    return Memory(
        now=at, quarantine=QuarantineMemory(now=at, taken=taken), replicas={n: one(n) for n in names}
    )


def test_what_is_spent_is_written_at_once_and_limits_now_and_then(tmp_path: Path) -> None:
    lead = Lead()
    handover = Handover(lead, book(tmp_path))
    handover.leave(Orders(), memory(NOW))
    for second in range(1, 30):
        handover.leave(Orders(), memory(NOW + second, slots=8 + second))
    assert lead.writes == 1
    handover.leave(Orders(), memory(NOW + 29.5, taken=(NOW + 29.5,), slots=40))
    assert lead.writes == 2
    handover.leave(Orders(), memory(NOW + 31, taken=(NOW + 29.5,), slots=41))
    left = msgspec.json.decode(lead.kept, type=Left)
    assert (left.kept.taken, set(left.kept.limits.values())) == ((NOW + 29.5,), {41})


def test_what_was_spent_stays_where_not_all_has_room(tmp_path: Path) -> None:
    lead = Lead()
    handover = Handover(lead, book(tmp_path))
    handover.leave(Orders(), memory(NOW, taken=(NOW,), replicas=2000))
    left = msgspec.json.decode(lead.kept, type=Left)
    assert len(left.kept.limits) == 2000
    many = Orders(
        None, tuple(Override("node", f"n{n}", "mode", "observe", "x" * 400, "ann", NOW) for n in range(200))
    )
    handover.leave(many, memory(NOW + 1, taken=(NOW,), replicas=2000))
    left = msgspec.json.decode(lead.kept, type=Left)
    assert (left.orders, left.kept.limits, handover.trouble) == (many, {}, "")
    more = Orders(None, tuple(msgspec.structs.replace(many.overrides[0], name=f"n{n}") for n in range(300)))
    handover.leave(more, memory(NOW + 2, taken=(NOW,), replicas=2000))
    left = msgspec.json.decode(lead.kept, type=Left)
    assert (left.orders, left.kept.taken) == (None, (NOW,))
    assert "will not know the orders" in handover.trouble
    other = Handover(lead, book(tmp_path / "other"))
    other.take_over(begins=False)
    assert other.trouble == ""


@pytest.mark.parametrize("text", ["nonsense", '{"version": 2}', "{}", '{"version":1,"kept":{"taken":["x"]}}'])
def test_a_text_that_cannot_be_read_is_told_and_forgotten(tmp_path: Path, text: str) -> None:
    lead = Lead()
    handover = Handover(lead, book(tmp_path))
    lead.kept = text
    assert handover.take_over(begins=False) is None
    assert "cannot be read" in handover.trouble
    assert handover.take_over(begins=True) == Handed(leads=True)


def test_orders_that_cannot_be_kept_here_hold_up_nothing_else(tmp_path: Path) -> None:
    lead = Lead()
    wrong = Orders(Hold(NOW, "ann", "x"), (Override("moon", "n", "mode", "observe", "x", "ann", NOW),))
    lead.kept = msgspec.json.encode(Left(1, wrong, Kept(taken=(NOW,)))).decode()
    handover = Handover(lead, book(tmp_path))
    assert handover.take_over(begins=False) == Handed(Kept(taken=(NOW,)))
    assert "not taken over" in handover.trouble


async def test_only_what_counts_waits(tmp_path: Path) -> None:
    lead = Lead()
    handover = Handover(lead, book(tmp_path))
    await handover.first(Decision("1-1", NOW, SET_LIMIT, "a", "1", "2", "x", "x"))
    assert lead.waited == 0
    await handover.first(Decision("1-2", NOW, QUARANTINE_NODE, "n", "", "m", "x", "x"))
    assert lead.waited == 1


async def test_it_stands_only_once_the_api_server_has_said_so(tmp_path: Path) -> None:
    async with KubeApi() as api:
        api.have_namespace("default")
        cluster = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig")))
        now, settings = 1000.0, LeaseSettings.model_validate({"duration": "3s"})
        leader = ByLease(cluster, settings, "a", steady=lambda: now)
        leader.open()
        async with asyncio.timeout(60):
            while leader.term is None:
                await leader._stepped.wait()
            lost = api.fail("patch", "leases", lose="request", times=1)
            leader.keep("one")
            await leader.stands()
        assert lost.met == 1
        assert (
            api.get("leases", "controlplane", "default")["metadata"]["annotations"]["controlplane.llm/kept"]
            == "one"
        )
        await api.stop()
        leader.keep("two")
        waits = asyncio.create_task(leader.stands())
        async with asyncio.timeout(60):
            await leader._stepped.wait()
            assert not waits.done()
            now += 3.0
            with pytest.raises(LeadLostError):
                await waits
        await leader.close()
        await cluster.close()
