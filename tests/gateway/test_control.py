"""The control interface: who may steer, what is taken, what is kept, what is told."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rig import PATIENT, TOKEN, Rig, chat, gateway, until
from standin import StandIn, standing_in

from controlplane.signals.gateway_registry import BY_NAME
from controlplane.signals.samples import OutcomeWindow
from controlplane.sources.fetch import Client
from controlplane.sources.gateways import Gateways
from controlplane.sources.settings import GatewaySettings


def message(
    *engines: StandIn, term: int = 1, version: int = 1, lasts: float = 60.0, **more: Any
) -> dict[str, Any]:
    replicas = [{"name": each.name, "pool": "chat", "url": each.url} for each in engines]
    now = time.time()
    return {
        "term": term,
        "version": version,
        "sent_at": now,
        "expires_at": now + lasts,
        "replicas": replicas,
        **more,
    }


async def steer(rig: Rig, order: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    response = await rig.control("PUT", "/control/v1/state", order)
    return response.status, response.json


async def test_nobody_steers_without_the_token() -> None:
    async with gateway(StandIn()) as rig:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            for method, path in (
                ("GET", "/control/v1/outcomes"),
                ("GET", "/control/v1/state"),
                ("PUT", "/control/v1/state"),
            ):
                response = await rig.ask(b"{}", path, headers, method, control=True)
                assert response.status == 401, (method, path)
        # The public address has none of it.
        response = await rig.ask(b"{}", "/control/v1/state", {"authorization": f"Bearer {TOKEN}"}, "PUT")
        assert response.status == 404


async def test_lower_terms_and_older_versions_are_refused_and_the_same_is_no_news() -> None:
    engine = StandIn()
    async with gateway(engine) as rig:
        assert await steer(rig, message(engine, term=3, version=5)) == (
            200,
            {"judgement": "taken", "term": 3, "version": 5},
        )
        assert (await steer(rig, message(engine, term=3, version=5)))[1]["judgement"] == "known"
        for term, version in ((2, 99), (3, 4), (0, 0)):
            status, said = await steer(rig, message(engine, term=term, version=version))
            assert (status, said) == (409, {"judgement": "outdated", "term": 3, "version": 5})
        assert await rig.metric("control_refusals_total", reason="outdated") == 3
        assert (await steer(rig, message(engine, term=4, version=0)))[0] == 200
        status, said = await steer(
            rig, {**message(engine, term=5), "expires_at": time.time() - 1, "sent_at": time.time() - 9}
        )
        assert (status, said["judgement"]) == (409, "expired")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"term": "x"}, "term"),
        ({"expires_at": None}, "expires_at"),
        ({"format": 7}, "format 7"),
        ({"share": 1.5}, "share 1.5"),
        (
            {"replicas": [{"name": "a", "pool": "p", "url": "http://h:1", "rotation": "gone"}]},
            "rotation 'gone'",
        ),
        ({"replicas": [{"name": "a", "pool": "p", "url": "http://h:1"}] * 2}, "twice"),
        ({"replicas": [{"name": "a", "pool": "p", "url": "http://h:1", "limit": -3}]}, "limit -3"),
        ({"expires_at": 4e9}, "expires"),
    ],
)
async def test_what_cannot_be_is_refused_with_a_sentence(change: dict[str, Any], word: str) -> None:
    async with gateway(StandIn()) as rig:
        status, said = await steer(rig, {**message(), **change})
        assert status == 400
        assert word in said["error"]["message"]


async def test_unknown_fields_of_a_neighbouring_version_are_passed_over() -> None:
    engine = StandIn()
    async with gateway(engine) as rig:
        assert (await steer(rig, {**message(engine), "new_thing": {"a": 1}, "format": 0}))[0] == 200


async def test_limits_budgets_share_mode_and_readings_arrive() -> None:
    first, second = StandIn(), StandIn()
    async with gateway(first, second) as rig:
        order = message(first, second, mode="enforce", share=0.5)
        order["replicas"][0] |= {"limit": 10, "kv_tokens": 1000, "overcommit": 1.2}
        order["replicas"][0] |= {"read_at": time.time(), "running": 6, "waiting": 1, "kv_usage": 0.9}
        order["replicas"][1] |= {"rotation": "quarantined"}
        assert (await steer(rig, order))[0] == 200
        status = rig.worker.admission.status(rig.worker.around.door.now())
        assert (status.mode, status.share) == ("enforce", 0.5)
        replica = status.replicas[first.name]
        assert (replica.limit, replica.budget_tokens) == (5.0, 600.0)
        assert replica.foreign_sequences == 2
        assert replica.foreign_tokens == 300
        assert status.replicas[second.name].rotation == "quarantined"
        for number in range(8):
            body = chat(stream=False, max_tokens=10, messages=[{"role": "user", "content": f"{number}"}])
            assert (await rig.ask(body)).status == 200
        assert not second.calls
        state = (await rig.control("GET", "/control/v1/state")).json
        assert (state["term"], state["alone"], state["grant"]["share"]) == (1, False, 0.5)
        assert await rig.metric("enforcing") == 1


async def test_replicas_that_are_not_in_the_message_are_gone_and_new_ones_are_used() -> None:
    old, new = StandIn(), StandIn()
    await new.start()
    try:
        async with gateway(old) as rig:
            assert (await steer(rig, message(new)))[0] == 200
            await until(lambda: list(rig.replicas) == [new.name])
            assert (await rig.ask(chat(stream=False))).status == 200
            assert not old.calls
            assert new.calls
    finally:
        await new.stop()


async def test_scaled_to_zero_it_is_ready_and_tells_what_it_refused() -> None:
    """What is refused at zero brings the first replica: so it must come here, and be counted."""
    engine = StandIn()
    async with gateway(engine) as rig:
        assert await steer(rig, message()) == (200, {"judgement": "taken", "term": 1, "version": 1})
        assert (await rig.get("/ready")).status == 200
        refused = await rig.ask(chat())
        assert (refused.status, refused.error["code"]) == (503, "no_ready_replica")
        assert [told.shed for told in rig.windows() if told.pool == "chat" and told.shed] == [
            {"no_ready_replica": 1}
        ]
        await steer(rig, message(engine, version=2))
        rig.worker.fleet.obey(
            [msgspec.structs.replace(rig.worker.steering.message.replicas[0], rotation="unready")], 0.0
        )
        assert (await rig.get("/ready")).status == 503, "another gateway may still reach it"


async def test_when_messages_lapse_the_gateway_finds_its_targets_itself() -> None:
    own, theirs = StandIn(), StandIn()
    await theirs.start()
    try:
        async with gateway(own) as rig:
            assert (await steer(rig, message(theirs, mode="enforce")))[0] == 200
            assert rig.worker.lookout.is_alone is False
            await until(lambda: list(rig.replicas) == [theirs.name])
            lapsed = msgspec.structs.replace(rig.worker.steering.message, expires_at=time.time())
            rig.worker.steering.message = lapsed
            await until(lambda: rig.worker.steering.is_alone)
            assert rig.worker.admission.mode == "observe"
            await until(lambda: own.name in rig.replicas and rig.replicas[own.name].rotation == "in")
            assert (await rig.ask(chat(stream=False))).status == 200
            assert own.calls
            # A leader that comes back takes over again.
            assert (await steer(rig, message(theirs, version=2)))[0] == 200
            assert not rig.worker.steering.is_alone
    finally:
        await theirs.stop()


async def test_the_last_message_outlives_the_process(tmp_path: Path) -> None:
    state = {"state_file": str(tmp_path / "deep" / "state.json")}
    engine = StandIn()
    async with standing_in(engine):
        of_engine: Any = {"pools": {"chat": [engine.url]}, "control": state}
        async with gateway(**of_engine) as rig:
            order = message(engine, term=7, version=3)
            order["replicas"][0] |= {"limit": 3}
            assert (await steer(rig, order))[0] == 200
        async with gateway(**of_engine) as rig:
            assert rig.replicas[engine.name].limit == 3
            assert (await steer(rig, message(engine, term=6, version=9)))[0] == 409
            assert (await steer(rig, message(engine, term=7, version=4)))[0] == 200
        (tmp_path / "deep" / "state.json").write_text("{half")
        async with gateway(**of_engine) as rig:
            assert rig.worker.steering.message is None


async def test_outcomes_are_told_to_the_daemons_own_reader(tmp_path: Path) -> None:
    async with gateway(StandIn(), admission=PATIENT) as rig:
        began = time.time()
        for _ in range(3):
            assert (await rig.ask(chat(stream=False))).status == 200
        refused = await rig.ask(chat(model="acme/none"))
        assert refused.status == 404
        await asyncio.sleep(1.1)
        (tmp_path / "token").write_text(TOKEN)
        settings = GatewaySettings.model_validate(
            {"url": f"http://127.0.0.1:{rig.control_port}", "token": {"file": str(tmp_path / "token")}}
        )
        async with Client() as client:
            reader = Gateways((settings,), client.get, after=began - 5)
            windows, events = await reader.read(time.time())
            assert not events
            again, _ = await reader.read(time.time())
        busy = [window for window in windows if window.offered]
        assert sum(window.finished for window in busy) == 3
        assert sum(window.good for window in busy) == 3
        assert sum(window.tokens for window in busy) == 3 * 14
        assert all(began - 2 <= window.start < window.end <= time.time() + 1 for window in windows)
        assert all(window.gateway == "gw" for window in windows)
        assert not {(w.start, w.end) for w in again} & {(w.start, w.end) for w in windows}
        for after in ("x", "nan", "inf"):
            assert (await rig.control("GET", f"/control/v1/outcomes?after={after}")).status == 400
        body = (await rig.control("GET", f"/control/v1/outcomes?after={time.time() + 5}")).body
        assert msgspec.json.decode(body, type=list[OutcomeWindow]) == []


async def test_the_metrics_page_has_what_is_registered_and_nothing_else() -> None:
    async with gateway(StandIn(), admission={"mode": "enforce", **PATIENT}) as rig:
        await rig.ask(chat())
        await rig.ask(chat(stream=False))
        await asyncio.sleep(1.1)
        response = await rig.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(response.body.decode())}
        registered = {metric.family for metric in BY_NAME.values()}
        assert set(families) == registered
        for metric in BY_NAME.values():
            for sample in families[metric.family].samples:
                assert set(sample.labels) - {"le"} == set(metric.labels), metric.name
        ttft = next(
            s for s in families["controlplane_gateway_ttft_seconds"].samples if s.name.endswith("_count")
        )
        assert ttft.value == 1
        good = families["controlplane_gateway_good_requests"].samples
        assert sum(sample.value for sample in good) == 2
        json.dumps(response.headers)
