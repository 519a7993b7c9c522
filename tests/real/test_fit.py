"""Four constants of the step law, fitted on three points of a real vLLM, predict its other points.

The engine serves a model of 25 million random parameters, so that a step is bound by the model as on a GPU:
it reads the weights for some milliseconds and computes each token for a sixth of one. The tiny model of the
other tests would show Python's own time only. Fitted are `weights`, `token` and `host`, alone and with
`sequence`: what Python does for each sequence counts on some machines, and on others the fourth constant
fits noise.

What is measured are means of the engine's own histograms and counters between two looks, so no client's
clock is in it. The load generator shares the cores with the engine and needs less than a tenth of one. Every
point is measured in each of several rounds and the median taken: a machine that is slow for a while is so
for all points, and a hiccup is left out. No prompt comes twice and there is no prefix cache. Where the
machine changes its pace between rounds, points disagree and no law fits them: then all is measured again, up
to three times. A law that is wrong is so each time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.closed_loop import Point, Users, closed_loop
from benchmarks.fit import fit_loops
from controlplane.simulator.lengths import Lognormal
from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw

from .conftest import StartServer
from .load import Load, lognormal, run_load
from .server import BLOCK_TOKENS, ServerOptions, VllmServer, sample_sum

MODEL = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
SETTINGS = EngineSettings(
    num_gpu_blocks=100,
    max_model_len=1024,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    block_size=BLOCK_TOKENS,
    enable_prefix_caching=False,
    async_scheduling=False,  # vLLM has none on CPUs
)
OPTIONS = ServerOptions(
    blocks=SETTINGS.num_gpu_blocks,
    max_len=SETTINGS.max_model_len,
    max_seqs=SETTINGS.max_num_seqs,
    extra_args=(
        *("--hf-overrides", json.dumps(MODEL), "--load-format", "dummy", "--no-enable-prefix-caching"),
        *("--max-num-batched-tokens", str(SETTINGS.max_num_batched_tokens)),
    ),
)

PROMPT = Lognormal(median=120, sigma=0.15, largest=300)
ANSWER = Lognormal(median=30, sigma=0.4, largest=120)
LONG_ANSWER = Lognormal(median=160, sigma=0.3, largest=400)
FITTED = tuple(Users(count, PROMPT, ANSWER) for count in (1, 4, 16))
PREDICTED = tuple(Users(count, PROMPT, ANSWER) for count in (2, 8, 12, 24))
SHORT_OF_BLOCKS = Users(16, PROMPT, LONG_ANSWER)
"""Holds more than there are blocks, so the engine preempts."""

FREE = ("weights", "token", "host", "sequence")
ROUNDS = 3
TRIES = 3
WARM_SECONDS, WINDOW_SECONDS, LONG_WINDOW_SECONDS = 0.6, 1.6, 6.0
LIMIT = 0.15
TTFT, GAP = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"


async def look(server: VllmServer, users: Users, seconds: float, seed: int) -> Point:
    """Put the load on, let it settle, and take the engine's own means over a window."""
    load = Load(
        base_url=server.base_url,
        clients=users.count,
        seconds=WARM_SECONDS + seconds,
        prompt=_lengths(users.prompt),
        output=_lengths(users.output),
        usage_in_each_chunk=False,
        drain_seconds=0.0,
        seed=seed,
    )
    run = asyncio.create_task(run_load(load))
    await asyncio.sleep(WARM_SECONDS)
    began_at, before = time.monotonic(), await server.metrics()
    await asyncio.sleep(seconds)
    ended_at, after = time.monotonic(), await server.metrics()
    await run

    def grown(name: str) -> float:
        return sample_sum(after, name) - sample_sum(before, name)

    first_tokens = grown(f"{TTFT}_count")
    return Point(
        grown(f"{TTFT}_sum") / first_tokens,
        grown(f"{GAP}_sum") / grown(f"{GAP}_count"),
        grown("vllm:generation_tokens_total") / (ended_at - began_at),
        grown("vllm:num_preemptions_total") / first_tokens,
    )


