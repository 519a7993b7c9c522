"""The simulated engine plans what vLLM's own scheduler plans, step by step, on random workloads.

Needs an environment with vLLM (`make test-real` makes one in var/). No model runs and no GPU is needed.
"""

import json
import os
import subprocess
from pathlib import Path
from random import Random

import msgspec
import pytest

from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Event, FirstToken, Preempted, Progress, Segment
from controlplane.simulator.settings import EngineSettings
from tests.simulator.test_engine_against_reference import LAW, Call, random_calls, random_settings, run

HERE = Path(__file__).parent
VAR = HERE.parents[1] / "var"
PYTHON = VAR / "vllm" / "bin" / "python"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON.is_file(), reason="no vLLM in var/vllm, which tests/real/install.sh makes"),
]

Told = tuple[float, str, str, int]


def workload(seed: int, *, shared: bool) -> tuple[EngineSettings, list[Call]]:
    """A random engine and its calls; prompts share beginnings only if `shared`."""
    rng = Random(seed)
    blocks = 320 // 16 + 1 + rng.choice([0, 2, 10, 100])
    settings = msgspec.structs.replace(random_settings(rng), block_size=16, num_gpu_blocks=blocks)
    calls = []
    for call in random_calls(rng):
        request = call.request
        if request is not None:
            # Generated tokens have no names here: vLLM would have to make the same ones.
            ends = [
                Segment(part.name, min(part.end_tokens, request.prompt_tokens)) for part in request.prefix
            ]
            request = msgspec.structs.replace(
                request, max_tokens=request.output_tokens, prefix=tuple(ends) if shared else ()
            )
        calls.append(Call(call.at, request, call.abort))
    return settings, calls


def simulated(settings: EngineSettings, calls: list[Call]) -> list[Told]:
    events: list[Event] = run(Engine(LAW, settings, progress=True), calls)
    told: list[Told] = []
    for event in events:
        if isinstance(event, Preempted):
            told.append((event.at, "preempted", event.request_id, 0))
        elif isinstance(event, FirstToken | Progress):
            told.append(
                (event.at, "token", event.request_id, event.generated if isinstance(event, Progress) else 1)
            )
    return told


def played_by_vllm(workloads: list[tuple[EngineSettings, list[Call]]]) -> list[list[Told]]:
    asked = [
        {
            "settings": msgspec.to_builtins(settings),
            "law": msgspec.structs.astuple(LAW),
            "calls": [
                {"at": call.at, "abort": call.abort}
                if call.request is None
                else {
                    "at": call.at,
                    "request": {
                        **msgspec.to_builtins(call.request),
                        "prefix": [(part.name, part.end_tokens) for part in call.request.prefix],
                    },
                }
                for call in calls
            ],
        }
        for settings, calls in workloads
    ]
    done = subprocess.run(
        [PYTHON, HERE / "vllm_scheduler.py", VAR / "model"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    events = json.loads(done.stdout.splitlines()[-1])
    return [[(at, what, name, number) for what, name, at, number in told] for told in events]


def differing(workloads: list[tuple[EngineSettings, list[Call]]]) -> tuple[list[int], int, int]:
    """Which workloads differ in any token's time or any preemption; tokens and preemptions in all."""

    def in_order(told: list[Told]) -> list[Told]:
        return sorted((round(at, 8), what, name, number) for at, what, name, number in told)

    mine = [simulated(settings, calls) for settings, calls in workloads]
    theirs = played_by_vllm(workloads)
    different = [
        number
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True))
        if in_order(one) != in_order(other)
    ]
    preempted = sum(what == "preempted" for told in mine for _, what, *_ in told)
    return different, sum(map(len, mine)) - preempted, preempted


def test_every_token_comes_when_vllm_would_give_it() -> None:
    """300 workloads: both policies, synchronous and asynchronous, with and without cache, short of
    everything."""
    different, tokens, preempted = differing([workload(seed, shared=False) for seed in range(300)])
    print(f"300 workloads, {tokens} tokens, {preempted} preemptions, {len(different)} differ")
    assert different == []
    assert tokens > 100_000
    assert preempted > 500


def test_shared_prefixes_differ_only_where_the_model_is_simpler() -> None:
    """Two sequences that compute the same named block at once keep one name here, two in vLLM (see
    blocks.py)."""
    different, tokens, preempted = differing([workload(seed, shared=True) for seed in range(1000, 1200)])
    print(f"200 workloads, {tokens} tokens, {preempted} preemptions, {len(different)} differ")
    assert len(different) <= 10
