"""vLLM's V1 scheduler: which tokens of which sequences the next step computes.

Running sequences first, in the order of their admission: one token each, or the next chunk of the prompt.
Where blocks run out, the last running sequence (under the priority policy the least important one) loses all
its blocks, goes back to the head of the waiting queue and is computed anew, and nothing is admitted in that
step. Then waiting sequences are admitted while the token budget, `max_num_seqs` and the blocks allow.

Because whoever is admitted last takes what is left of the token budget, at most one running sequence is in
the midst of its prompt, and it is the last. So a step costs what comes and goes, not what stays; only a step
that runs out of blocks looks at every running sequence.

A plan counts as done as soon as it is made: the next one may be made while it runs (asynchronous scheduling).
"""

from controlplane.simulator.blocks import BlockPool
from controlplane.simulator.decoding import Decoding
from controlplane.simulator.sequence import Sequence
from controlplane.simulator.settings import EngineSettings, SchedulingPolicy
from controlplane.simulator.waiting import FcfsQueue, PriorityQueue, WaitingQueue


class Plan:
    """One step: what it computes, and who gets a token when it ends.

    T = `tokens`, K = `context`, A = `pairs` of the step law, S = `decoded` + len(`prefilled`). `decoded`
    sequences get their next token, `prefilled` ones the token after their prefill; to those `finishing` it is
    the last. `late` are decoded ones that sat out the step before, `sat_out` those that sit out this one.
    With them and with the prefilled stands when their token before came out, NEVER of a first token. What
    changes while the step waits or runs is noted by the engine: it `came_out`, `aborted` decoded sequences
    get nothing, `preempted` ones still get their token. `decoding` are the decoded ones by name, if the
    engine wants to know.
    """

    __slots__ = (
        "aborted",
        "came_out",
        "context",
        "decoded",
        "decoding",
        "finishing",
        "late",
        "pairs",
        "preempted",
        "prefilled",
        "sat_out",
        "step",
        "tokens",
    )

    def __init__(self, step: int, decoded: int, context: int) -> None:
        self.step = step
        self.tokens = decoded
        self.context = context
        self.pairs = 0.0
        self.decoded = decoded
        self.prefilled: list[tuple[Sequence, float]] = []
        self.finishing: list[Sequence] = []
        self.late: list[tuple[Sequence, float]] = []
        self.sat_out: list[Sequence] = []
        self.came_out = False
        self.aborted = 0
        self.preempted: list[Sequence] = []
        self.decoding: list[Sequence] = []

    def decodes(self, sequence: Sequence) -> bool:
        """Whether `sequence` is one of the `decoded`."""
        return sequence.decodes_since <= self.step < sequence.decode_until and sequence not in self.sat_out

    def gives_token(self, sequence: Sequence) -> bool:
        """Whether `sequence` gets a token when the step ends."""
        return self.decodes(sequence) or any(s is sequence for s, _ in self.prefilled)


