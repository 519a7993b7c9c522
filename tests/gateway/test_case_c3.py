"""Case C3: a deploy must not cut answers. Times are the file's own."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig import Connection, Rig, chat, gateway, until
from skipping import in_skipping_time, skip
from standin import DONE, Call, StandIn, event_of

CASE = yaml.safe_load((Path(__file__).parents[1] / "cases/data/C3/drain.yaml").read_text())
SETTLE: float = CASE["config"]["endpoint_settle_seconds"]
DEADLINE: float = CASE["config"]["drain_deadline_seconds"]
DRAIN = {"settle": f"{SETTLE}s", "deadline": f"{DEADLINE}s"}
MARGIN = 60.0  # so long before the deadline a stream still runs; no machine stands still for it


class Streams:
    """An engine whose streams end when they are told to."""

    def __init__(self) -> None:
        self.ends: dict[str, asyncio.Event] = {}

    async def __call__(self, call: Call) -> None:
        name = call.json["messages"][0]["content"]
        end = self.ends.setdefault(name, asyncio.Event())
        call.stream()
        call.chunk(event_of(name))
        while not end.is_set() and not call.is_closed.is_set():
            await call.drain()
            await asyncio.sleep(0.01)
        call.chunk(event_of(finish_reason="stop") + DONE)
        call.last_chunk()


async def begin(rig: Rig, name: str) -> tuple[Connection, Any]:
    client = await Connection.open(rig.port)
    client.send(chat(messages=[{"role": "user", "content": name}]))
    response = await client.head()
    assert response.status == 200
    await client.piece(response)
    return client, response


async def rest(client: Connection, response: Any) -> bytes:
    while await asyncio.wait_for(client.piece(response), 60):
        pass
    client.close()
    return bytes(response.body)


@in_skipping_time
async def test_C3_the_gateway_itself_gets_sigterm() -> None:
    streams = Streams()
    async with gateway(StandIn(streams), drain=DRAIN) as rig:
        s1, s3 = await begin(rig, "s1"), await begin(rig, "s3")
        assert (await rig.get("/ready")).status == 200
        rig.worker.stop()
        await asyncio.sleep(0)
        ready = await rig.get("/ready")
        assert ready.status == 503
        assert (await rig.get("/health")).status == 200
        s2 = await begin(rig, "s2")  # still answered until the settle time is over
        rig.worker.stop()  # a second signal: no change
        assert not rig.worker.refuses
        skip(SETTLE)
        await until(lambda: rig.worker.refuses)
        refused = await rig.ask(chat())
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error["code"] == "gateway_stopping"
        assert not rig.worker.is_stopped.is_set()
        for name, stream in (("s1", s1), ("s2", s2)):
            streams.ends[name].set()
            body = await rest(*stream)
            assert body.endswith(DONE)
        skip(DEADLINE - SETTLE - MARGIN)
        await asyncio.sleep(0.05)
        assert rig.worker.around.exchanges
        skip(MARGIN)
        cut = await rest(*s3)
        error = json.loads(cut.split(b"data: ")[-1])["error"]
        assert "shutting down" in error["message"]
        assert DONE not in cut
        await asyncio.wait_for(rig.worker.is_stopped.wait(), 60)
        with pytest.raises(OSError, match=r".*"):
            await Connection.open(rig.port)
        windows = rig.windows()
        assert sum(window.finished for window in windows) == 2
        assert sum(window.failed for window in windows) == 1


@in_skipping_time
async def test_C3_a_replica_that_is_drained_gets_nothing_new_and_its_streams_the_deadline() -> None:
    streams = Streams()
    leaving, staying = StandIn(streams), StandIn(streams)
    drain = DRAIN | {"settle": 0}
    async with gateway(leaving, staying, drain=drain, admission={"mode": "enforce"}) as rig:
        held: dict[str, tuple[Connection, Any]] = {}
        for number in range(40):
            held[f"s{number}"] = await begin(rig, f"s{number}")
            if len(leaving.calls) >= 2:
                break
        on_leaving = [call.json["messages"][0]["content"] for call in leaving.calls]
        first, last = on_leaving[0], on_leaving[-1]
        message = {
            "term": 1,
            "version": 1,
            "sent_at": time.time(),
            "expires_at": time.time() + 600,
            "replicas": [
                {"name": leaving.name, "pool": "chat", "url": leaving.url, "rotation": "draining"},
                {"name": staying.name, "pool": "chat", "url": staying.url},
            ],
        }
        answer = await rig.control("PUT", "/control/v1/state", message)
        assert answer.status == 200
        asked = len(leaving.calls)
        for number in range(40, 52):
            held[f"s{number}"] = await begin(rig, f"s{number}")
        assert len(leaving.calls) == asked
        streams.ends[first].set()
        assert (await rest(*held.pop(first))).endswith(DONE)
        skip(DEADLINE - MARGIN)
        await asyncio.sleep(0.05)
        assert not leaving.calls[-1].is_closed.is_set()
        skip(MARGIN)
        cut = await rest(*held.pop(last))
        error = json.loads(cut.split(b"data: ")[-1])["error"]
        assert "drained" in error["message"]
        await leaving.calls[-1].until_closed()
        assert await rig.metric("requests_total", end="cut") >= 1
        for client, _ in held.values():
            client.reset()
        await rig.until_idle()
