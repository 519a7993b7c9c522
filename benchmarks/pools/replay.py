"""Requests of a trace through the gateway's own admission onto simulated engines, in virtual time.

What a real gateway knows is what admission is told: exact prompts (the model's tokenizer), an output size by
one of several rules, and tokens once a second. An answer that comes to the end of its engine's context is
cut, as vLLM does it.
"""

from array import array
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import msgspec
import numpy as np

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.output_quantile import OutputKey, OutputQuantiles
from controlplane.gateway.admission.replica import ReplicaSpec
from controlplane.gateway.admission.request import Request
from controlplane.gateway.admission.settings import AdmissionSettings, ClassSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Refused, Verdict
from controlplane.policy.boundary.law import Boundary, BoundaryState
from controlplane.policy.boundary.pair import PoolPair
from controlplane.policy.boundary.seen import PairWindow, Room, pool_seen
from controlplane.policy.limits.law import UNLIMITED
from controlplane.signals.decision import Mode
from controlplane.signals.reading import Known
from controlplane.signals.snapshot import Load
from controlplane.simulator.constants import EngineModel
from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Finished, FirstToken, Preempted
from controlplane.simulator.request import Request as EngineRequest
from controlplane.simulator.timeline import Timeline
from controlplane.simulator.trace import TraceRow

TTFT_SECONDS, TPOT_SECONDS = 2.5, 0.05
_KEY = OutputKey("t", Endpoint.CHAT)
_UNLEARNED_TOKENS = 512


class Group(NamedTuple):
    """Like replicas of one pool. `slots` is the gateway's limit for each (None: none); with `reserves` the
    gateway knows their KV cache, times `overcommit`."""

    pool: str
    replicas: int
    context_tokens: int
    slots: int | None = None
    reserves: bool = True
    overcommit: float = 1.0


class Sizing(NamedTuple):
    """What is known of an output before it is written: the `learned` quantile, at most what the client states
    (`stated` times what it will be, None: it states nothing), or all (`oracle`)."""

    oracle: bool = False
    learned: bool = True
    stated: float | None = None


LEARNED = Sizing()


class Pooled(NamedTuple):
    """Of the requests that ran in one pool, or of one size wherever they ran."""

    finished: int
    ttft_p50_seconds: float
    ttft_p99_seconds: float
    tpot_p99_seconds: float
    good_ratio: float
    preempted_per_1000: float


class Outcome(NamedTuple):
    """Of the measured part of a run: by pool, and of the `short` and `long` requests by real size. KV usage
    is the P95 over engines and seconds."""

    engines: int
    offered: int
    finished: int
    refused: int
    cut: int
    spilled: int
    good_ratio: float
    preempted_per_1000: float
    kv_usage: float
    pools: dict[str, Pooled]
    sizes: dict[str, Pooled]
    boundaries: list[tuple[float, int, str]]


class _Live:
    __slots__ = ("at", "first_at", "first_step", "output", "place", "preempted", "row", "ticket")

    def __init__(self, row: TraceRow) -> None:
        self.row = row
        self.at = row.at
        self.output = row.output_tokens
        self.ticket: Ticket | None = None
        self.place = -1
        self.first_at = -1.0
        self.first_step = -1
        self.preempted = 0


