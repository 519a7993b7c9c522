"""The same engine as `controlplane.simulator.engine`, written the slow and plain way, to check the fast one
against.

One step at a time, one sequence at a time, one block at a time: every block is an object with a name and a
count of users, the free blocks are a list in the order in which they are given out, and every sequence
remembers when its last token came. Nothing is shared with the fast engine but the values that go in and come
out.
"""

from dataclasses import dataclass, field
from math import hypot, inf
from typing import Any

from controlplane.simulator.request import Event, Finished, FirstToken, Preempted, Progress, Request
from controlplane.simulator.settings import EngineSettings, SchedulingPolicy
from controlplane.simulator.step import StepLaw


class Block:
    def __init__(self) -> None:
        self.name: Any = None
        self.users = 0


@dataclass(eq=False)
class Seq:
    request: Request
    arrived: float
    number: int
    tokens: int  # prompt and all tokens sampled or about to be
    computed: int = 0  # tokens whose KV is there or planned
    made: int = 0  # tokens sampled or about to be
    told: int = 0  # tokens that came out
    state: str = "new"  # new, waiting, running, done
    prefilling: bool = True
    blocks: list[Block] = field(default_factory=list)
    decoding: int = 0  # decode steps of it that have not come out
    named: int = 0  # the first so many blocks have names
    nameless: bool = False
    preemptions: int = 0
    preemptions_told: int = 0
    cached: int = 0
    queued: float = inf
    scheduled: float = inf
    first: float = inf
    last: float = inf


@dataclass(eq=False)
class Work:
    """What one step computes of one sequence."""

    seq: Seq
    tokens: int
    past: int
    decode: bool
    samples: bool = False
    last: bool = False


