"""vLLM's own scheduler, driven through workloads with the step law as its only clock. Run by the Python of a
vLLM.

    python vllm_scheduler.py MODEL < workloads.json > events.json

No model runs: a step takes as long as the law says, and every sequence whose prefill ends in it or that
decodes gets a made-up token. The loop around the scheduler is that of vLLM's `EngineCore`: aborts, outputs,
new requests, the next schedule; with asynchronous scheduling one step is planned while another runs.
"""

import json
import os
import random
import sys
from dataclasses import dataclass, field
from math import hypot, inf
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

VOCABULARY = 32000


def scheduler(model: str, options: dict[str, Any]) -> Scheduler:
    """A scheduler with these options and a KV cache that nobody fills."""
    size, blocks, longest = options["block_size"], options["num_gpu_blocks"], options["max_model_len"]
    cache = CacheConfig(block_size=size, enable_prefix_caching=options["enable_prefix_caching"])
    config = VllmConfig(
        model_config=ModelConfig(model=model, max_model_len=longest, dtype="float32", seed=1),
        scheduler_config=SchedulerConfig(
            max_num_seqs=options["max_num_seqs"],
            max_num_batched_tokens=options["max_num_batched_tokens"],
            max_model_len=longest,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy=options["scheduling_policy"],
            watermark=options["watermark"],
            scheduler_reserve_full_isl=options["scheduler_reserve_full_isl"],
            async_scheduling=options["async_scheduling"],
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    cache.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    made = AsyncScheduler if options["async_scheduling"] else Scheduler
    return made(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        log_stats=True,
    )


def prompt(request: dict[str, Any]) -> list[int]:
    """Token ids: those of each segment follow from its name, the rest from the request's id."""
    ids: list[int] = []
    for name, end in request["prefix"]:
        rng = random.Random(name)
        ids += [rng.randrange(100, VOCABULARY // 2) for _ in range(end)][len(ids) : end]
    own = random.Random(f"own {request['id']}")
    size = request["prompt_tokens"]
    return ids[:size] + [own.randrange(VOCABULARY // 2, VOCABULARY) for _ in range(size - len(ids))]


@dataclass
class Step:
    output: Any
    samples: dict[str, bool]
    seconds: float


@dataclass
class EngineLoop:
    """One engine; `events` are (what, request, time, number of the token)."""

    sched: Scheduler
    law: list[float]
    ahead: bool
    hasher: Any
    events: list[tuple[str, str, float, int]] = field(default_factory=list)
    prefilling: set[str] = field(default_factory=set)
    told: dict[str, int] = field(default_factory=dict)
    running: Step | None = None
    ends: float = inf
    planned: Step | None = None

    def plan(self, now: float) -> Step | None:
        before = {name: request.status for name, request in self.sched.requests.items()}
        output = self.sched.schedule()
        self.events += [("preempted", name, now, 0) for name in output.preempted_req_ids or ()]
        tokens = context = 0
        pairs = 0.0
        samples = {}
        for name, count in output.num_scheduled_tokens.items():
            request = self.sched.requests[name]
            past = request.num_computed_tokens - count
            if before[name] != RequestStatus.RUNNING:
                self.prefilling.add(name)
            if name in self.prefilling:
                pairs += count * (past + count / 2)
            else:
                context += past + 1
            tokens += count
            samples[name] = not request.is_prefill_chunk
            if samples[name]:
                self.prefilling.discard(name)
        if not tokens:
            self.sched.update_from_output(output, ModelRunnerOutput([], {}, []))
            return None
        host, weights, token, kv_token, pair, sequence = self.law
        sampled = sum(samples.values())
        seconds = (
            host + hypot(weights, token * tokens) + sequence * sampled + kv_token * context + pair * pairs
        )
        return Step(output, samples, seconds)

    def come_out(self, step: Step, now: float) -> None:
        names = list(step.samples)
        tokens = [[random.randrange(100)] if samples else [] for samples in step.samples.values()]
        places = {name: place for place, name in enumerate(names)}
        made = self.sched.update_from_output(step.output, ModelRunnerOutput(names, places, tokens))
        for outputs in made.values():
            for output in outputs.outputs:
                self.told[output.request_id] = self.told.get(output.request_id, 0) + 1
                self.events.append(("token", output.request_id, now, self.told[output.request_id]))

    def add(self, request: dict[str, Any], now: float) -> None:
        parameters = SamplingParams(max_tokens=request["output_tokens"], ignore_eos=True)
        self.sched.add_request(
            Request(
                request["id"],
                prompt(request),
                parameters,
                None,
                arrival_time=now,
                priority=request["priority"],
                block_hasher=self.hasher,
            )
        )

    def begin(self, now: float) -> None:
        step, self.planned = self.planned, None
        while step is None and self.sched.has_requests():
            told = len(self.events)
            step = self.plan(now)
            if len(self.events) == told and not self.sched.has_unfinished_requests():
                break
        self.running = step
        if step is not None:
            self.ends = now + step.seconds
            if self.ahead and self.sched.has_requests():
                self.planned = self.plan(now)

    def play(self, calls: list[dict[str, Any]]) -> None:
        """Go through all calls, each {"at", "request"} or {"at", "abort"}, in order of time."""
        calls = calls[::-1]
        while self.running is not None or calls:
            now = self.ends if self.running is not None else calls[-1]["at"]
            due = []
            while calls and calls[-1]["at"] <= now:
                due.append(calls.pop())
            gone = {call["abort"] for call in due if "abort" in call}
            self.sched.finish_requests(gone & self.sched.requests.keys(), RequestStatus.FINISHED_ABORTED)
            if self.running is not None:
                self.come_out(self.running, now)
            for call in due:
                if "request" in call and call["request"]["id"] not in gone:
                    self.add(call["request"], call["at"])
            self.begin(now)


def main() -> None:
    init_none_hash(sha256)
    played = []
    for workload in json.load(sys.stdin):
        options = workload["settings"]
        caching = options["enable_prefix_caching"]
        engine = EngineLoop(
            scheduler(sys.argv[1], options),
            workload["law"],
            options["async_scheduling"],
            get_request_block_hasher(options["block_size"], sha256) if caching else None,
        )
        engine.play(workload["calls"])
        played.append(engine.events)
    json.dump(played, sys.stdout)


if __name__ == "__main__":
    main()
