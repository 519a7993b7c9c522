"""What admission says of a request agrees with what a real vLLM makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.gateway.admission.body_edit import read_body, with_limits, with_stream_usage
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.output_size import OutputCeiling, OutputSettings, output_size
from controlplane.gateway.admission.prompt_size import PromptSize, prompt_size
from controlplane.gateway.admission.size_calibration import SizeCalibration
from controlplane.gateway.admission.tokenize_call import counted_tokens, tokenize_call
from controlplane.gateway.admission.usage import Usage, read_usage
from controlplane.gateway.tokenizer import ModelTokenizer

from .conftest import StartServer

JSON = {"Content-Type": "application/json"}
TEXT = "The queue drains a token at a time – naïvely, 漢字 and 🙂 too.\n\tIs that so? "
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def turn(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


PROMPTS: list[tuple[Endpoint, dict[str, Any]]] = [
    (Endpoint.COMPLETIONS, {"prompt": TEXT}),
    (Endpoint.COMPLETIONS, {"prompt": [TEXT, "two"]}),
    (Endpoint.COMPLETIONS, {"prompt": [5, 6, 7, 8]}),
    (Endpoint.COMPLETIONS, {"prompt": [[5, 6, 7], [8, 9]]}),
    (Endpoint.COMPLETIONS, {"prompt": TEXT, "add_special_tokens": False}),
    (Endpoint.CHAT, {"messages": [turn("user", TEXT)]}),
    (
        Endpoint.CHAT,
        {"messages": [turn("system", "Be brief."), turn("user", TEXT), turn("assistant", "No.")]},
    ),
    (Endpoint.CHAT, {"messages": [turn("user", TEXT)], "add_generation_prompt": False}),
    (
        Endpoint.CHAT,
        {"messages": [turn("user", [{"type": "text", "text": TEXT}, {"type": "text", "text": "b"}])]},
    ),
    (
        Endpoint.CHAT,
        {
            "messages": [
                turn("user", "weather in Oslo?"),
                turn("assistant", None, tool_calls=[CALL]),
                turn("tool", "4 C, rain", tool_call_id="t1"),
            ],
            "tools": [TOOL],
            "tool_choice": "none",
        },
    ),
    (Endpoint.CHAT, {"messages": [{"role": "assistant"}]}),
]


def size_of(endpoint: Endpoint, body: dict[str, Any], model: Path) -> PromptSize:
    return prompt_size(
        endpoint,
        body,
        len(json.dumps(body)),
        tenant="acme",
        calibration=SizeCalibration(),
        tokenizer=ModelTokenizer.load(model),
    )


async def answer(base_url: str, path: str, raw: bytes) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.post(base_url + path, data=raw, headers=JSON) as response,
    ):
        fields = json.loads(await response.read())
        assert response.status == 200, fields
        assert isinstance(fields, dict)
        return fields


async def usage(base_url: str, endpoint: Endpoint, body: dict[str, Any], **limits: Any) -> Usage:
    raw = json.dumps({"model": "tiny", **body, **limits}).encode()
    used = read_usage((await answer(base_url, endpoint, raw))["usage"])
    assert used is not None
    return used


@pytest.mark.parametrize(("endpoint", "body"), PROMPTS)
async def test_prompt_tokens_are_those_of_the_engine(
    vllm_server: StartServer, tiny_model: Path, endpoint: Endpoint, body: dict[str, Any]
) -> None:
    server = await vllm_server()
    size = size_of(endpoint, body, tiny_model)
    used = await usage(server.base_url, endpoint, body, max_tokens=2)
    assert size.tokens == used.prompt_tokens
    assert size.exact or body.get("tools")
    call = tokenize_call(endpoint, {"model": "tiny", **body})
    if call is not None:
        counted = await answer(server.base_url, call.path, call.body)
        assert counted_tokens(json.dumps(counted).encode()) == used.prompt_tokens


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.MESSAGES, {"system": "Be brief.", "messages": [turn("user", TEXT)], "max_tokens": 2}),
        (Endpoint.RESPONSES, {"instructions": "Be brief.", "input": TEXT, "max_output_tokens": 2}),
    ],
)
async def test_rewritten_endpoints_are_near(
    vllm_server: StartServer, tiny_model: Path, endpoint: Endpoint, body: dict[str, Any]
) -> None:
    server = await vllm_server()
    used = await usage(server.base_url, endpoint, body)
    size = size_of(endpoint, body, tiny_model)
    assert not size.exact
    assert size.tokens == pytest.approx(used.prompt_tokens, abs=10)


@pytest.mark.parametrize("value", [20, "20", " 20 ", 20.0, "20.0", True])
async def test_limits_are_read_as_the_engine_reads_them(vllm_server: StartServer, value: Any) -> None:
    server = await vllm_server()
    body = {"messages": [turn("user", "hi")], "max_tokens": value, "ignore_eos": True}
    read = output_size(Endpoint.CHAT, body, OutputSettings(), OutputCeiling(), None)
    used = await usage(server.base_url, Endpoint.CHAT, body)
    assert read.cap_tokens == read.tokens == used.completion_tokens


async def test_which_limit_holds(vllm_server: StartServer) -> None:
    server = await vllm_server()
    for endpoint, body in (
        (Endpoint.CHAT, {"messages": [turn("user", "hi")], "max_completion_tokens": 5, "max_tokens": 30}),
        (Endpoint.CHAT, {"messages": [turn("user", "hi")], "max_completion_tokens": None, "max_tokens": 30}),
        (Endpoint.COMPLETIONS, {"prompt": "hi"}),
        (Endpoint.COMPLETIONS, {"prompt": "hi", "max_tokens": None}),
        (Endpoint.COMPLETIONS, {"prompt": "hi", "max_completion_tokens": 5}),
    ):
        read = output_size(endpoint, body, OutputSettings(), OutputCeiling(), None)
        used = await usage(server.base_url, endpoint, body, ignore_eos=True)
        assert read.cap_tokens == used.completion_tokens, body


async def test_edited_bodies_do_what_was_meant(vllm_server: StartServer) -> None:
    server = await vllm_server()
    raw = (
        b'\xef\xbb\xbf{ "model": "tiny", "max_tok\\u0065ns": 3,'
        b' "messages": [{"role": "user", "content": "hi"}], "ignore_eos": true,'
        b' "stream": true, "max_tokens": 900\n}'
    )
    document = read_body(raw)
    assert isinstance(document, dict)
    edited = with_stream_usage(with_limits(raw, document, {"max_tokens": 7}), document)
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.post(server.base_url + Endpoint.CHAT, data=edited, headers=JSON) as response,
    ):
        assert response.status == 200, await response.text()
        events = [line[6:] async for line in response.content if line.startswith(b"data: {")]
    used = read_usage(json.loads(events[-1])["usage"])
    assert used is not None
    assert used.completion_tokens == 7
