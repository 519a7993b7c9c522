"""The node agent against a fake driver: the real `nvidia-ml-py`, real child processes, a real endpoint."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from nvml_fixture import Script, gpu, impatient, library, script, until
from prometheus_client.parser import text_string_to_metric_families

from controlplane.agent import metrics
from controlplane.agent.messages import Beat, Heard, Trouble, line, read
from controlplane.agent.server import Answer as ReportAnswer
from controlplane.agent.server import application, start
from controlplane.agent.watch import Watch
from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.policy.quarantine.observation import Observation, ReplicaEvidence
from controlplane.policy.quarantine.observe import observe
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.signals.agent_registry import BY_NAME
from controlplane.signals.gpu import Answer, NodeBlind, NodeReport
from controlplane.signals.reading import Reason

__all__ = ["script"]
TOKEN = "open-sesame-0123456789"
NODE = "gpu-node-1"


NO_LOOK_SECONDS = 300.0
"""From one look to the next, where what is told must not be by a look."""
PATIENCE_SECONDS = 2 * NO_LOOK_SECONDS
"""For a child, however slow the machine. Whoever waits for a hang gives it less once it has looked: its
start is no hang."""


@asynccontextmanager
async def watching(interval: float = 0.2) -> AsyncIterator[Watch]:
    watch = Watch(NODE, interval, PATIENCE_SECONDS, boot_id="boot-1")
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def report(watch: Watch) -> NodeReport:
    sample = watch.sample()
    assert isinstance(sample, NodeReport), sample
    return sample


def sees(watch: Watch, holds: Callable[[NodeReport], bool] = lambda _: True) -> Callable[[], bool]:
    def found() -> bool:
        sample = watch.sample()
        return isinstance(sample, NodeReport) and holds(sample)

    return found


def is_blind(watch: Watch, why: str = "") -> Callable[[], bool]:
    def found() -> bool:
        sample = watch.sample()
        return isinstance(sample, NodeBlind) and why in sample.detail

    return found


async def test_all_signals_of_a_healthy_gpu(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        seen = report(watch)
    assert (seen.node, seen.source, seen.driver, seen.boot_id) == (NODE, "nvml", "580.105.08", "boot-1")
    one = seen.gpus["GPU-a"]
    assert (one.index, one.model, one.pci_bus_id) == (0, "NVIDIA H100 80GB HBM3", "00000000:1B:00.0")
    expected = {
        "temperature_celsius": 41.0,
        "temperature_margin_celsius": 40.0,
        "memory_temperature_celsius": 55.0,
        "power_watts": 350.5,
        "power_limit_watts": 700.0,
        "throttle_reasons": 4.0,
        "throttled_thermal_seconds_total": 2.5,
        "ecc_correctable_total": 3.0,
        "row_remap_failure": 0.0,
        "pcie_replays_total": 7.0,
        "recovery_action": 0.0,
        "memory_used_bytes": 1000.0,
    }
    assert expected.items() <= one.numbers.items()
    assert one.answer is Answer.VALUES
    assert one.blind["nvlinks_up"] == "the library does not have the call"
    assert one.blind["ecc_lifetime_correctable_total"] == "not supported"
    assert seen.topology == {"GPU-a": {"GPU-b": "pcie-switches"}, "GPU-b": {"GPU-a": "pcie-switches"}}


async def test_an_xid_is_known_before_the_next_look(script: Script) -> None:
    async with watching(NO_LOOK_SECONDS) as watch:
        await until(sees(watch))
        version = watch.version
        script.write(gpu("GPU-a") + gpu("GPU-b", "xid 79"))
        await watch.changed(version, 60.0)
        assert watch.counts.looks == 1
        (event,) = report(watch).events
    assert (event.kind, event.code, event.uuid, event.instance) == ("xid", 79, "GPU-b", "")


async def test_the_same_xid_twice_is_two_events(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        script.write(gpu("GPU-a", "xid 31", "late 0.1 xid 31") + gpu("GPU-b"))
        await until(sees(watch, lambda seen: len(seen.events) == 2))
        assert [event.number for event in report(watch).events] == [1, 2]


async def test_a_recovery_action_that_changes_is_an_event_and_a_signal(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        script.write(gpu("GPU-a", "event 32768 2", "field 230 2") + gpu("GPU-b"))
        await until(sees(watch, lambda seen: seen.gpus["GPU-a"].numbers["recovery_action"] == 2.0))
        assert [(e.kind, e.code) for e in report(watch).events] == [("recovery-action", 2)]


async def test_a_lost_gpu_costs_the_others_nothing_and_keeps_its_uuid(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        script.write(gpu("GPU-a", "index 15") + gpu("GPU-b"))
        await until(sees(watch, lambda seen: seen.gpus["GPU-a"].answer is Answer.LOST))
        seen = report(watch)
        assert seen.gpus["GPU-b"].numbers["temperature_celsius"] == 41.0
        assert seen.gpus["GPU-a"].pci_bus_id == "00000000:1B:00.0"
        assert any("GPU 0 cannot be found by its index" in warning for warning in seen.warnings)


async def test_gpus_are_followed_by_uuid_when_indices_move(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        script.write(gpu("GPU-a", "missing") + gpu("GPU-b"))
        await until(sees(watch, lambda seen: set(seen.gpus) == {"GPU-b"}))
        assert report(watch).gpus["GPU-b"].index == 0


@pytest.mark.parametrize(
    ("error", "answer"), [(15, Answer.LOST), (16, Answer.RESET_REQUIRED), (999, Answer.UNKNOWN_ERROR)]
)
async def test_what_the_driver_answers_about_a_whole_gpu(script: Script, error: int, answer: Answer) -> None:
    script.write(f"gpu GPU-a\nnvmlDeviceGetUUID 0\n* !{error}\n" + gpu("GPU-b"))
    async with watching() as watch:
        await until(sees(watch, lambda seen: seen.gpus["GPU-a"].answer is answer))
        assert report(watch).gpus["GPU-b"].answer is Answer.VALUES


async def test_each_call_has_its_own_error(script: Script) -> None:
    script.write(
        gpu(
            "GPU-a",
            "nvmlDeviceGetPowerUsage !4",
            "nvmlDeviceGetTemperature !10",
            "field 230 !3",
            "field 75 !999",
            "ecc_uncorrected !27",
        )
    )
    async with watching() as watch:
        await until(sees(watch))
        one = report(watch).gpus["GPU-a"]
    assert one.answer is Answer.VALUES
    assert one.blind["power_watts"] == "no permission"
    assert one.blind["recovery_action"] == "not supported"
    assert one.unknown["temperature_celsius"] is Reason.UNAVAILABLE
    assert one.unknown["throttled_thermal_seconds_total"] is Reason.UNAVAILABLE
    assert one.unknown["ecc_uncorrectable_total"] is Reason.UNAVAILABLE
    assert one.numbers["row_remap_failure"] == 0.0


async def test_an_older_library_lacks_a_call_and_its_elder_answers(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library("OLD_LIBRARY")))
    async with watching() as watch:
        await until(sees(watch))
        assert report(watch).gpus["GPU-a"].numbers["throttle_reasons"] == 4.0


async def test_mig_instances(script: Script) -> None:
    script.write(gpu("GPU-a", "mig 1g.5gb 7 100 900", "mig 2g.10gb 5 200 800"))
    async with watching() as watch:
        await until(sees(watch))
        one = report(watch).gpus["GPU-a"]
    assert one.numbers["mig_enabled"] == 1.0
    assert {key: (mig.profile, mig.numbers["memory_used_bytes"]) for key, mig in one.instances.items()} == {
        "7": ("1g.5gb", 100.0),
        "5": ("2g.10gb", 200.0),
    }


async def test_a_hang_is_cannot_see_since_and_ends_when_the_driver_comes_back(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        await impatient(watch, 0.6)
        script.write(gpu("GPU-a", "nvmlDeviceGetPcieReplayCounter ~600") + gpu("GPU-b"))
        await until(is_blind(watch, "the driver has not answered for 0.6 s"))
        sample = watch.sample()
        assert isinstance(sample, NodeBlind)
        assert sample.since is not None
        assert sample.since == watch.last_look_at
        assert watch.counts.hangs >= 1
        watch._deadline = PATIENCE_SECONDS
        script.write(gpu("GPU-a") + gpu("GPU-b"))
        await until(sees(watch))


async def test_to_have_stood_still_ourselves_is_no_hang_of_the_driver() -> None:
    """What the child said meanwhile comes in the same turn of the loop in which the deadline ends."""
    loop, stdout = asyncio.get_running_loop(), asyncio.StreamReader()
    watch = Watch(NODE, 0.2, 0.05)

    def say() -> None:
        stdout.feed_data(line(Beat(1.0, 0.01, "590.1", {})))
        stdout.feed_eof()

    reading = asyncio.create_task(watch._read(cast(Any, SimpleNamespace(stdout=stdout))))
    await asyncio.sleep(0)
    loop.call_later(0.04, say)
    time.sleep(0.1)  # noqa: ASYNC251 - this is what it is about
    await reading
    assert (watch.counts.looks, watch.counts.hangs) == (1, 0)


async def test_xids_are_still_heard_while_the_looks_hang(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        script.write(gpu("GPU-a", "nvmlDeviceGetPcieReplayCounter ~600", "late 0.3 xid 119"))
        await until(lambda: watch.counts.events == 1)
        assert report(watch).events[0].code == 119


async def test_no_more_children_than_two_are_left_in_the_kernel(tmp_path: Path) -> None:
    """A child that cannot be killed: here one whose death is never noticed, because it is never killed."""
    watch = Watch(NODE, 0.2, 0.3, command=("sleep", "600"))
    kept: list[asyncio.subprocess.Process] = []
    original = asyncio.subprocess.Process.kill

    def _remember(child: asyncio.subprocess.Process) -> None:
        kept.append(child)

    asyncio.subprocess.Process.kill = _remember  # type: ignore[method-assign]
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: watch.stuck == 2)
        starts = watch.counts.starts
        await asyncio.sleep(1.5)
        assert watch.counts.starts == starts == 2
        original(kept[0])
        await until(lambda: watch.counts.starts == 3)
    finally:
        asyncio.subprocess.Process.kill = original  # type: ignore[method-assign]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for child in kept:
            if child.returncode is None:
                original(child)
                await child.wait()


@pytest.mark.parametrize(
    ("text", "why"),
    [("init 18\ngpu GPU-a\n", "error 18"), ("init 9\n", "error 9"), ("init 12\n", "error 12")],
)
async def test_a_driver_that_cannot_be_used_and_comes_back(script: Script, text: str, why: str) -> None:
    script.write(text)
    async with watching() as watch:
        await until(is_blind(watch, "NVML cannot be used"))
        script.write(gpu("GPU-a") + "driver 590.1\n")
        await until(sees(watch))
        assert report(watch).driver == "590.1"


async def test_a_driver_reloaded_under_us(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        before = watch.counts.starts
        script.write("gpu GPU-a\n* !18\n")
        await until(is_blind(watch, "NVML cannot be used"))
        script.write("driver 590.2\n" + gpu("GPU-a"))
        await until(sees(watch, lambda seen: seen.driver == "590.2"))
        assert watch.counts.starts > before


async def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    async with watching() as watch:
        await until(is_blind(watch, "NVML cannot be used: NVML Shared Library Not Found"))


async def test_a_child_that_is_killed_is_replaced_and_events_go_on(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        script.write(gpu("GPU-a", "xid 31"))
        await until(lambda: watch.counts.events == 1)
        script.write(gpu("GPU-a"))
        starts = watch.counts.starts
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: watch.counts.starts > starts)
        looks = watch.counts.looks
        await until(lambda: watch.counts.looks > looks)
        script.write(gpu("GPU-a", "xid 79"))
        await until(lambda: watch.counts.events == 2)
        assert [event.code for event in report(watch).events] == [31, 79]


async def test_the_child_goes_with_its_parent(script: Script) -> None:
    async with watching() as watch:
        await until(sees(watch))
        pids = _children()
        assert pids
    await until(lambda: not set(pids) & set(_children()))


def _children() -> list[int]:
    """Processes of ours that call NVML."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"controlplane.agent.child" in command and parent == os.getpid():
            found.append(int(folder.name))
    return found


