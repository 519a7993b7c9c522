"""Counters and quotas through a real Redis: shared, lost and found, slow, full, locked; and two gateways."""

import asyncio
import logging
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from model_store import ModelStore
from processes import config, free_ports, running
from redis_server import LOSES_SOON, RedisServer, needs_redis, redis_server
from rig import Connection, chat, gateway, until
from standin import StandIn
from test_process import TOKEN, fetch

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.settings import AdmissionSettings, TenantSettings
from controlplane.gateway.admission.sync import Heard, Push, Told
from controlplane.gateway.redis_store import RedisStore, StoreError
from controlplane.gateway.settings import RedisSettings
from controlplane.gateway.tenant_sync import TenantSync, instance_of

pytestmark = needs_redis
TENANTS = {"t": TenantSettings(tokens_per_minute=6000, sequences=10)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as started:
        yield started


class Gateway:
    """What of a gateway shares."""

    def __init__(self, name: str, settings: RedisSettings) -> None:
        admission = Admission(AdmissionSettings(tenants=TENANTS), gateway=name, now=0.0)
        self.quotas, self.counters = admission.quotas, admission.counters
        self.running = TenantSync(settings, admission, instance_of(name), lambda me: RedisStore(settings, me))

    @property
    def is_alone(self) -> bool:
        return self.running.sync.is_alone

    def take(self, tokens: int, sequences: int = 1) -> bool:
        return self.quotas.take("t", tokens, sequences, asyncio.get_running_loop().time()) is None

    def settle(self, tokens: int, sequences: int = 1) -> None:
        self.quotas.settle("t", tokens, tokens, sequences, asyncio.get_running_loop().time())

    @property
    def level(self) -> float:
        return self.quotas.levels(asyncio.get_running_loop().time())["t"].tokens

    @property
    def elsewhere(self) -> int:
        levels = self.quotas.levels(asyncio.get_running_loop().time())
        return levels["t"].elsewhere if "t" in levels else 0


@asynccontextmanager
async def sharing(*gateways: Gateway) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.running.run()) for each in gateways]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "redis" in record.getMessage()]


async def test_what_one_takes_the_other_has_not(server: RedisServer) -> None:
    here, there = Gateway("here", server.settings()), Gateway("there", server.settings())
    async with sharing(here, there):
        await until(lambda: not here.is_alone and not there.is_alone)
        taken_at = time.monotonic()
        assert here.take(4000, 6)
        here.counters.account("t", "chat").charge(123.0)
        await until(lambda: there.elsewhere == 6)
        assert not there.take(4000, 1)
        assert not there.take(1, 5)
        assert there.take(1000, 4)
        assert there.counters.account("t", "chat").counter == 123.0
        await until(lambda: here.level <= 1000 + 100 * (time.monotonic() - taken_at))


async def test_the_script_is_the_law_that_was_proved(server: RedisServer) -> None:
    """The same pushes to it and to the model that the property tests run on."""
    dice = random.Random(4)
    model, names = ModelStore(), ["a", "b", "c"]
    stores = {name: RedisStore(server.settings(), name) for name in names}
    number = dict.fromkeys(names, 0)
    since = dict.fromkeys(names, 0)
    try:
        for step in range(150):
            name = dice.choice(names)
            is_again = number[name] > 0 and dice.random() < 0.2
            number[name] += not is_again
            changes = tuple(
                random_change(dice, tenant) for tenant in dice.sample("uvwxyz", dice.randint(0, 4))
            )
            was_rolled_back = dice.random() < 0.1
            push = Push(
                number[name], number[name] - 1 - was_rolled_back, dice.choice((0, since[name])), changes
            )
            ours = await stores[name].exchange(push, 600.0)
            theirs = model.exchange(push, name, 0.0)
            since[name] = ours.revision
            assert (ours.is_new, ours.revision, ours.has_more) == (
                theirs.is_new,
                theirs.revision,
                theirs.has_more,
            ), step
            assert set(ours.living) == set(theirs.living)
            assert list(map(comparable, ours.tenants)) == list(map(comparable, theirs.tenants)), step
    finally:
        for store in stores.values():
            await store.close()


