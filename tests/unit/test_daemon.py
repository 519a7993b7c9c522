"""The daemon's loop: what one tick does, and that nothing ends it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemon_fakes import NOON, POLICY, FakeInputs, Recorder, finished, note, page, settings, small_tick
from fleet_fakes import replica
from virtual_time import VirtualLoop, run_virtually, use_wall_of

from controlplane.daemon.clock import Clock
from controlplane.daemon.daemon import Daemon, Running
from controlplane.daemon.inputs import InputCounts
from controlplane.daemon.journal import Journal, TickFunction
from controlplane.daemon.journal_file import connect_to_read
from controlplane.daemon.orders import OrderBook
from controlplane.daemon.replay import replay
from controlplane.policy.settings import PolicySettings, PoolPolicy, Slo
from controlplane.signals.decision import Decision, Hold, Mode, Override
from controlplane.signals.reading import Reason
from controlplane.signals.samples import OutcomeWindow, Samples, ScrapeFailure, Target
from controlplane.signals.snapshot import FleetSnapshot

TARGETS = (Target("a:8000", "chat", "http://a:8000/metrics"),)
NOTHING = Samples()
ENFORCE = {"gateway": {"*": Mode.ENFORCE}}


class Bench:
    """A daemon in virtual time with everything around it in the test's hand."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path / "journal.db"
        self.loop = VirtualLoop(NOON)
        use_wall_of(self.loop, monkeypatch)
        # Virtual time passes faster than any disk writes.
        monkeypatch.setattr("controlplane.daemon.journal._MOST_QUEUED", 10_000)
        self.inputs = FakeInputs()
        self.recorder = Recorder()
        self.told: list[tuple[FleetSnapshot, tuple[Decision, ...]]] = []

    def run(
        self,
        test: Callable[[Daemon], Awaitable[None]],
        *,
        tick: TickFunction = small_tick,
        start: bool = False,
        **changes: Any,
    ) -> None:
        """Run `test` on a daemon, with its schedule running where `start` is set."""
        given = settings(self.path, **changes)

        async def whole() -> None:
            journal = Journal(given, small_tick)
            book = OrderBook(given.hold_path, given.overrides_path)
            clock = Clock(journal.last_at, self.loop.wall, self.loop.time)
            running = Running(POLICY, given, self.inputs)
            daemon = Daemon(running, journal, book, clock=clock, tick=tick, actuators=[self.recorder])
            daemon.subscribe(lambda snapshot, decisions: self.told.append((snapshot, decisions)))
            if start:
                await daemon.start()
            await test(daemon)
            await daemon.stop()

        run_virtually(self.loop, whole())
        assert replay(self.path, small_tick).different == 0

    async def tick(self, daemon: Daemon, samples: Samples = NOTHING) -> None:
        self.inputs.next = samples
        await asyncio.sleep(1.0)
        await daemon.tick()

    async def written(self, daemon: Daemon) -> None:
        """Wait until the journal's thread has taken everything."""
        await asyncio.to_thread(daemon._journal._queue.join)

    async def recorded(self, daemon: Daemon) -> list[str]:
        """The kinds of the events in the journal, oldest first."""
        await self.written(daemon)
        events = await daemon.events(since=None, target=None, kind=None, limit=1000)
        return [event.kind for event in events][::-1]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


# -- a tick ------------------------------------------------------------------------------------------


