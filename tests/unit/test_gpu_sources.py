"""Exporters and node agents asked over real HTTP: what comes, what is refused, and what a hang costs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner
from dcgm_pages import A, page, row
from nvml_fixture import Script, gpu, impatient, script, until
from pydantic import ValidationError

from controlplane.agent.server import application, start
from controlplane.agent.watch import Watch
from controlplane.commands.node_agent import node_agent
from controlplane.commands.run import run
from controlplane.config import parse
from controlplane.daemon.inputs import FleetInputs
from controlplane.explain import explanation
from controlplane.signals.gpu import Gpu, GpuEvent, NodeBlind, NodeReport, NodeSample
from controlplane.signals.node import Placement
from controlplane.sources.fetch import Answer, Client, Errand, Failed
from controlplane.sources.gpu_settings import GpuNodeSettings, GpuSettings, NodeAgentSettings
from controlplane.sources.gpu_watch import GpuWatch
from controlplane.sources.node_agent import NodeAgent
from controlplane.sources.secrets import Secret
from controlplane.sources.settings import ScrapeSettings

__all__ = ["script"]
TOKEN = "open-sesame-0123456789"
NO_LOOK_SECONDS = 300.0
"""From one look at the own driver to the next, where what is told must not be by a look."""
SLOW = {"interval": "60s", "timeout": "50s"}
"""For who is asked once and must have answered, however slow the machine."""


@asynccontextmanager
async def http(handler: Callable[[web.Request], web.StreamResponse]) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return handler(request)

    app = web.Application()
    app.router.add_get("/{tail:.*}", handle)
    runner, port = await start(app, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(settings: GpuSettings) -> AsyncIterator[list[NodeSample]]:
    """A watch at work; what came so far."""
    came: list[NodeSample] = []
    async with Client() as client:
        watch = GpuWatch(settings, client.get)

        async def collect() -> None:
            while True:
                came.extend(watch.take())
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(collect())]
        try:
            yield came
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_exporter_is_read() -> None:
    body = page(row("DCGM_FI_DEV_GPU_TEMP", 41))
    async with http(lambda _: web.Response(body=body, content_type="text/plain")) as url:
        settings = GpuSettings(nodes={"n1": GpuNodeSettings(dcgm=url)}, **SLOW)
        async with asking(settings) as came:
            await until(lambda: bool(came))
    (sample,) = came
    assert isinstance(sample, NodeReport)
    assert (sample.node, sample.source) == ("n1", "dcgm")
    assert sample.gpus[A].numbers == {"temperature_celsius": 41.0}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda: web.Response(status=503), "503"),
        (lambda: web.Response(text="<html>log in</html>", content_type="text/html"), "HTML"),
        (lambda: web.Response(text="up 1\n"), "names no GPU"),
        (lambda: web.Response(text='DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="x"} 4'), "cut short"),
    ],
)
async def test_what_is_no_page_of_gpus_is_blindness_with_a_reason(
    answer: Callable[[], web.Response], why: str
) -> None:
    async with (
        http(lambda _: answer()) as url,
        asking(GpuSettings(nodes={"n1": GpuNodeSettings(dcgm=url)}, **SLOW)) as came,
    ):
        await until(lambda: bool(came))
    assert isinstance(came[0], NodeBlind)
    assert why in came[0].detail


async def test_a_node_that_cannot_be_reached_costs_the_others_nothing() -> None:
    body = page(row("DCGM_FI_DEV_GPU_TEMP", 41))
    async with http(lambda _: web.Response(body=body, content_type="text/plain")) as url:
        nodes = {"dead": GpuNodeSettings(dcgm="http://127.0.0.1:9"), "well": GpuNodeSettings(dcgm=url)}
        async with asking(GpuSettings(nodes=nodes, **SLOW)) as came:
            await until(lambda: {sample.node for sample in came} == {"dead", "well"})
    kinds = {sample.node: type(sample) for sample in came}
    assert kinds == {"dead": NodeBlind, "well": NodeReport}


async def test_from_the_driver_over_the_agent_to_the_daemon(script: Script, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    watch = Watch("whatever-it-calls-itself", NO_LOOK_SECONDS, 2 * NO_LOOK_SECONDS, boot_id="b")
    looking = asyncio.create_task(watch.run())
    runner, port = await start(application(watch, TOKEN, lambda: 5.0), "127.0.0.1", 0)  # its clock is far off
    settings = GpuSettings(
        nodes={"n1": GpuNodeSettings(agent=f"http://127.0.0.1:{port}")}, agent_token=Secret(file=token)
    )
    try:
        async with asking(settings) as came:
            await until(lambda: any(isinstance(one, NodeReport) for one in came))
            came.clear()
            script.write(gpu("GPU-a", "xid 79") + gpu("GPU-b"))
            await until(lambda: any(isinstance(one, NodeReport) and one.events for one in came))
            assert watch.counts.looks == 1
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await runner.cleanup()
    report = next(one for one in came if isinstance(one, NodeReport) and one.events)
    assert report.node == "n1"  # as we call it
    assert report.events[0].code == 79


async def test_the_daemon_reads_its_own_machine_itself(script: Script) -> None:
    node = GpuNodeSettings(local=True, replicas=("r:8000",), gpus={"r:8000": ("GPU-b",)})
    watch = Watch("here", NO_LOOK_SECONDS, 2 * NO_LOOK_SECONDS, boot_id="b")
    inputs = FleetInputs(
        {},
        ScrapeSettings(),
        None,
        (),
        outcomes_after=0.0,
        now=time.time,
        gpus=GpuSettings(nodes={"here": node}),
        local_gpus={"here": watch}.__getitem__,
    )
    await inputs.open()
    came: list[NodeSample] = []

    def arrived(holds: Callable[[NodeReport], object]) -> bool:
        came.extend(inputs.take()[0].gpus)
        return any(isinstance(one, NodeReport) and holds(one) for one in came)

    try:
        first, _ = inputs.take()
        came.extend(first.gpus)
        await until(lambda: arrived(lambda report: report.gpus))
        script.write(gpu("GPU-a") + gpu("GPU-b", "xid 79"))
        await until(lambda: arrived(lambda report: report.events))
        assert watch.counts.looks == 1
    finally:
        await inputs.close()
    assert first.gpu_nodes == ("here",)
    assert first.placements == (Placement("r:8000", "here", ("GPU-b",)),)
    assert isinstance(came[0], NodeBlind)  # before the first look
    assert {sample.node for sample in came} == {"here"}
    assert {sample.source for sample in came} == {"nvml"}


async def test_a_hang_of_the_own_driver_is_blindness_and_the_exporter_is_read_on(script: Script) -> None:
    body = page(row("DCGM_FI_DEV_GPU_TEMP", 41))
    async with http(lambda _: web.Response(body=body, content_type="text/plain")) as url:
        nodes = {"here": GpuNodeSettings(local=True), "there": GpuNodeSettings(dcgm=url)}
        came: list[NodeSample] = []
        async with Client() as client:
            settings = GpuSettings.model_validate({"nodes": {}, "interval": "1s", "timeout": "900ms"})
            own = Watch("here", 0.2, NO_LOOK_SECONDS, boot_id="b")
            watch = GpuWatch(
                settings.model_copy(update={"nodes": nodes}), client.get, local={"here": own}.__getitem__
            )
            task = asyncio.create_task(watch.run())

            def heard(kind: type, node: str, after: int = 0) -> bool:
                came.extend(watch.take())
                return any(isinstance(one, kind) and one.node == node for one in came[after:])

            try:
                await until(lambda: heard(NodeReport, "here"))
                await impatient(own, 1.0)
                script.write(gpu("GPU-a", "nvmlDeviceGetTemperature ~600"))
                seen = len(came)
                await until(lambda: heard(NodeBlind, "here", seen) and heard(NodeReport, "there", seen))
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    assert any(isinstance(one, NodeBlind) and "has not answered" in one.detail for one in came)


async def test_a_wrong_token_is_blindness(script: Script) -> None:
    watch = Watch("n1", 5.0, 15.0, boot_id="b")
    runner, port = await start(application(watch, TOKEN, lambda: 5.0), "127.0.0.1", 0)
    try:
        async with asking(
            GpuSettings(nodes={"n1": GpuNodeSettings(agent=f"http://127.0.0.1:{port}")}, **SLOW)
        ) as came:
            await until(lambda: bool(came))
    finally:
        await runner.cleanup()
    assert isinstance(came[0], NodeBlind)
    assert "401" in came[0].detail


async def test_the_daemons_inputs_bring_gpus_nodes_and_places() -> None:
    body = page(row("DCGM_FI_DEV_GPU_TEMP", 41))
    async with http(lambda _: web.Response(body=body, content_type="text/plain")) as url:
        node = GpuNodeSettings(dcgm=url, replicas=("r:8000",), gpus={"r:8000": (A,)})
        gpus = GpuSettings(nodes={"n1": node}, **SLOW)
        inputs = FleetInputs({}, ScrapeSettings(), None, (), outcomes_after=0.0, now=lambda: 5.0, gpus=gpus)
        await inputs.open()
        try:
            first, _ = inputs.take()
            came: list[NodeSample] = []

            def arrived() -> bool:
                came.extend(inputs.take()[0].gpus)
                return bool(came)

            await until(arrived)
        finally:
            await inputs.close()
    assert first.gpu_nodes == ("n1",)
    assert first.placements == (Placement("r:8000", "n1", (A,)),)
    assert (came[0].node, came[0].at) == ("n1", 5.0)


# -- what an agent may not say -------------------------------------------------------------------------


def told(sample: NodeSample, now: float = 100.0) -> bytes:
    return msgspec.json.encode({"version": 3, "now": now, "sample": sample})


async def heard(body: bytes) -> NodeSample:
    async def fetch(url: str, errand: Errand) -> Answer | Failed:
        return Answer({}, body)

    errand = Errand("", 1.0, 1)
    return await NodeAgent("n1", "http://agent", errand, fetch, wall=lambda: 1_000.0).read()


async def test_times_are_moved_to_our_clock() -> None:
    event = GpuEvent(1, 98.0, "xid", 79, "g")
    sample = await heard(told(NodeReport("x", "nvml", 99.0, {"g": Gpu("g")}, (event,))))
    assert isinstance(sample, NodeReport)
    assert (sample.at, sample.events[0].at) == (999.0, 998.0)
    blind = await heard(told(NodeBlind("x", "nvml", 99.0, "unavailable", "hangs", 40.0)))  # type: ignore[arg-type]
    assert isinstance(blind, NodeBlind)
    assert (blind.since, blind.detail) == (940.0, "hangs")


@pytest.mark.parametrize(
    "sample",
    [
        NodeReport("x", "nvml", 1.0, {"g": Gpu("other")}),
        NodeReport("x", "dcgm", 1.0, {"g": Gpu("g")}),
        NodeReport("x", "nvml", 1.0, {"g": Gpu("g", numbers={"invented": 1.0})}),
        NodeReport("x", "nvml", 1.0, {f"g{n}": Gpu(f"g{n}") for n in range(65)}),
        NodeReport("x", "nvml", 1.0, {}, tuple(GpuEvent(n, 1.0, "xid", 1) for n in range(1001))),
        NodeReport("x", "nvml", 1.0, {}, (GpuEvent(1, 1.0, "xid", -1),)),
        NodeReport("x", "nvml", 1.0, {}, driver="d" * 1000),
    ],
)
async def test_a_report_that_cannot_be_is_refused(sample: NodeReport) -> None:
    answer = await heard(told(sample))
    assert isinstance(answer, NodeBlind)
    assert "a report that cannot be" in answer.detail


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"version": 1, "now": 1e400, "sample": {}}', b"\xff"])
async def test_what_is_no_report_is_refused(body: bytes) -> None:
    assert isinstance(await heard(body), NodeBlind)


# -- settings and the command --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"nodes": {"n": {}}}, "needs dcgm, agent or local"),
        ({"nodes": {"n": {"agent": "http://x:1", "local": True}}}, "both ask the same driver"),
        ({"nodes": {"n": {"local": True}, "m": {"local": True}}}, "one machine, and n and m are local"),
        ({"nodes": {"n": {"dcgm": "ftp://x"}}}, "http"),
        ({"nodes": {"n": {"dcgm": "x:9400", "gpus": {"r": ["GPU-1"]}}}}, "not among the node's replicas"),
        ({"interval": "5s", "timeout": "5s"}, "not under interval"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        GpuSettings.model_validate(given)


POOLS = "pools: {chat: {targets: {static: [e:1]}}}\n"
NODES = "gpus: {nodes: {n1: {agent: 'http://x:1', dcgm: 'x:9400'}, n2: {local: true}}}\n"
CLUSTER = "kubernetes: {kubeconfig: kc}\n"
ENFORCE = "daemon: {modes: {node: {'*': enforce}}}\n"


@pytest.mark.parametrize(
    ("text", "done"),
    [
        (CLUSTER, "is told and not marked (observe)"),
        (CLUSTER + "daemon: {modes: {node: {chat: enforce}}}\n", "is told and not marked (observe)"),
        (ENFORCE, "is told and not marked: there is no section kubernetes"),
        (CLUSTER + ENFORCE, "is tainted"),
        (CLUSTER + ENFORCE + "policy: {quarantine: {mark: both}}\n", "is tainted and cordoned"),
    ],
)
def test_what_would_be_done_to_nodes_is_put_into_words(text: str, done: str) -> None:
    said = explanation(parse(POOLS + NODES + text, Path("etc/controlplane.yaml")))
    assert "GPUs of nodes: n1 (agent, exporter), n2 (read here); asked every 10s" in said
    budget = "at most 20% of the nodes (1 in any case) may be out, and 2 are taken within an hour"
    assert f"a node with a broken GPU {done}; {budget}" in said


def test_who_watches_no_gpus_is_told_nothing_of_them() -> None:
    assert not any("GPU" in line for line in explanation(parse(POOLS, Path("etc/controlplane.yaml"))))


def test_agent_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="under two intervals"):
        NodeAgentSettings.model_validate({"interval": "10s", "deadline": "15s"})
    with pytest.raises(ValidationError, match="go together"):
        NodeAgentSettings.model_validate({"tls_cert_file": "a.pem"})


def test_an_exporters_url_may_lack_scheme_and_path() -> None:
    node = GpuNodeSettings.model_validate({"dcgm": "gpu-node-1:9400"})
    assert node.dcgm == "http://gpu-node-1:9400/metrics"


@pytest.mark.parametrize(
    ("config", "options", "why"),
    [
        ("", [], "node_agent.token is needed"),
        ("node_agent: {token: {env: NOT_SET_AT_ALL}}", [], "NOT_SET_AT_ALL is not set"),
        ("node_agent: {interval: 5}", [], "needs a unit"),
        ("node_agent: {lisen: 'x:1'}", [], "lisen"),
        ("", ["--listen", "nowhere"], "is not HOST:PORT"),
        (
            "node_agent: {tls_cert_file: no.pem, tls_key_file: no.key}",
            ["--listen", "127.0.0.1:0"],
            "no certificate with its key",
        ),
    ],
)
def test_the_command_refuses_what_cannot_be(
    tmp_path: Path, config: str, options: list[str], why: str
) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(config or "{}")
    result = CliRunner().invoke(node_agent, ["--config", str(file), *options])
    assert result.exit_code == 1
    assert why in result.output
    assert result.output.count("\n") == 1


def test_the_daemon_says_which_package_it_lacks_for_its_own_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "controlplane.yaml"
    file.write_text('pools: {p: {targets: {static: ["http://e:1"]}}}\ngpus: {nodes: {here: {local: true}}}\n')
    monkeypatch.setattr("controlplane.commands.run.find_spec", lambda name: None)
    result = CliRunner().invoke(run, [str(file)])
    assert result.exit_code == 1
    assert "gpus.nodes.here.local needs the extra `nvml` (nvidia-ml-py)" in result.output
    assert result.output.count("\n") == 1
