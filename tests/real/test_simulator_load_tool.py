"""A public load tool, vLLM's own `vllm bench serve`, against the simulated server.

It is installed for the other tests of this folder anyway, and works offline with the tiny model's tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from simulator.http_fleet import Client, fleet

from controlplane.simulator.http.fleet import FleetSettings

REQUESTS, OUTPUT_TOKENS, RATE = 120, 60, 20.0
FLEET = FleetSettings("h100-8b", port=0, model="simulated", max_model_len=4096)
LIMIT_SECONDS = 300.0


async def bench(client: Client, venv: Path, tokenizer: Path, out: Path, *options: str) -> dict[str, Any]:
    """What the tool found."""
    process = await asyncio.create_subprocess_exec(
        venv / "bin" / "vllm", "bench", "serve", "--base-url", client.url, "--model", "simulated",
        "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", "200",
        "--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos", "--num-prompts", str(REQUESTS),
        "--request-rate", str(RATE), "--disable-tqdm", "--save-result", "--result-dir", out,
        "--result-filename", "result.json", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )  # fmt: skip
    try:
        said, _ = await asyncio.wait_for(process.communicate(), LIMIT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()[-2000:]
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


@pytest.mark.parametrize(
    "options",
    [
        ("--backend", "vllm"),
        ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
    ],
)
async def test_it_finds_what_the_engine_did(
    vllm_venv: Path, tiny_model: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    async with fleet(FLEET) as client:
        found = await bench(client, vllm_venv, tiny_model, tmp_path, *options)
        page = await client.samples()

    def mean_ms(name: str) -> float:
        return 1e3 * page(f"vllm:{name}_seconds_sum") / page(f"vllm:{name}_seconds_count")

    # Before it begins, the tool asks once to see whether the server is there.
    asked = page("vllm:request_success_total")
    assert asked in (REQUESTS, REQUESTS + 1)
    assert (found["completed"], found["failed"]) == (REQUESTS, 0)
    assert found["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
    assert page("vllm:generation_tokens_total") == asked * OUTPUT_TOKENS
    assert found["request_throughput"] == pytest.approx(RATE, rel=0.35)
    ttft, tpot = mean_ms("time_to_first_token"), mean_ms("request_time_per_output_token")
    print(f"\nTTFT {found['mean_ttft_ms']:.1f} ms, by the engine {ttft:.1f}", end="; ")
    print(f"TPOT {found['mean_tpot_ms']:.2f} ms, by the engine {tpot:.2f}")
    assert found["mean_tpot_ms"] == pytest.approx(tpot, rel=0.05)
    assert ttft <= found["mean_ttft_ms"] <= ttft + 100.0