async def measure(server: VllmServer) -> dict[Users, Point]:
    """All points, by number of users."""
    await look(server, FITTED[1], 1.0, seed=0)  # the first answers of all take long
    short = sorted((*FITTED, *PREDICTED), key=lambda users: users.count)
    looks: dict[Users, list[Point]] = {users: [] for users in short}
    for i in range(ROUNDS):
        for users in short:
            seed = 1000 * (i + 1) + users.count
            looks[users].append(await look(server, users, WINDOW_SECONDS, seed))
    measured = {users: _middle(points) for users, points in looks.items()}
    measured[SHORT_OF_BLOCKS] = await look(server, SHORT_OF_BLOCKS, LONG_WINDOW_SECONDS, seed=1)
    return measured


@dataclass(frozen=True)
class Comparison:
    """All points as a law has them, beside what was measured."""

    law: StepLaw
    measured: dict[Users, Point]
    simulated: dict[Users, Point]

    @classmethod
    def fitted(cls, measured: dict[Users, Point], free: Sequence[str]) -> Comparison:
        law = fit_loops({users: measured[users] for users in FITTED}, SETTINGS, free=free)
        simulated = {users: closed_loop(law, SETTINGS, users, rounds=40) for users in measured}
        return cls(law, measured, simulated)

    def errors(self, users: Users) -> list[float]:
        """Relative errors of TTFT, token gap and throughput."""
        pairs = zip(self.simulated[users][:3], self.measured[users][:3], strict=True)
        return [found / known - 1 for found, known in pairs]

    @property
    def middle_error(self) -> float:
        """The median over all points that no constant was fitted to."""
        return median(abs(e) for users in self.measured if users not in FITTED for e in self.errors(users))

    def table(self) -> str:
        law, row = self.law, "{:<20}{:>24}{:>24}{:>24}{:>24}"
        lines = [
            "a real vLLM, and the step law fitted to TTFT and token gap of "
            f"{', '.join(str(users.count) for users in FITTED)} users: weights {law.weights * 1e3:.2f} ms, "
            f"token {law.token * 1e6:.0f} us, host {law.host * 1e3:.2f} ms, "
            f"sequence {law.sequence * 1e6:.0f} us",
            row.format("users", "TTFT ms", "token gap ms", "tokens/s", "preemptions an answer"),
        ]
        for users, known in self.measured.items():
            found, errors = self.simulated[users], self.errors(users)
            cells = [
                f"{found[i] * unit:.4g} for {known[i] * unit:.4g} {errors[i]:+6.1%}"
                for i, unit in enumerate((1e3, 1e3, 1))
            ]
            kind = " (fitted)" if users in FITTED else ", long answers" * (users is SHORT_OF_BLOCKS)
            preempted = f"{found.preemptions_per_answer:.2f} for {known.preemptions_per_answer:.2f}"
            lines.append(row.format(f"{users.count}{kind}", *cells, preempted))
        lines.append(f"simulated for measured; median error of what was not fitted {self.middle_error:.1%}")
        return "\n".join(lines)


async def test_constants_from_three_points_predict_the_others(
    vllm_server: StartServer, tell: Callable[[str], None]
) -> None:
    server = await vllm_server(OPTIONS)
    for _ in range(TRIES):
        measured = await measure(server)
        compared = Comparison.fitted(measured, FREE)
        plain = Comparison.fitted(measured, FREE[:3])
        tell(f"{compared.table()}; with {', '.join(FREE[:3])} alone {plain.middle_error:.1%}")
        error = min(compared.middle_error, plain.middle_error)
        if error <= LIMIT:
            break
    assert error <= LIMIT
    assert measured[SHORT_OF_BLOCKS].preemptions_per_answer > 0.1
    assert compared.simulated[SHORT_OF_BLOCKS].preemptions_per_answer > 0.1


def _lengths(drawn: object) -> Callable[..., int]:
    """The load generator's own distribution of the same lengths."""
    assert isinstance(drawn, Lognormal)
    return lognormal(drawn.median, drawn.sigma, 1, drawn.largest)


def _middle(points: Sequence[Point]) -> Point:
    """The median of each figure."""
    return Point(*(median(figures) for figures in zip(*points, strict=True)))