# -- endpoint ------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(watch: Watch, token: str | None = TOKEN) -> AsyncIterator[str]:
    runner, port = await start(application(watch, token, time.time), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


async def test_the_endpoint_wants_its_token(script: Script) -> None:
    async with watching() as watch, serving(watch) as url, aiohttp.ClientSession() as session:
        for path in ("/v1/report", "/metrics", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": f"Basic {TOKEN}"}):
                assert (await session.get(url + path, headers=headers)).status == 401
        assert (await session.get(url + "/healthz")).status == 200
        assert (await session.get(url + "/v1/report", headers=AUTHORIZED)).status == 200


async def test_the_report_says_what_is_known_and_waits_for_news(script: Script) -> None:
    async with (
        watching(NO_LOOK_SECONDS) as watch,
        serving(watch) as url,
        aiohttp.ClientSession(headers=AUTHORIZED) as session,
    ):
        await until(sees(watch))
        asked_at = time.time()
        answer = await session.get(url + "/v1/report")
        first = msgspec.json.decode(await answer.read(), type=ReportAnswer)
        assert isinstance(first.sample, NodeReport)
        assert asked_at <= first.now <= time.time()
        waiting = asyncio.create_task(session.get(f"{url}/v1/report?after={first.version}&wait=30"))
        await asyncio.sleep(0.1)
        script.write(gpu("GPU-a", "xid 48") + gpu("GPU-b"))
        news = msgspec.json.decode(await (await waiting).read(), type=ReportAnswer)
        assert isinstance(news.sample, NodeReport)
        assert [event.code for event in news.sample.events] == [48]


@pytest.mark.parametrize(
    "query", ["after=x", "wait=31", "after=-2", "wait=-1", "wait=nan", "after=99999999999999999999"]
)
async def test_bad_questions_are_refused(query: str) -> None:
    watch = Watch(NODE, 1.0, 3.0, boot_id="")
    async with serving(watch) as url, aiohttp.ClientSession(headers=AUTHORIZED) as session:
        assert (await session.get(f"{url}/v1/report?{query}")).status == 400


async def test_while_the_driver_hangs_the_endpoint_answers(script: Script) -> None:
    async with (
        watching() as watch,
        serving(watch) as url,
        aiohttp.ClientSession(headers=AUTHORIZED) as session,
    ):
        await until(sees(watch))
        await impatient(watch, 0.5)
        script.write(gpu("GPU-a", "nvmlDeviceGetPowerUsage ~600"))
        await until(is_blind(watch))
        for _ in range(5):
            async with asyncio.timeout(60.0):  # the driver takes 600 s
                said = await (await session.get(url + "/v1/report")).read()
            answer = msgspec.json.decode(said, type=ReportAnswer)
            assert isinstance(answer.sample, NodeBlind)
            assert answer.sample.since is not None
        page = await (await session.get(url + "/metrics")).text()
        assert "controlplane_agent_seeing 0.0" in page
        assert "controlplane_gpu_temperature_celsius{" not in page


async def test_the_metrics_are_those_of_the_registry(script: Script) -> None:
    script.write(gpu("GPU-a", "xid 13", "mig 1g.5gb 7 100 900") + gpu("GPU-b"))
    async with watching() as watch:
        await until(lambda: watch.counts.looks > 0 and watch.counts.events == 1)
        text = metrics.page(watch).decode()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    names = {name for name, _ in samples}
    assert names <= set(BY_NAME), names - set(BY_NAME)
    me = (("gpu", "0"), ("uuid", "GPU-a"))
    assert samples["controlplane_gpu_power_watts", me] == 350.5
    assert samples["controlplane_gpu_ecc_correctable_total", me] == 3.0
    assert samples["controlplane_gpu_xids_total", (("uuid", "GPU-a"), ("xid", "13"))] == 1.0
    assert ("controlplane_gpu_answer", (("answer", "lost"), *me)) in samples
    assert "controlplane_gpu_instance_memory_used_bytes" in names


# -- from the driver to a decision ---------------------------------------------------------------------


async def test_from_an_xid_to_no_new_request_no_look_is_waited_for(script: Script) -> None:
    """The agent's part and quarantine's. The seconds of the whole way are measured in tests/gpu."""
    memory, limits = QuarantineMemory(), QuarantineSettings()
    serving_now = tuple(
        ReplicaEvidence(f"chat-{n}", "chat", NODE if n == 0 else f"n{n}", ("GPU-a",) if n == 0 else ())
        for n in range(3)
    )
    async with watching(NO_LOOK_SECONDS) as watch:
        await until(sees(watch))

        def look() -> dict[str, float]:
            nonlocal memory
            seen = Observation((watch.sample(),), (NODE, "n1", "n2"), None, serving_now)
            memory, outcome = observe(memory, seen, limits, time.time())
            return outcome.ejected

        assert look() == {}
        version = watch.version
        script.write(gpu("GPU-a", "xid 79") + gpu("GPU-b"))
        await watch.changed(version, 60.0)
        assert list(look()) == ["chat-0"]
        assert watch.counts.looks == 1


# -- parts ---------------------------------------------------------------------------------------------


def test_messages_read_back() -> None:
    for message in (Beat(1.0, 0.1, "d", {}), Heard(1.0, "xid", 79, "GPU-a"), Trouble(1.0, "why")):
        assert read(line(message)) == message