class _Tally:
    def __init__(self) -> None:
        self.ttft, self.tpot = array("d"), array("d")
        self.good = self.preempted = 0

    def add(self, live: _Live, tpot: float) -> bool:
        ttft = live.first_at - live.at
        self.ttft.append(ttft)
        self.tpot.append(tpot)
        self.preempted += live.preempted
        good = ttft <= TTFT_SECONDS and tpot <= TPOT_SECONDS
        self.good += good
        return good

    def pooled(self) -> Pooled:
        count = len(self.ttft)
        if not count:
            return Pooled(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p99 = np.percentile(self.ttft, (50, 99)).tolist()
        return Pooled(
            count,
            p50,
            p99,
            float(np.percentile(self.tpot, 99)),
            self.good / count,
            1000 * self.preempted / count,
        )


class Replay:
    """One run. `part_tokens` tells short from long requests by real size, whatever is routed."""

    def __init__(
        self,
        rows: Sequence[TraceRow],
        engine: EngineModel,
        groups: Sequence[Group],
        *,
        part_tokens: int,
        boundary: int | None = None,
        sizing: Sizing = LEARNED,
        warmup: float = 60.0,
        law: Boundary | None = None,
        law_seconds: float = 10.0,
        seed: int = 1,
    ) -> None:
        self._rows = rows
        self._warmup = warmup
        self._part = part_tokens
        self._sizing = sizing
        self._law, self._law_seconds = law, law_seconds
        self._groups = [group for group in groups for _ in range(group.replicas)]
        self._engines = [_engine(engine, group) for group in self._groups]
        self._names = [f"{group.pool}-{i}" for i, group in enumerate(self._groups)]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._timeline = Timeline(self._engines)
        self._outputs = OutputQuantiles()
        rng = np.random.default_rng(seed)
        self._draw: Callable[[], float] = rng.random
        pair = None if boundary is None else PoolPair(short="short", long="long", boundary=boundary)
        self._state: BoundaryState | None = None if law is None or boundary is None else law.start(boundary)
        objective = ClassSettings.model_construct(ttft=TTFT_SECONDS, tpot=TPOT_SECONDS)
        settings = AdmissionSettings(mode=Mode.ENFORCE, interactive=objective, pools=pair)
        self._admission = Admission(settings, gateway="replay", now=0.0)
        self._kv = engine.settings.kv_tokens
        self._tell_replicas()
        self._lives: dict[str, _Live] = {}
        self._waiting: dict[int, _Live] = {}
        self._tallies = {name: _Tally() for name in sorted({group.pool for group in self._groups})}
        self._sizes = {"short": _Tally(), "long": _Tally()}
        self._offered = self._finished = self._refused = self._cut = self._good = self._preempted = 0
        self._kv_usage = array("d")
        self._boundaries: list[tuple[float, int, str]] = []
        self._told_at = 0.0
        self._preemptions = [0] * len(self._engines)

    def go(self) -> Outcome:
        """Run to the last arrival; what has not ended by then is not counted."""
        rows = iter(self._rows)
        row = next(rows, None)
        end = self._rows[-1].at
        second, poll_at, law_at = 1.0, inf, self._law_seconds
        while row is not None:
            now = min(row.at, self._timeline.next_time(), second, poll_at)
            if now > end:
                break
            if now == row.at:
                self._offer(row, now)
                row = next(rows, None)
            elif now == second:
                self._each_second(now)
                second += 1.0
                if self._state is not None and now >= law_at:
                    law_at += self._law_seconds
                    self._observe(now)
            else:
                for place in self._timeline.due(now):
                    self._step(place, now)
                self._poll(now)
            poll_at = self._admission.next_poll_at(now)
        return self._outcome()

    # -- requests

    def _offer(self, row: TraceRow, now: float) -> None:
        live = _Live(row)
        self._offered += now >= self._warmup
        self._obey(self._admission.offer(self._request(live), now, self._draw()), live, now)

    def _request(self, live: _Live) -> Request:
        row, sizing = live.row, self._sizing
        stated = None if sizing.stated is None else max(1, round(row.output_tokens * sizing.stated))
        if sizing.oracle:
            likely = row.output_tokens
        else:
            learned = self._outputs.learned_tokens(_KEY) if sizing.learned else None
            likely = learned or stated or _UNLEARNED_TOKENS
            likely = likely if stated is None else min(likely, stated)
        return Request(
            tenant="t",
            prompt_tokens=row.prompt_tokens,
            output_tokens=likely,
            most_output_tokens=stated,
            prompt_exact=True,
        )

    def _obey(self, verdict: Verdict, live: _Live, now: float) -> None:
        if isinstance(verdict, Refused):
            self._refused += live.at >= self._warmup
            return
        live.ticket = verdict.ticket
        if isinstance(verdict, Admitted):
            self._send(live, self._places[verdict.replica], now)
        else:
            self._waiting[verdict.ticket.id] = live

    def _send(self, live: _Live, place: int, now: float) -> None:
        row, engine = live.row, self._engines[place]
        room = engine.settings.max_model_len - row.prompt_tokens
        if room < live.output:
            live.output = max(1, room)
            self._cut += live.at >= self._warmup
        assert live.ticket is not None
        name = str(live.ticket.id)
        live.place = place
        self._lives[name] = live
        engine.submit(EngineRequest(name, row.prompt_tokens, live.output), now)
        self._timeline.changed(place)

    def _poll(self, now: float) -> None:
        for verdict in self._admission.poll(now):
            assert verdict.ticket is not None
            self._obey(verdict, self._waiting.pop(verdict.ticket.id), now)

    def _step(self, place: int, now: float) -> None:
        engine = self._engines[place]
        for event in engine.advance(now):
            if isinstance(event, FirstToken):
                live = self._lives[event.request_id]
                live.first_at, live.first_step = now, engine.counters.steps
                assert live.ticket is not None
                self._admission.tokens(live.ticket, 1, now)
            elif isinstance(event, Finished):
                self._end(self._lives.pop(event.request_id), event, now)
            elif isinstance(event, Preempted):
                live = self._lives[event.request_id]
                live.preempted += 1
                live.first_step = -1  # its steps do not count its tokens any more
                self._preemptions[place] += 1
                self._preempted += now >= self._warmup
        self._timeline.changed(place)

    def _end(self, live: _Live, event: Finished, now: float) -> None:
        ticket = live.ticket
        assert ticket is not None
        self._admission.tokens(ticket, event.output_tokens - ticket.output_tokens, now)
        self._admission.finished(ticket, now, Usage(event.prompt_tokens, event.output_tokens))
        self._outputs.learn(_KEY, event.output_tokens)
        if live.at < self._warmup:
            return
        self._finished += 1
        row = live.row
        self._good += self._tallies[self._groups[live.place].pool].add(live, event.tpot_seconds)
        size = "short" if row.prompt_tokens + row.output_tokens <= self._part else "long"
        self._sizes[size].add(live, event.tpot_seconds)

    # -- what is told

    def _tell_replicas(self) -> None:
        specs, limits, overcommit = [], {}, {}
        for name, group in zip(self._names, self._groups, strict=True):
            specs.append(
                ReplicaSpec(
                    name=name,
                    pool=group.pool,
                    kv_tokens=self._kv if group.reserves else None,
                    max_model_len=group.context_tokens,
                )
            )
            limits[name] = float(group.slots or UNLIMITED)
            overcommit[name] = group.overcommit
        self._admission.set_replicas(specs, 0.0)
        self._admission.set_limits(limits, overcommit, 0.0)

    def _each_second(self, now: float) -> None:
        for live in self._lives.values():
            if live.first_step >= 0:
                assert live.ticket is not None
                steps = self._engines[live.place].counters.steps
                there = min(1 + steps - live.first_step, live.output - 1)
                self._admission.tokens(live.ticket, there - live.ticket.output_tokens, now)
        if now >= self._warmup:
            self._kv_usage.extend(engine.kv_usage for engine in self._engines)
        self._poll(now)

    def _observe(self, now: float) -> None:
        """The daemon's part: one window for the law, its boundary for the gateway."""
        assert self._law is not None
        assert self._state is not None
        windows = self._admission.windows(now)
        seen = [
            pool_seen(
                [window for window in windows if window.pool == pool],
                [
                    Room(
                        float(group.slots or engine.settings.max_num_seqs),
                        self._kv * group.overcommit if group.reserves else None,
                        group.context_tokens,
                    )
                    for group, engine in zip(self._groups, self._engines, strict=True)
                    if group.pool == pool
                ],
                self._load(pool, now),
                now,
            )
            for pool in ("short", "long")
        ]
        before = self._state.tokens
        self._state = self._law.observe(self._state, PairWindow(self._told_at, now, *seen))
        self._told_at = now
        self._admission.set_boundary(self._state.tokens)
        if self._state.tokens != before:
            self._boundaries.append((now, self._state.tokens, self._state.detail))

    def _load(self, pool: str, now: float) -> Load:
        """What scrapes of the pool's engines would show."""
        places = [i for i, group in enumerate(self._groups) if group.pool == pool]
        engines = [self._engines[i] for i in places]

        def known(value: float) -> Known[float]:
            return Known(value, now)

        usages = [engine.kv_usage for engine in engines]
        preempted = sum(self._preemptions[i] for i in places)
        for i in places:
            self._preemptions[i] = 0
        return Load(
            running=known(float(sum(engine.counters.running for engine in engines))),
            waiting=known(float(sum(engine.counters.waiting for engine in engines))),
            waiting_tokens=known(0.0),
            kv_usage=known(max(usages)),
            kv_usage_mean=known(sum(usages) / len(usages)),
            prompt_tokens_per_second=known(0.0),
            generation_tokens_per_second=known(0.0),
            requests_per_second=known(0.0),
            preemptions_per_second=known(preempted / self._law_seconds),
            prefix_hit_ratio=known(0.0),
        )

    def _outcome(self) -> Outcome:
        finished = max(1, self._finished)
        return Outcome(
            engines=len(self._engines),
            offered=self._offered,
            finished=self._finished,
            refused=self._refused,
            cut=self._cut,
            spilled=self._admission.status(self._rows[-1].at).counts["spilled"],
            good_ratio=self._good / max(1, self._finished + self._refused),
            preempted_per_1000=1000 * self._preempted / finished,
            kv_usage=float(np.percentile(self._kv_usage, 95)) if self._kv_usage else 0.0,
            pools={name: tally.pooled() for name, tally in self._tallies.items()},
            sizes={name: tally.pooled() for name, tally in self._sizes.items()},
            boundaries=self._boundaries,
        )


def _engine(model: EngineModel, group: Group) -> Engine:
    settings = msgspec.structs.replace(
        model.settings,
        max_model_len=group.context_tokens,
        max_num_seqs=min(model.max_num_seqs, group.slots or model.max_num_seqs),
        enable_prefix_caching=False,
    )
    return Engine(model.law, settings)