class ReferenceEngine:
    def __init__(self, law: StepLaw, settings: EngineSettings) -> None:
        self.law = law
        self.s = settings
        self.free: list[Block] = [Block() for _ in range(settings.num_gpu_blocks - 1)]
        self.by_name: dict[Any, Block] = {}
        self.all: list[Seq] = []
        self.alive: dict[str, Seq] = {}
        self.incoming: list[Seq] = []
        self.aborts: list[tuple[float, Seq]] = []
        self.waiting: list[Seq] = []
        self.running: list[Seq] = []
        self.step: list[Work] | None = None
        self.ends = inf
        self.next: list[Work] | None = None
        # what is observed
        self.ttfts: list[float] = []
        self.itls: list[float] = []
        self.step_tokens: list[int] = []
        self.finished: list[Finished] = []
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.queries = 0
        self.hits = 0
        self.preemptions = 0
        self.aborted = 0
        self.gauges = (0, 0, 0.0)

    # -- from outside

    def submit(self, request: Request, now: float) -> None:
        seq = Seq(request, now, len(self.all), request.prompt_tokens)
        self.all.append(seq)
        self.alive[request.id] = seq
        self.incoming.append(seq)

    def abort(self, request_id: str, now: float) -> None:
        if request_id in self.alive:
            self.aborts.append((now, self.alive[request_id]))

    def next_event_time(self) -> float:
        if self.step is not None:
            return self.ends
        return self.incoming[0].arrived if self.incoming else inf

    def advance(self, to: float) -> list[Event]:
        events: list[Event] = []
        while self.next_event_time() <= to:
            at = self.next_event_time()
            self.apply_aborts(at)
            if self.step is not None:
                work, self.step = self.step, None
                self.come_out(work, at, events)
            while self.incoming and self.incoming[0].arrived <= at:
                seq = self.incoming.pop(0)
                if seq.state == "new":
                    seq.queued = at
                    seq.state = "waiting"
                    self.waiting.append(seq)
            self.begin(at, events)
        return events

    # -- steps

    def begin(self, at: float, events: list[Event]) -> None:
        work, self.next = self.next, None
        while not work:
            before = len(events)
            work = self.schedule(at, events)
            if not work and len(events) == before:
                return
        self.step = work
        tokens = sum(w.tokens for w in work)
        context = sum(w.past + 1 for w in work if w.decode)
        pairs = 0.0
        for w in work:
            if not w.decode:
                pairs += w.tokens * (w.past + w.tokens / 2)
        sampled = sum(w.samples for w in work)
        law = self.law
        self.ends = at + (
            law.host
            + hypot(law.weights, law.token * tokens)
            + law.sequence * sampled
            + law.kv_token * context
            + law.pair * pairs
        )
        if self.s.async_scheduling:
            self.next = self.schedule(at, events)

    def schedule(self, at: float, events: list[Event]) -> list[Work]:
        work: list[Work] = []
        budget = self.s.max_num_batched_tokens
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            seq = self.running[index]
            new = min(seq.tokens - seq.computed, budget)
            if seq.made == seq.request.output_tokens:
                index += 1
                continue
            placed = self.place(seq, new)
            while not placed:
                if self.s.scheduling_policy is SchedulingPolicy.FCFS:
                    victim = self.running[-1]
                else:
                    victim = max(self.running, key=lambda s: (s.request.priority, s.arrived))
                position = self.running.index(victim)
                self.running.remove(victim)
                if position < index:
                    index -= 1
                planned = sum(w.tokens for w in work if w.seq is victim)
                budget += planned
                work = [w for w in work if w.seq is not victim]
                self.give_back(victim, planned)
                victim.computed = 0
                victim.prefilling = True
                victim.preemptions += 1
                victim.state = "waiting"
                self.waiting.insert(0, victim)
                events.append(Preempted(victim.request.id, at))
                preempted = True
                if victim is seq:
                    break
                placed = self.place(seq, new)
            if not placed:
                break
            work.append(Work(seq, new, seq.computed, decode=not seq.prefilling))
            self.name(seq, seq.computed + new, prompt_only=True)
            budget -= new
            index += 1
        while not preempted and budget > 0 and self.waiting and len(self.running) < self.s.max_num_seqs:
            if self.s.scheduling_policy is SchedulingPolicy.FCFS:
                seq = self.waiting[0]
            else:
                seq = min(self.waiting, key=lambda s: (s.request.priority, s.arrived, s.request.id))
            found = self.find(seq)
            past = len(found) * self.s.block_size
            new = min(seq.tokens - past, budget)
            must_fit = seq.tokens if self.s.scheduler_reserve_full_isl else past + new
            need = self.blocks_of(must_fit) - len(found) + sum(1 for b in found if b.users == 0)
            if self.running:
                need += int(self.s.watermark * self.s.num_gpu_blocks)
            if need > len(self.free):
                break
            self.waiting.remove(seq)
            self.running.append(seq)
            seq.state = "running"
            if seq.preemptions == 0:
                seq.scheduled = at
                seq.cached = past
                if self.s.enable_prefix_caching:
                    self.queries += seq.tokens
                    self.hits += past
            for block in found:
                if block.users == 0:
                    self.free.remove(block)
                block.users += 1
            seq.blocks = list(found)
            seq.named = len(found)
            seq.nameless = False
            seq.computed = past
            assert self.place(seq, new)
            work.append(Work(seq, new, past, decode=False))
            self.name(seq, past + new, prompt_only=True)
            budget -= new
        for w in work:
            seq = w.seq
            seq.computed += w.tokens
            seq.decoding += w.decode
            if seq.computed == seq.tokens:
                w.samples = True
                seq.prefilling = False
                seq.tokens += 1
                seq.made += 1
                w.last = seq.made == seq.request.output_tokens
        return work

    def come_out(self, work: list[Work], at: float, events: list[Event]) -> None:
        order = {seq: i for i, seq in enumerate(self.running)}
        for w in work:
            w.seq.decoding -= w.decode
        there = [w for w in work if w.samples and w.seq.state != "done"]
        for w in [w for w in there if w.decode] + [w for w in there if not w.decode]:
            seq = w.seq
            seq.told += 1
            if seq.first == inf:
                seq.first = at
                self.ttfts.append(at - seq.arrived)
                self.prompt_tokens += seq.request.prompt_tokens
                self.cached_tokens += seq.cached
                events.append(FirstToken(seq.request.id, at))
            else:
                self.itls.append(at - seq.last)
                events.append(Progress(seq.request.id, at, seq.told))
            seq.last = at
            self.preemptions += seq.preemptions - seq.preemptions_told
            seq.preemptions_told = seq.preemptions
        if there:
            self.generation_tokens += len(there)
            firsts = [w.seq for w in there if w.seq.told == 1]
            self.step_tokens.append(
                len(there) + sum(seq.request.prompt_tokens - seq.cached for seq in firsts)
            )
        for w in sorted((w for w in there if w.last), key=lambda w: order.get(w.seq, len(order))):
            seq = w.seq
            self.leave(seq)
            event = Finished(
                seq.request.id,
                at,
                "length" if seq.request.output_tokens == seq.request.limit_tokens else "stop",
                seq.arrived,
                seq.queued,
                seq.scheduled,
                seq.first,
                seq.request.prompt_tokens,
                seq.request.output_tokens,
                seq.cached,
                seq.preemptions,
            )
            self.finished.append(event)
            events.append(event)
        usage = 1.0 - len(self.free) / (self.s.num_gpu_blocks - 1)
        self.gauges = (len(self.running), len(self.waiting), usage)

    def apply_aborts(self, at: float) -> None:
        while self.aborts and self.aborts[0][0] <= at:
            _, seq = self.aborts.pop(0)
            if seq.state != "done":
                self.aborted += 1
                self.leave(seq)

    def leave(self, seq: Seq) -> None:
        del self.alive[seq.request.id]
        if seq.state == "running":
            self.running.remove(seq)
            self.give_back(seq)
        elif seq.state == "waiting":
            self.waiting.remove(seq)
        seq.state = "done"

    # -- blocks

    def blocks_of(self, tokens: int) -> int:
        return (tokens + self.s.block_size - 1) // self.s.block_size

    def place(self, seq: Seq, new: int) -> bool:
        """Blocks for `new` more tokens, or nothing."""
        need = self.blocks_of(seq.computed + new) - len(seq.blocks)
        if need > len(self.free):
            return False
        for _ in range(need):
            block = self.free.pop(0)
            if block.name is not None:
                del self.by_name[block.name]
                block.name = None
            block.users = 1
            seq.blocks.append(block)
        return True

    def name_of(self, seq: Seq, i: int) -> tuple[Any, bool]:
        """The name of block i, and whether it belongs to a segment."""
        first = 0
        for segment in seq.request.prefix:
            end = segment.end_tokens // self.s.block_size
            if i < end:
                return (segment.name, first, i), True
            first = max(first, end)
        return (seq.number, i), False

    def name(self, seq: Seq, computed: int, *, prompt_only: bool) -> None:
        """Name the full blocks; while it runs only those that belong to prompt and segments."""
        if not self.s.enable_prefix_caching:
            return
        if prompt_only and not seq.prefilling:
            return
        while seq.named < computed // self.s.block_size and not seq.nameless:
            name, shared = self.name_of(seq, seq.named)
            if prompt_only and not shared:
                return
            if name in self.by_name:
                seq.nameless = True
                return
            block = seq.blocks[seq.named]
            block.name = name
            self.by_name[name] = block
            seq.named += 1

    def find(self, seq: Seq) -> list[Block]:
        found: list[Block] = []
        for i in range((seq.tokens - 1) // self.s.block_size):
            block = self.by_name.get(self.name_of(seq, i)[0])
            if block is None:
                break
            found.append(block)
        return found

    def give_back(self, seq: Seq, planned: int = 0) -> None:
        unknown = 1 if self.s.async_scheduling and seq.decoding else 0
        self.name(seq, seq.computed + planned - unknown, prompt_only=False)
        for block in reversed(seq.blocks):
            block.users -= 1
            if block.users == 0:
                if block.name is None:
                    self.free.insert(0, block)
                else:
                    self.free.append(block)
        seq.blocks = []
