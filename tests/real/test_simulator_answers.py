"""The simulated server beside a real vLLM: the same questions get answers of the same shapes."""

from __future__ import annotations

import asyncio
import json

from simulator.http_questions import MAX_MODEL_LEN, RECORDED, shapes

from .conftest import StartServer
from .server import ServerOptions


async def test_the_recorded_shapes_are_those_of_a_real_vllm(vllm_server: StartServer) -> None:
    """What the fast tests compare the simulator with is still what vLLM says."""
    options = ServerOptions()
    assert options.max_len == MAX_MODEL_LEN
    server = await vllm_server(options)
    found = await asyncio.to_thread(shapes, server.base_url, options.model_name)
    recorded = json.loads(RECORDED.read_text())
    assert found.keys() == recorded.keys()
    for name, shape in found.items():
        assert recorded[name] == shape, name