class Scheduler:
    """The sequences of one engine.

    `preempted` collects who was preempted, for the engine to clear. `queries` and `hits` count tokens looked
    up and found in the prefix cache.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.pool = BlockPool(
            settings.usable_blocks, settings.block_size, caching=settings.enable_prefix_caching
        )
        self.waiting: WaitingQueue = (
            FcfsQueue() if settings.scheduling_policy is SchedulingPolicy.FCFS else PriorityQueue()
        )
        self.running: dict[Sequence, None] = {}
        self.decoding = Decoding(settings.block_size)
        self.preempted: list[Sequence] = []
        self.queries = 0
        self.hits = 0
        self._prefilling: Sequence | None = None  # the one in the midst of its prompt
        self._last: Plan | None = None
        self._late: list[Sequence] = []  # sat out the plan before
        self._admitted = 0

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that are held, as vLLM's gauge."""
        return 1.0 - self.pool.free / self.settings.usable_blocks

    def plan(self, now: float, tokens_out_at: float) -> Plan | None:
        """The next step, beginning at `now`; None if there is nothing to compute.

        `tokens_out_at` is when the tokens of the step before come out. None after a preemption is not the
        end: the preempted sequences wait for the next plan.
        """
        decoding = self.decoding
        plan = Plan(decoding.steps, decoding.count, decoding.context)
        budget = self._plan_running(plan, tokens_out_at)
        if budget > 0 and len(self.waiting):
            self._admit(plan, now, budget)
        if self._late:
            plan.late = [(s, s.last_token_at) for s in self._late if plan.decodes(s)]
        self._late = plan.sat_out
        if plan.tokens:
            plan.finishing = decoding.advance()
        for sequence in plan.sat_out:
            decoding.join(sequence)
        for sequence, _ in plan.prefilled:
            sequence.generated += 1
            if sequence.generated < sequence.request.output_tokens:
                sequence.decodes_since = decoding.steps
                decoding.join(sequence)
            else:
                sequence.goal += 1
                plan.finishing.append(sequence)
        if not plan.tokens:
            return None
        self._last = plan
        return plan

    def drop(self, sequence: Sequence, *, decoded: bool = False) -> None:
        """`sequence` ended or was aborted and leaves; its blocks are free.

        `decoded`: a step in which it decodes has not come out.
        """
        if sequence.running:
            del self.running[sequence]
            if self.is_decoding(sequence):
                self.decoding.leave(sequence)
            elif sequence is self._prefilling:
                self._prefilling = None
            self._release(sequence, comes_back=False, decoded=decoded)
        else:
            self.waiting.remove(sequence)

    def is_decoding(self, sequence: Sequence) -> bool:
        return sequence.decode_until > self.decoding.steps

    def _plan_running(self, plan: Plan, tokens_out_at: float) -> int:
        """Plan the running sequences, preempting where blocks run out. Returns what is left of the budget."""
        size = self.settings.block_size
        budget = self.settings.max_num_batched_tokens - plan.decoded
        need = self.decoding.blocks_needed()
        partial = self._prefilling
        chunk = 0
        if partial is not None:
            chunk = min(partial.goal - partial.computed, budget)
            need += _blocks(partial.computed + chunk, size) - _blocks(partial.computed, size)
        if need > self.pool.free:
            self._plan_short_of_blocks(plan, tokens_out_at)
            return 0
        if need:
            self.pool.take(need)
        if partial is not None and chunk:
            self._compute(plan, partial, chunk)
        return budget - chunk

    def _admit(self, plan: Plan, now: float, budget: int) -> None:
        """Admit from the head of the waiting queue while `budget`, sequences and blocks allow."""
        settings = self.settings
        size = settings.block_size
        pool = self.pool
        while budget > 0 and len(self.waiting) and len(self.running) < settings.max_num_seqs:
            sequence = self.waiting.head()
            # The last token is always computed: there is nothing to sample from otherwise.
            found, found_free = pool.find(sequence, (sequence.goal - 1) // size)
            chunk = min(sequence.goal - found * size, budget)
            must_fit = sequence.goal if settings.scheduler_reserve_full_isl else found * size + chunk
            need = _blocks(must_fit, size) - found + found_free
            if self.running:
                need += settings.watermark_blocks
            if need > pool.free:
                return
            self.waiting.remove(sequence)
            self._admitted += 1
            sequence.order = self._admitted
            sequence.running = True
            self.running[sequence] = None
            if not sequence.preemptions:
                sequence.scheduled_at = now
                sequence.cached_tokens = found * size
                if settings.enable_prefix_caching:
                    self.queries += sequence.goal
                    self.hits += sequence.cached_tokens
            if found:
                pool.hold(sequence, found)
            sequence.computed = found * size
            pool.take(_blocks(sequence.computed + chunk, size) - found)
            self._compute(plan, sequence, chunk)
            budget -= chunk

    def _compute(self, plan: Plan, sequence: Sequence, chunk: int) -> None:
        """`plan` computes the next `chunk` tokens of a prompt; blocks for them are taken."""
        plan.tokens += chunk
        plan.pairs += chunk * (sequence.computed + chunk / 2)
        sequence.computed += chunk
        if sequence.path:
            self.pool.name_prompt(sequence, sequence.computed // self.settings.block_size)
        if sequence.computed == sequence.goal:
            plan.prefilled.append((sequence, sequence.last_token_at))
            self._prefilling = None
        else:
            self._prefilling = sequence

    def _plan_short_of_blocks(self, plan: Plan, tokens_out_at: float) -> None:
        """The running list one by one, as vLLM goes through it, preempting where blocks run out."""
        size = self.settings.block_size
        budget = self.settings.max_num_batched_tokens
        order = list(self.running)
        computed: dict[Sequence, int] = {}  # tokens by sequence that this step computes
        index = 0
        while index < len(order) and budget > 0:
            sequence = order[index]
            decodes = self.is_decoding(sequence)
            if not decodes and sequence is not self._prefilling:
                index += 1  # its last token is being computed
                continue
            have = self.decoding.tokens(sequence) - 1 if decodes else sequence.computed
            chunk = 1 if decodes else min(sequence.goal - have, budget)
            need = _blocks(have + chunk, size) - _blocks(have, size)
            while need > self.pool.free:
                victim = self._victim(order)
                at = order.index(victim)
                del order[at]
                if at < index:
                    index -= 1
                given_back = computed.pop(victim, 0)
                budget += given_back
                self._preempt(victim, given_back, tokens_out_at)
                if victim is sequence:
                    break
            if not sequence.running:
                break
            self.pool.take(need)
            computed[sequence] = chunk
            budget -= chunk
            index += 1
        for sequence in order:
            if sequence not in computed and self.is_decoding(sequence):
                if sequence not in self._late:
                    sequence.last_token_at = tokens_out_at
                self.decoding.leave(sequence)
                plan.sat_out.append(sequence)
        plan.decoded = plan.tokens = self.decoding.count
        plan.context = self.decoding.context
        partial = self._prefilling
        if partial is not None and partial in computed:
            self._compute(plan, partial, computed[partial])

    def _victim(self, order: list[Sequence]) -> Sequence:
        if self.settings.scheduling_policy is SchedulingPolicy.FCFS:
            return order[-1]
        return max(order, key=lambda s: (s.priority, s.arrived_at))

    def _preempt(self, victim: Sequence, taken: int, tokens_out_at: float) -> None:
        """`victim` loses its blocks, those for the `taken` tokens that this step would have computed too."""
        if victim is self._prefilling:
            self._prefilling = None
        else:
            if self.is_decoding(victim):
                self.decoding.leave(victim)
            if victim not in self._late:
                victim.last_token_at = tokens_out_at
        del self.running[victim]
        last = self._last
        decoded = last is not None and not last.came_out and last.decodes(victim)
        self._release(victim, comes_back=True, decoded=decoded, taken=taken)
        victim.preemptions += 1
        self.waiting.add_preempted(victim)
        self.preempted.append(victim)

    def _release(self, sequence: Sequence, *, comes_back: bool, decoded: bool, taken: int = 0) -> None:
        """Give back the blocks, those for `taken` tokens that were planned and are not computed too.

        As in vLLM the planned tokens are named already. But planning ahead, it does not know which token the
        step adds that has not come out (`decoded`).
        """
        planned = sequence.computed + taken
        named = planned - (decoded and self.settings.async_scheduling)
        self.pool.release(sequence, named, _blocks(planned, self.settings.block_size), comes_back)
        sequence.running = False
        sequence.computed = 0


def _blocks(tokens: int, size: int) -> int:
    """Blocks of `size` that hold `tokens`."""
    return -(-tokens // size)
