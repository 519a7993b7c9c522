"""A simulated engine under users who always have one request each, as load tools measure engines."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from controlplane.simulator.clients import Clients, Send
from controlplane.simulator.counters import EngineCounters
from controlplane.simulator.engine import Engine
from controlplane.simulator.lengths import Lengths
from controlplane.simulator.request import Finished
from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw
from controlplane.simulator.workload import ClosedLoop, Source


class Point(NamedTuple):
    """A closed loop in its steady state: mean TTFT, mean gap between tokens, output tokens a second, and how
    often an answer is preempted."""

    ttft_seconds: float
    gap_seconds: float
    tokens_per_second: float
    preemptions_per_answer: float


@dataclass(frozen=True, slots=True)
class Users:
    """So many users; each asks again as soon as the answer is there."""

    count: int
    prompt: Lengths
    output: Lengths


def closed_loop(
    law: StepLaw, settings: EngineSettings, users: Users, *, rounds: int = 10, seed: int = 1
) -> Point:
    """What the engine's own counters show over `rounds` - 1 answers a user.

    The first round is left out: in it all begin at once.
    """
    engine = Engine(law, settings)
    source = Source("users", ClosedLoop(users.count), users.prompt, users.output)
    clients = Clients([source], np.random.default_rng(seed), until=1e9)
    finished, first = 0, _Reading(engine.counters, 0.0)
    while finished < users.count * rounds:
        now = min(clients.next_event_time(), engine.next_event_time())
        for action in clients.advance(now):
            if isinstance(action, Send):
                engine.submit(action.request, now)
        for event in engine.advance(now):
            if isinstance(event, Finished):
                finished += 1
                clients.finished(event.request_id, now)
                if finished == users.count:
                    first = _Reading(engine.counters, now)
    return _Reading(engine.counters, now).since(first)


class _Reading:
    """The counters of an engine at one time."""

    def __init__(self, counters: EngineCounters, now: float) -> None:
        counters.settle()
        self.at = now
        self.ttft = (counters.ttft.total, sum(counters.ttft.counts))
        self.gaps = (counters.itl.total, sum(counters.itl.counts))
        self.tokens = counters.generation_tokens
        self.preemptions = counters.preemptions

    def since(self, first: "_Reading") -> Point:
        def mean(now: tuple[float, int], then: tuple[float, int]) -> float:
            return (now[0] - then[0]) / (now[1] - then[1])

        return Point(
            mean(self.ttft, first.ttft),
            mean(self.gaps, first.gaps),
            (self.tokens - first.tokens) / (self.at - first.at),
            (self.preemptions - first.preemptions) / (self.ttft[1] - first.ttft[1]),
        )