def test_a_tick_goes_from_samples_to_journal_and_listeners(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        assert daemon.snapshot() is None
        bench.inputs.events = (note("discovered"),)
        await bench.tick(daemon, Samples(targets=TARGETS, scrapes=(page(3.0),)))
        await bench.tick(daemon, Samples(scrapes=(page(4.0),)))
        assert finished(daemon.memory) == 7.0

    bench.run(test)
    assert [snapshot.tick for snapshot, _ in bench.told] == [1, 2]
    assert [event.kind for event in bench.told[0][0].events] == ["discovered", "joined"]
    assert [decision.outcome for _, decisions in bench.told for decision in decisions] == ["observed"] * 2


def test_the_state_goes_on_after_a_restart(bench: Bench) -> None:
    async def first(daemon: Daemon) -> None:
        await bench.tick(daemon, Samples(targets=TARGETS, scrapes=(page(3.0),)))

    async def second(daemon: Daemon) -> None:
        await bench.tick(daemon, Samples(scrapes=(page(4.0),)))
        assert (finished(daemon.memory), daemon.memory.tick) == (7.0, 2)
        assert await bench.recorded(daemon) == ["joined"]
        (newest, *_) = await daemon.decisions(since=None, target="a:8000", action="limit", limit=1)
        assert newest.new == "7.0"

    bench.run(first)
    bench.loop = VirtualLoop(NOON + 60)
    bench.run(second)


def test_the_schedule_polls_discovers_and_ticks(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        await asyncio.sleep(30.5)
        assert daemon.memory.tick == 31
        status = daemon.status()
        assert (status.ticks, status.misfires, status.tick_interval_seconds) == (31, 0, 1.0)
        assert status.tick_seconds.count == 31
        assert bench.inputs.polls > 600

    bench.run(test, start=True)
    assert bench.inputs.discoveries == 8
    assert bench.inputs.closed


# -- what goes wrong ---------------------------------------------------------------------------------


def test_a_page_that_no_tick_can_stand_is_left_out_told_once_and_costs_nothing_else(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(daemon: Daemon) -> None:
        pages = [page(1.0, target=f"{i}:8000") for i in range(100)]
        pages[37] = page(1.0, target="37:8000", engine="poison")
        for round_ in range(20):  # an interval of five ticks
            await bench.tick(daemon, Samples(scrapes=tuple(pages) if round_ % 5 == 0 else ()))
        assert daemon.memory.tick == 20
        assert finished(daemon.memory) == 4 * 99
        (trouble,) = daemon.status().troubles
        assert trouble == "tick 16 failed: ValueError; the pages of 37:8000 are left out"
        for _ in range(62):
            await bench.tick(daemon)
        assert daemon.status().troubles == ()
        assert await bench.recorded(daemon) == ["tick-failing", "tick-working"]

    with caplog.at_level(logging.INFO):
        bench.run(test)
    assert [r.message for r in caplog.records if r.exc_info] == ["tick failed"]
    assert len([r for r in caplog.records if "left out" in r.message]) == 1


def test_a_tick_that_fails_on_anything_ends_nothing_and_targets_are_not_lost(bench: Bench) -> None:
    broken = True

    def tick(samples, memory, policy, now):
        if broken:
            raise ZeroDivisionError
        return small_tick(samples, memory, policy, now)

    async def test(daemon: Daemon) -> None:
        nonlocal broken
        await bench.tick(daemon, Samples(targets=TARGETS, scrapes=(page(1.0),)))
        await bench.tick(daemon)
        assert daemon.snapshot() is None
        assert daemon.status().troubles == ("tick 1 failed: ZeroDivisionError; its samples are left out",)
        broken = False
        await bench.tick(daemon)
        assert daemon.memory.tick == 1
        assert await bench.recorded(daemon) == ["tick-failing", "joined"]

    bench.run(test, tick=tick)


def test_a_discovery_that_raises_is_told_once_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(daemon: Daemon) -> None:
        await asyncio.sleep(60.5)
        assert daemon.memory.tick == 61
        assert daemon.status().troubles == ("the job discover fails: OSError: away",)
        bench.inputs.failure = None
        await asyncio.sleep(10)
        assert daemon.status().troubles == ()

    bench.inputs.failure = OSError("away")
    bench.run(test, start=True)
    assert len([r for r in caplog.records if "the job discover fails" in r.message]) == 1


def test_a_listener_that_raises_costs_the_others_nothing(bench: Bench) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no")

    async def test(daemon: Daemon) -> None:
        end = daemon.subscribe(broken)
        daemon.subscribe(lambda *_: after.append(1))
        await bench.tick(daemon)
        assert daemon.status().troubles == ("the job listeners fails: RuntimeError: no",)
        end()
        end()
        await bench.tick(daemon)
        assert daemon.status().troubles == ()

    after: list[int] = []
    bench.run(test)
    assert len(after) == 2


def test_a_journal_that_cannot_be_written_is_told_once_each_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(daemon: Daemon) -> None:
        await bench.tick(daemon)
        daemon._journal.error = "the journal j cannot be written: database or disk is full"
        with monkeypatch.context() as patched:
            patched.setattr(daemon._journal, "append", lambda entry: None)
            for _ in range(20):
                await bench.tick(daemon)
            assert daemon.memory.tick == 21
            assert daemon.status().troubles == (
                "the journal j cannot be written: database or disk is full; ticks go on without it",
            )
        daemon._journal.error = ""
        await bench.tick(daemon)
        await bench.written(daemon)
        assert daemon.status().troubles == ()

    with caplog.at_level(logging.INFO):
        bench.run(test)
    kinds = [r.fields["event"] for r in caplog.records if hasattr(r, "fields") and "event" in r.fields]
    assert kinds == ["journal-failing", "journal-working"]


def test_a_clock_that_steps_back_and_forth_is_told_and_nothing_goes_back(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        for jump in (0.0, -240.0, 0.0, 86400.0, 0.0):
            bench.loop.jump(jump)
            await asyncio.sleep(30)
        assert daemon.memory.tick >= 145
        assert await bench.recorded(daemon) == ["clock-back", "clock-in-step"]

    bench.run(test, start=True)
    times = [snapshot.at for snapshot, _ in bench.told]
    assert times == sorted(set(times))


def test_a_year_ahead_and_back_after_a_restart_costs_neither_time_nor_journal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    year = 365 * 86400.0

    async def ahead(daemon: Daemon) -> None:
        bench.inputs.next = Samples(targets=TARGETS, scrapes=(page(3.0),))
        await asyncio.sleep(100)
        bench.loop.jump(year)
        await asyncio.sleep(100)
        assert daemon.memory.now > NOON + year

    async def back(daemon: Daemon) -> None:
        late = page(4.0, at=NOON + year)
        bench.inputs.next = Samples(scrapes=(late,))
        await asyncio.sleep(100)
        assert NOON < daemon.memory.now < NOON + 1000
        assert daemon.status().started_at < NOON + 1000
        assert finished(daemon.memory) == 3.0  # its page was of a time that is yet to come
        kinds = await bench.recorded(daemon)
        assert kinds[:2] == ["joined", "clock-leap"]
        assert kinds[-1] == "clock-set-back"
        with closing(connect_to_read(bench.path)) as connection:
            (ticks,) = connection.execute(
                "SELECT count(*) FROM ticks WHERE at < ?", (NOON + 1000,)
            ).fetchone()
        assert ticks >= 195, "those from before the jump are still there"

    bench.run(ahead, start=True)
    bench.loop = VirtualLoop(NOON + 300)
    use_wall_of(bench.loop, monkeypatch)
    bench.run(back, start=True)


# -- what it says of itself ----------------------------------------------------------------------------


def test_failed_scrapes_are_counted_by_replica_while_it_is_there(bench: Bench) -> None:
    failure = ScrapeFailure("a:8000", NOON, Reason.SCRAPE_FAILED, "connection refused")

    def with_replicas(samples: Samples, *rest: Any) -> Any:
        snapshot, *others = small_tick(samples, *rest)
        there = {} if samples.targets == () else {"a:8000": replica("a:8000")}
        return msgspec.structs.replace(snapshot, replicas=there), *others

    async def test(daemon: Daemon) -> None:
        await bench.tick(daemon, Samples(targets=TARGETS, scrapes=(failure, page(1.0), failure)))
        await bench.tick(daemon, Samples(scrapes=(failure,)))
        assert daemon.status().scrape_failures == {"a:8000": 3}
        await bench.tick(daemon, Samples(targets=()))
        assert daemon.status().scrape_failures == {}

    bench.run(test, tick=with_replicas)


def test_counts_are_since_the_start_also_after_a_reload(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        bench.inputs.counts = InputCounts({"ok": 5, "timeout": 1}, 2, 3)
        new = FakeInputs()
        new.counts = InputCounts({"ok": 1}, 1, 0)
        await daemon.reconfigure(Running(POLICY, daemon.running.daemon, new))
        status = daemon.status()
        assert status.scrapes == {"ok": 6, "timeout": 1}
        assert (status.missed_scrapes, status.dropped_samples) == (3, 3)

    bench.run(test)


# -- orders --------------------------------------------------------------------------------------------


def test_an_order_that_is_taken_back_within_a_tick_leaves_a_trace(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        await daemon.override(Override("pool", "chat", "mode", "observe", "ann", "looking", NOON))
        assert await daemon.clear_override("pool", "chat", "mode", "bob")
        await daemon.hold(Hold(NOON, "ann", "racks"))
        await daemon.release("bob")
        await bench.tick(daemon)
        assert await bench.recorded(daemon) == ["override", "override-over", "hold", "hold-over"]
        events = await daemon.events(since=None, target=None, kind="override-over", limit=1)
        assert events[0].sentence.endswith("taken back by bob")

    bench.run(test)


def test_a_hold_freezes_actuators_within_a_tick_and_over_a_restart(bench: Bench) -> None:
    async def first(daemon: Daemon) -> None:
        await bench.tick(daemon, Samples(scrapes=(page(1.0),)))
        await asyncio.sleep(0)
        assert [done.id for done in bench.recorder.done] == ["1-1"]
        await daemon.hold(Hold(NOON, "ann", "racks"))
        assert daemon.orders().hold is not None
        await bench.tick(daemon, Samples(scrapes=(page(1.0),)))
        await asyncio.sleep(1)
        assert len(bench.recorder.done) == 1

    async def second(daemon: Daemon) -> None:
        await bench.tick(daemon, Samples(scrapes=(page(1.0),)))
        await asyncio.sleep(1)
        assert len(bench.recorder.done) == 1
        await daemon.release("bob")
        await bench.tick(daemon, Samples(scrapes=(page(1.0),)))
        await asyncio.sleep(1)
        assert [done.id for done in bench.recorder.done] == ["1-1", "4-1"]
        await bench.written(daemon)
        decisions = await daemon.decisions(since=None, target=None, action=None, limit=10)
        assert [d.outcome for d in decisions] == ["done", "held", "held", "done"]
        assert await bench.recorded(daemon) == ["hold", "hold-over"]
        (over, _) = await daemon.events(since=None, target=None, kind=None, limit=2)
        assert over.sentence == "the hold is over: taken back by bob"

    bench.run(first, modes=ENFORCE)
    bench.loop = VirtualLoop(NOON + 60)
    bench.run(second, modes=ENFORCE)


def test_a_hold_file_made_by_hand_counts_at_the_next_tick(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        await bench.tick(daemon)
        assert daemon.memory.orders.hold is None
        bench.path.with_name("hold").write_text("by hand")
        await bench.tick(daemon)
        assert daemon.memory.orders.hold is not None
        assert daemon.memory.orders.hold.reason == "by hand"
        bench.path.with_name("hold").unlink()
        await bench.tick(daemon)
        assert daemon.memory.orders.hold is None

    bench.run(test)


def test_an_override_wins_over_the_settings_until_it_ends(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        until = daemon.now() + 2.5
        await daemon.override(
            Override("replica", "a:8000", "mode", Mode.OBSERVE, "ann", "sick", daemon.now(), until)
        )
        for _ in range(4):
            await bench.tick(daemon, Samples(scrapes=(page(1.0),)))
        await asyncio.sleep(1)
        assert [done.id for done in bench.recorder.done] == ["3-1", "4-1"]
        assert await bench.recorded(daemon) == ["override", "override-over"]
        with pytest.raises(ValueError, match="mode is one of observe, enforce"):
            await daemon.override(Override("pool", "chat", "mode", "off", "ann", "x", NOON))
        assert not await daemon.clear_override("pool", "chat", "mode", "ann")

    bench.run(test, modes=ENFORCE)


# -- another configuration -----------------------------------------------------------------------------


def test_new_settings_count_from_the_next_tick_on_and_nothing_taken_is_lost(bench: Bench) -> None:
    policy = PolicySettings(pools={"chat": PoolPolicy(slo=Slo(ttft="1s"))}, window="2m")
    window = OutcomeWindow("gw", "chat", NOON, NOON + 1, 1, 1, 1, 0, 0, {}, 10, 10, 0)

    async def test(daemon: Daemon) -> None:
        await bench.tick(daemon, Samples(targets=TARGETS))
        bench.inputs.next = Samples(scrapes=(page(5.0),), outcomes=(window,))
        old, bench.inputs = bench.inputs, FakeInputs()
        await daemon.reconfigure(Running(policy, settings(bench.path, tick=0.5), bench.inputs))
        assert old.closed
        await bench.tick(daemon, Samples(scrapes=(page(6.0),)))
        assert finished(daemon.memory) == 11.0
        assert daemon.status().objectives["chat"].ttft_seconds == 1.0
        assert daemon.status().tick_interval_seconds == 0.5

    bench.run(test)
    evidence = [decision.evidence[1].value for _, decisions in bench.told for decision in decisions]
    assert evidence == [120.0, 120.0]


def test_a_bad_configuration_is_refused_and_said_until_a_good_one_comes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = "c.yaml: line 3: stale_after (2s) is under three polling intervals (3 x 5s)"

    async def test(daemon: Daemon) -> None:
        running = daemon.running
        daemon.refuse(sentence)
        assert daemon.running is running
        await bench.tick(daemon)
        (trouble,) = daemon.status().troubles
        assert trouble == f"the new configuration is refused, the old one stays: {sentence}"
        await daemon.reconfigure(running)
        assert daemon.status().troubles == ()
        await bench.tick(daemon)
        assert await bench.recorded(daemon) == ["reload-refused", "reload"]

    bench.run(test)
    assert len([r for r in caplog.records if sentence in r.message]) == 1


def test_counts_are_by_kind_and_reason(bench: Bench) -> None:
    async def test(daemon: Daemon) -> None:
        bench.inputs.events = (note("n"), note("n"))
        await bench.tick(daemon, Samples(targets=TARGETS, scrapes=(page(1.0), page(2.0))))
        status = daemon.status()
        assert status.events == {"n": 2, "joined": 1}
        assert status.decisions == {("limit", "more"): 2}
        assert (status.scrapes, status.started_at) == ({"ok": 1}, NOON)
        await bench.written(daemon)
        status = daemon.status()
        assert (status.journal_writes, status.journal_failures, status.journal_queue) == (1, 0, 0)

    bench.run(test)