def random_change(dice: random.Random, tenant: str) -> Told:
    floor = dice.choice((None, float(dice.randint(0, 500))))
    counter, ahead = float(dice.randint(0, 500)), dice.uniform(-10, 100)
    if dice.random() < 0.3:
        return Told(tenant, counter, ahead, floor)
    # Nothing is refilled: the clocks of Redis and of the test differ.
    taken = float(dice.randint(-100, 300))
    return Told(tenant, counter, ahead, floor, 6000.0, 0.0, 3000.0, taken, dice.randint(0, 3))


def comparable(heard: Heard) -> Any:
    level = None if heard.level is None else pytest.approx(heard.level)
    return heard.tenant, pytest.approx(heard.counter), level, sorted(heard.sequences)


async def test_a_crash_of_redis_is_said_once_and_its_end_too(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    here, there = (Gateway(name, server.settings(**LOSES_SOON)) for name in ("here", "there"))

    def lost_and_back() -> tuple[int, int]:
        """How often it was said. A machine that stands still is as good as a crash: more of both, in turn."""
        texts = told(caplog)
        lost = sum("this gateway's own until it is back" in text for text in texts)
        back = sum("redis is back" in text for text in texts)
        assert lost + back == len(texts)
        return lost, back

    async with sharing(here, there):
        await until(lambda: not here.is_alone and not there.is_alone)
        taken_at = time.monotonic()
        assert here.take(1000, 3)
        here.counters.account("t", "chat").charge(100.0)
        await until(lambda: there.elsewhere == 3)
        server.kill()
        await until(lambda: here.is_alone and there.is_alone)
        assert there.elsewhere == 0
        assert there.take(3000, 9), "alone it goes by its own copy"
        there.counters.account("t", "chat").charge(11.0)
        await asyncio.sleep(0.3)
        lost, back = lost_and_back()
        assert lost - back == 2, "one a gateway"
        server.start()
        await until(lambda: here.elsewhere == 9 and there.elsewhere == 3)
        await until(lambda: here.counters.account("t", "chat").counter == 111.0)
        assert there.counters.account("t", "chat").counter == 111.0
        refilled = 100 * (time.monotonic() - taken_at)  # clocks here and there differ by milliseconds
        assert here.level <= 2000 + refilled + 100, "both takes count"
        lost, back = lost_and_back()
        assert lost == back


async def test_a_redis_that_hangs_holds_nobody_up(server: RedisServer) -> None:
    here, there = (Gateway(name, server.settings(**LOSES_SOON)) for name in ("here", "there"))
    async with sharing(here, there):
        await until(lambda: not here.is_alone and not there.is_alone)
        with server.frozen():
            taken_at = time.monotonic()
            assert here.take(1000, 2)
            here.counters.account("t", "chat").charge(50.0)
            await until(lambda: here.is_alone)
            assert here.take(1000, 1)  # it is no coroutine: there is nothing that it could wait for
        await until(lambda: there.elsewhere == 3)
        await until(lambda: there.counters.account("t", "chat").counter == 50.0)
        await asyncio.sleep(0.5)
        assert there.counters.account("t", "chat").counter == 50.0, "each push was carried out once"
        assert there.level <= 4000 + 100 * (time.monotonic() - taken_at)


async def test_a_dead_gateway_holds_nothing(server: RedisServer) -> None:
    here, there = (Gateway(name, server.settings(**LOSES_SOON)) for name in ("here", "there"))
    async with sharing(there):
        async with sharing(here):
            await until(lambda: not here.is_alone)
            assert here.take(10, 8)
            await until(lambda: there.elsewhere == 8)
            assert not there.take(1, 3)
        await until(lambda: there.elsewhere == 0)
        assert there.take(1, 10)


async def test_a_wrong_password_is_named_and_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = tmp_path / "password"
    secret.write_text("not-the-one")
    with redis_server(tmp_path, "--requirepass", "the-one") as server:
        here = Gateway("here", server.settings(password={"file": str(secret)}))
        async with sharing(here):
            await until(lambda: told(caplog))
            assert here.take(10), "it serves all the same"
            assert "refuses our user name or password" in told(caplog)[0]
            secret.write_text("the-one")
            await until(lambda: not here.is_alone)
            secret.unlink()
            await asyncio.sleep(0.2)
            assert not here.is_alone, "a connection that stands needs no password"
    assert "not-the-one" not in caplog.text
    assert "the-one" not in caplog.text


async def test_no_password_at_all(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "the-one") as server:
        store = RedisStore(server.settings(), "g")
        with pytest.raises(StoreError, match=r"user name or password|[Aa]uthentication"):
            await store.exchange(Push(1, 0, 0, ()), 2.0)
        await store.close()
        store = RedisStore(server.settings(password={"env": "NOT_SET_ANYWHERE"}), "g")
        with pytest.raises(
            StoreError, match=r"redis.password: environment variable NOT_SET_ANYWHERE is not set"
        ):
            await store.exchange(Push(1, 0, 0, ()), 2.0)
        await store.close()


async def test_a_full_redis_takes_nothing_and_breaks_nothing(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    here = Gateway("here", server.settings(**LOSES_SOON))
    with server.client() as client:
        async with sharing(here):
            await until(lambda: not here.is_alone)
            client.config_set("maxmemory", "1")
            here.counters.account("t", "chat").charge(70.0)
            await until(lambda: here.is_alone)
            assert here.take(10)
            assert told(caplog)
            store = RedisStore(server.settings(), "g")
            with pytest.raises(StoreError, match="maxmemory"):
                await store.exchange(Push(1, 0, 0, (Told("t", 1.0),)), 2.0)
            await store.close()
            client.config_set("maxmemory", "0")
            await until(lambda: not here.is_alone)
            other = Gateway("other", server.settings())
            async with sharing(other):
                await until(lambda: other.counters.account("t", "chat").counter == 70.0)


async def test_tls_and_whom_it_trusts(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    stranger.cert_pem.write_to_path(tmp_path / "stranger.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    probe = RedisServer(tmp_path)
    arguments = ("--port", "0", "--tls-port", str(probe.port), "--tls-auth-clients", "no")
    files = ("--tls-cert-file", str(tmp_path / "server.pem"), "--tls-key-file", str(tmp_path / "server.pem"))
    server = RedisServer(tmp_path, *arguments, *files)
    server.port = probe.port
    server.start()
    try:
        good = RedisStore(server.settings(tls={"ca_file": str(tmp_path / "ca.pem")}), "g")
        assert (await good.exchange(Push(1, 0, 0, ()), 2.0)).is_new
        await good.close()
        bad = RedisStore(server.settings(tls={"ca_file": str(tmp_path / "stranger.pem")}), "g")
        with pytest.raises(StoreError, match="certificate"):
            await bad.exchange(Push(1, 0, 0, ()), 2.0)
        await bad.close()
        plain = RedisStore(server.settings(), "g")
        with pytest.raises(StoreError):
            await plain.exchange(Push(1, 0, 0, ()), 2.0)
        await plain.close()
    finally:
        server.kill()


async def test_what_redis_holds_is_bounded_and_expires(server: RedisServer) -> None:
    store = RedisStore(server.settings(), "g")
    for number in range(1, 61):
        changes = tuple(Told(f"t{number}-{i}", 1.0) for i in range(500))
        await store.exchange(Push(number, number - 1, 0, changes), 2.0)
    await store.close()
    with server.client(decode_responses=True) as client:
        keys = {key.rpartition(":")[2]: client.pttl(key) for key in client.scan_iter()}
        assert set(keys) == {"tenants", "changes", "gateways", "revision"}
        assert all(0 < left <= 86_400_000 for left in keys.values())
        assert client.hlen("{controlplane}:tenants") == client.zcard("{controlplane}:changes") <= 20_500


async def test_what_is_not_ours_is_an_error_and_not_a_crash(server: RedisServer) -> None:
    with server.client() as client:
        client.set("{controlplane}:tenants", "somebody else's")
        store = RedisStore(server.settings(), "g")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.exchange(Push(1, 0, 0, (Told("t", 1.0),)), 2.0)
        client.delete("{controlplane}:tenants")
        client.hset("{controlplane}:tenants", "t", b"\xff\xff")
        client.hset("{controlplane}:gateways", "other", b"\x01")
        await store.exchange(Push(1, 0, 0, (Told("t", 5.0),)), 2.0)
        (heard,) = (await store.exchange(Push(2, 1, 0, ()), 2.0)).tenants
        assert heard.counter == 5.0
        await store.close()


async def test_two_gateways_one_quota(server: RedisServer) -> None:
    """Requests of one tenant through two gateways: together no more than the quota."""
    shared = {
        "redis": {"address": server.address, "interval": "50ms", "timeout": "10s"},
        "admission": {"mode": "enforce", "other_tenants": {"tokens_per_minute": 300}},
    }
    engine, began = StandIn(), time.monotonic()
    async with (
        gateway(engine, **shared, name="a") as a,
        gateway(engine2 := StandIn(), **shared, name="b") as b,
    ):
        syncs = [rig.worker.tenant_sync for rig in (a, b)]
        await until(lambda: all(sync is not None and not sync.sync.is_alone for sync in syncs))
        statuses = []
        for i in range(40):
            response = await (a, b)[i % 2].ask(chat(False, max_tokens=85))
            statuses.append(response.status)
            await asyncio.sleep(0.12)  # longer than two exchanges take
        # Each is charged what the engine says, 14 tokens, and 5 a second are refilled; two may be under way
        # at once. Each by itself would have let in 15.
        assert statuses.count(200) <= (300 + 5 * (time.monotonic() - began)) / 14 + 2
        assert 429 not in statuses[:10]
        assert 429 in statuses
        assert await a.metric("sharing_workers") == 1.0
        assert await a.metric("sharing_failures_total") == 0.0
        assert engine.calls or engine2.calls


def test_two_processes_share_a_tenant_s_sequences(tmp_path: Path, server: RedisServer) -> None:
    """One of them is killed: what it had in flight is free again after its lease."""
    ports = free_ports(5)
    sim, engine = "h100-8b", ports[4]
    more = f"""
  admission: {{mode: enforce, other_tenants: {{sequences: 4}}}}
  redis: {{address: "{server.address}", interval: 100ms, timeout: 2s}}"""
    serve = ("simulate", "serve", "--engine", sim, "--port", str(engine), "--speed", "0.1")
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with running(tmp_path / "engine.log", *serve, url=f"http://127.0.0.1:{engine}/health"):
        started = []
        for i, folder in enumerate(folders):
            path = config(folder, ports[2 * i], ports[2 * i + 1], [engine], more)
            path.write_text(path.read_text().replace("name: gw", f"name: gw{i}"))
            url = f"http://127.0.0.1:{ports[2 * i]}/ready"
            process = running(folder / "log", "gateway", "-c", str(path), url=url, CONTROL_TOKEN=TOKEN)
            started.append(process)
        with started[0] as first, started[1]:
            asyncio.run(_use_up(ports, sim, first))


async def _use_up(ports: list[int], model: str, first: Any) -> None:
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 4000,
        "ignore_eos": True,  # so that what is held is held for minutes
        "messages": [{"role": "user", "content": "x"}],
    }
    held = []
    for _ in range(4):
        connection = await Connection.open(ports[0])
        connection.send(body)
        assert (await connection.head()).status == 200
        held.append(connection)

    async def through_the_other() -> int:
        connection = await Connection.open(ports[2])
        try:
            connection.send({**body, "max_tokens": 1, "stream": False})
            return (await asyncio.wait_for(connection.answer(), 60)).status
        finally:
            connection.close()

    async def until_the_other_says(status: int) -> None:
        async with asyncio.timeout(60):
            while await through_the_other() != status:  # noqa: ASYNC110 (it looks from outside)
                await asyncio.sleep(0.2)

    await until_the_other_says(429)
    assert b"sharing_workers 1" in await asyncio.to_thread(fetch, f"http://127.0.0.1:{ports[3]}/metrics")
    first.send_signal(signal.SIGKILL)
    await until_the_other_says(200)
    for connection in held:
        connection.close()
