"""A real vLLM behind the gateway: the SDKs of OpenAI and Anthropic, hang-ups, refusals inside a 200."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from gateway.processes import config, free_ports, running

from .conftest import StartServer
from .server import ServerOptions, VllmServer, sample_sum

TOOL_ARGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
MESSAGES: Any = [{"role": "user", "content": "Say something nice to me."}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
            },
        },
    }
]


@contextlib.asynccontextmanager
async def behind_gateway(
    server: VllmServer, folder: Path, settings: str = ""
) -> AsyncIterator[tuple[str, str]]:
    """The public and the control address of a gateway before this server."""
    listen, control = free_ports(2)
    path = config(folder, listen, control, [server.port], settings)
    public = f"http://127.0.0.1:{listen}"
    process = running(
        *(folder / "gateway.log", "gateway", "-c", str(path)), url=f"{public}/ready", CONTROL_TOKEN="t"
    )
    await asyncio.to_thread(process.__enter__)
    try:
        yield public, f"http://127.0.0.1:{control}"
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)


async def test_the_official_clients(vllm_server: StartServer, tmp_path: Path) -> None:
    server = await vllm_server(ServerOptions(extra_args=TOOL_ARGS))
    model = server.options.model_name
    async with behind_gateway(server, tmp_path, "  admission: {mode: enforce}") as (public, control):
        async with openai.AsyncOpenAI(base_url=f"{public}/v1", api_key="x", max_retries=0) as client:
            assert [each.id async for each in client.models.list()] == [model]
            whole = await client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16)
            assert whole.usage is not None
            assert whole.usage.completion_tokens <= 16
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model=model, messages=MESSAGES, max_tokens=16, stream=True
                )
            ]
            assert all(chunk.choices for chunk in chunks)
            assert all(chunk.usage is None for chunk in chunks)
            counted = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model=model,
                    messages=MESSAGES,
                    max_tokens=16,
                    stream=True,
                    stream_options={"include_usage": True},
                )
            ]
            assert counted[-1].usage is not None
            for choice in ("auto", "none"):
                tooled = await client.chat.completions.create(
                    model=model, messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=16
                )
                assert tooled.choices[0].finish_reason in ("stop", "length", "tool_calls")
            forced = await client.chat.completions.create(
                model=model,
                messages=MESSAGES,
                tools=TOOLS,
                tool_choice={"type": "function", "function": {"name": "look_up"}},
                max_tokens=64,
            )
            assert forced.choices[0].message.tool_calls
            text = await client.completions.create(model=model, prompt="Once", max_tokens=8, n=2)
            assert len(text.choices) == 2
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(
                    model=model, messages=MESSAGES, max_tokens=16, temperature=-5.0
                )
            response = await client.responses.create(
                model=model, input="Say something.", max_output_tokens=16
            )
            assert response.usage is not None
            events = [
                event.type
                async for event in await client.responses.create(
                    model=model, input="Say something.", max_output_tokens=16, stream=True
                )
            ]
            assert events[-1] in ("response.completed", "response.incomplete")
        async with anthropic.AsyncAnthropic(base_url=public, api_key="x", max_retries=0) as claude:
            message = await claude.messages.create(model=model, max_tokens=16, messages=MESSAGES)
            assert message.usage.output_tokens <= 16
            async with claude.messages.stream(model=model, max_tokens=16, messages=MESSAGES) as stream:
                final = await stream.get_final_message()
            assert final.stop_reason
            tool: Any = [{"name": "look_up", "input_schema": TOOLS[0]["function"]["parameters"]}]
            message = await claude.messages.create(model=model, max_tokens=16, messages=MESSAGES, tools=tool)
            assert message.stop_reason
        page = await asyncio.to_thread(fetch, f"{control}/metrics")
        ends = Counter[str]()
        for line in page.splitlines():
            if line.startswith("controlplane_gateway_requests_total"):
                ends[line.split('end="')[1].split('"')[0]] += int(float(line.rsplit(" ", 1)[1]))
        assert ends == {"finished": 12, "client_error": 1}


async def test_clients_that_hang_up_end_the_engines_work(vllm_server: StartServer, tmp_path: Path) -> None:
    server = await vllm_server()
    async with behind_gateway(server, tmp_path) as (public, control), aiohttp.ClientSession() as session:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}
        answers = [await session.post(f"{public}/v1/completions", json=body) for _ in range(8)]
        for answer in answers:
            await answer.content.readany()
        assert sample_sum(await server.metrics(), "vllm:num_requests_running") > 0
        for answer in answers:
            answer.close()
        async with asyncio.timeout(60):
            while sample_sum(await server.metrics(), "vllm:num_requests_running"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        page = await asyncio.to_thread(fetch, f"{control}/metrics")
        assert 'end="client_cancelled"} 8.0' in page
        name = "controlplane_gateway_replica_in_flight"
        (in_flight,) = [line for line in page.splitlines() if line.startswith(name)]
        assert in_flight.endswith(" 0.0")


async def test_refusals_inside_a_200_become_real_ones(vllm_server: StartServer, tmp_path: Path) -> None:
    """Of 60 streams at once, vLLM with a queue of 4 refuses many with status 200 and an error event."""
    server = await vllm_server(ServerOptions(extra_args=("--max-num-queued-reqs", "4")))

    async def outcome(session: aiohttp.ClientSession, url: str) -> str:
        body = {
            "model": "tiny",
            "messages": MESSAGES,
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": True,
        }
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            text = await answer.text()
            return f"{answer.status} {'error' if json_errors(text) else 'good'}"

    async def burst(url: str) -> Counter[str]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            return Counter(await asyncio.gather(*(outcome(session, url) for _ in range(60))))

    async with behind_gateway(server, tmp_path) as (public, _):
        direct = await burst(server.base_url)
        through = await burst(public)
    assert direct["200 error"] > 0, direct
    assert through["200 error"] == 0, through
    assert through["503 error"] > 0
    assert through["200 good"] > 0


def json_errors(text: str) -> list[object]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: {", "{"))]
    return [document for line in lines if (document := json.loads(line)).get("error")]


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
    return text
