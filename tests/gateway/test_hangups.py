"""10,000 clients and engines that hang up, reset, half-close or read slowly: nothing stays behind."""

import asyncio
import gc
import os
import random
import resource
from pathlib import Path

import pytest
from rig import Connection, Rig, chat, gateway, until
from standin import DONE, Call, StandIn, event_of

CLIENTS = 10_000
AT_ONCE = 100


async def unruly(call: Call) -> None:
    """An engine that ends its answers in any way there is."""
    dice = random.Random(call.body)
    body = event_of("x" * dice.choice((1, 50, 20_000)))
    if dice.random() < 0.1:
        call.fin() if dice.random() < 0.5 else call.reset()
        return
    if dice.random() < 0.1:
        call.whole(b'{"error":{"message":"no"}}', dice.choice(("500 No", "503 No", "400 No", "429 No")))
        return
    call.stream()
    for _ in range(dice.randrange(1, 30)):
        if call.is_closed.is_set():
            return
        call.chunk(body)
        await call.drain()
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() * 0.01)
    match dice.randrange(5):
        case 0:
            call.reset()
        case 1:
            call.fin()
        case _:
            call.chunk(event_of(finish_reason="stop") + DONE)
            call.last_chunk()


async def unruly_client(rig: Rig, dice: random.Random, number: int) -> None:
    client = await Connection.open(rig.port)
    try:
        messages = [{"role": "user", "content": f"{number} " + "y" * dice.choice((1, 5000))}]
        body = chat(dice.random() < 0.9, messages=messages)
        match dice.randrange(8):
            case 0:  # gone before the request is there
                client.writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 900\r\n\r\n{"
                )
                await client.writer.drain()
            case 1:  # gone at once
                client.send(body)
            case 2:  # half closed
                client.send(body)
                client.writer.write_eof()
                await asyncio.wait_for(client.reader.read(), 60)
            case 3:  # gone in the middle
                client.send(body)
                await asyncio.wait_for(client.reader.read(200), 60)
                await asyncio.sleep(dice.random() * 0.02)
            case 4:  # reads slowly, and not to the end
                client.reader._limit = 1024  # type: ignore[attr-defined]
                client.send(body, headers={"connection": "close"})
                for _ in range(5):
                    await asyncio.wait_for(client.reader.read(1000), 60)
                    await asyncio.sleep(dice.random() * 0.02)
            case 5:  # two requests at once, and gone
                client.send(body)
                client.send(body)
                await asyncio.wait_for(client.reader.read(100), 60)
            case _:  # as it should be
                client.send(body)
                await asyncio.wait_for(client.answer(), 60)
    except (OSError, EOFError, ValueError):
        pass
    finally:
        client.reset() if dice.random() < 0.5 else client.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def run(rig: Rig, engines: list[StandIn], count: int, seed: int) -> None:
    """So many clients, AT_ONCE at a time; the harness itself keeps nothing of them."""
    dice = random.Random(seed)
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(count, start + AT_ONCE))
        await asyncio.gather(*(unruly_client(rig, random.Random(dice.random()), i) for i in numbers))
        for engine in engines:
            engine.calls.clear()
    await until(lambda: not rig.worker.around.exchanges)
    await until(lambda: not rig.worker.server.busy)


async def hang_up(count: int, warm: int) -> tuple[int, int, int, int]:
    """Files and resident bytes before and after so many clients."""
    engines = [StandIn(unruly), StandIn(unruly)]
    # A breaker that opened would keep requests from the engines, and there would be nothing to see.
    admission = {
        "mode": "enforce",
        "breaker": {"in_a_row": 1_000_000, "failed_ratio": 1.0, "enough": 1_000_000},
    }
    async with gateway(*engines, admission=admission, upstream={"idle": "200ms"}) as rig:
        await run(rig, engines, warm, 1)
        await settled(rig)
        before = open_files(), resident_bytes()
        await run(rig, engines, count, 2)
        await settled(rig)
        after = open_files(), resident_bytes()
        for replica in rig.replicas.values():
            assert (replica.open_sequences, replica.reserved_tokens) == (0, 0)
        status = rig.worker.admission.status(rig.worker.around.door.now())
        assert (status.queued_requests, status.queued_tokens, status.claims) == (0, 0, 0)
        assert not rig.worker.around.door._waiting
        assert rig.worker.around.pool.open == 0
        ends = await rig.metric("requests_total")
        assert ends > count / 2
        cancelled = await rig.metric("requests_total", end="client_cancelled")
        assert cancelled > count / 20
    return before[0], after[0], before[1], after[1]


async def settled(rig: Rig) -> None:
    await until(lambda: rig.worker.around.pool.open == 0)
    await until(lambda: not rig.worker.server.connections)
    await asyncio.sleep(0.3)
    gc.collect()


async def test_three_hundred_unruly_clients() -> None:
    files_before, files_after, _, _ = await hang_up(300, 50)
    assert files_after <= files_before + 3


@pytest.mark.campaign
async def test_ten_thousand_unruly_clients() -> None:
    files_before, files_after, memory_before, memory_after = await hang_up(CLIENTS, 1500)
    print(
        f"files {files_before} -> {files_after}, resident {memory_before >> 20} -> {memory_after >> 20} MiB"
    )
    assert files_after <= files_before + 3
    assert memory_after <= memory_before + (16 << 20)
