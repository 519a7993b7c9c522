"""One vLLM engine in virtual time, step by step; a step costs the same however many sequences it computes.

At the end of a step, in vLLM's order: aborts that came during it take effect, its tokens come out and
sequences that have all theirs leave, requests that came during it are queued, and the next step begins. With
asynchronous scheduling the step that begins was planned when the one before began, so it has nothing of what
came since.
"""

from collections import deque
from math import inf
from operator import attrgetter

from controlplane.simulator.counters import EngineCounters
from controlplane.simulator.request import Event, Finished, FirstToken, Preempted, Progress, Request
from controlplane.simulator.scheduler import Plan, Scheduler
from controlplane.simulator.sequence import NEVER, Sequence
from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw

_in_order = attrgetter("order")


class Engine:
    """One engine. All times are seconds since the start of the run and never go back.

    Whoever drives it submits and aborts at some `now`, then calls `advance` to go on; `next_event_time` says
    how far at least nothing happens. How far one call of `advance` goes does not matter: the events are the
    same, in the same order. Only what is submitted at a time that `advance` has reached is too late for a
    step that began just then. Raises ValueError for a time before one already reached, an id that is in use,
    or a request over `max_model_len`. With `progress` every token is told, which costs time for each sequence
    and step.
    """

    def __init__(self, law: StepLaw, settings: EngineSettings, *, progress: bool = False) -> None:
        self.settings = settings
        self.counters = EngineCounters(settings)
        self._law = law
        self._scheduler = Scheduler(settings)
        self._progress = progress
        self._now = 0.0
        self._sequences: dict[str, Sequence] = {}
        self._arrived = 0
        self._arrivals: deque[Sequence] = deque()
        self._aborts: deque[tuple[float, Sequence]] = deque()
        self._step: Plan | None = None  # the step that runs
        self._began_at = 0.0
        self._ends_at = inf
        self._next: Plan | None = None  # planned while the step runs
        self._wedged_at: float | None = None
        self._idle_until = 0.0

    @property
    def in_system(self) -> int:
        """Requests inside the engine: just arrived, waiting or running."""
        return len(self._sequences)

    @property
    def is_busy(self) -> bool:
        """Whether a step runs."""
        return self._step is not None

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that are held now; `counters` has the gauge, which is older."""
        return self._scheduler.kv_usage

    def submit(self, request: Request, now: float) -> None:
        """A request arrives."""
        self._check_time(now)
        if request.id in self._sequences:
            raise ValueError(f"request {request.id} is already in the engine")
        longest = request.prompt_tokens + request.limit_tokens
        if longest > self.settings.max_model_len:
            raise ValueError(
                f"request {request.id}: prompt and max_tokens make {longest} tokens, "
                f"max_model_len is {self.settings.max_model_len}"
            )
        sequence = Sequence(request, self._arrived, now, self.settings.block_size)
        self._arrived += 1
        self._sequences[request.id] = sequence
        self._arrivals.append(sequence)

    def abort(self, request_id: str, now: float) -> None:
        """The client of a request hangs up. Unknown ids are ignored: the request may just have ended."""
        self._check_time(now)
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._aborts.append((now, sequence))

    def set_law(self, law: StepLaw) -> None:
        """Steps that begin after the time reached take as long as `law` says."""
        self._law = law

    def wedge(self) -> None:
        """From the time reached on no step ends and none begins until `unwedge`, while requests still come
        in."""
        if self._wedged_at is None:
            self._wedged_at = self._now

    def unwedge(self) -> None:
        """Go on where `wedge` stopped."""
        if self._wedged_at is not None:
            self._ends_at += self._now - self._wedged_at
            self._idle_until = self._now
            self._wedged_at = None

    def next_event_time(self) -> float:
        """No event comes before this time unless something is submitted or aborted; infinity if none comes at
        all."""
        if self._wedged_at is not None:
            return inf
        if self._step is not None:
            return self._ends_at
        if self._arrivals:
            return max(self._arrivals[0].arrived_at, self._idle_until)
        return inf

    def advance(self, to: float) -> list[Event]:
        """Everything that happens up to and including `to`, in order of time."""
        self._check_time(to)
        events: list[Event] = []
        if self._wedged_at is None:
            while True:
                step = self._step
                if step is not None:
                    at = self._ends_at
                    if at > to:
                        break
                    self._complete(step, at, events)
                elif self._arrivals:
                    at = max(self._arrivals[0].arrived_at, self._idle_until)
                    if at > to:
                        break
                    if self._aborts:
                        self._apply_aborts(at)
                else:
                    break
                self._begin(at, events)
        self._now = to
        return events

    def _check_time(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time {now} is before {self._now}, which the engine has reached")

    def _begin(self, at: float, events: list[Event]) -> None:
        """Queue what arrived and begin the next step, if there is one."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].arrived_at <= at:
            sequence = arrivals.popleft()
            if not sequence.gone:
                sequence.queued_at = at
                self._scheduler.waiting.add(sequence)
        step = self._next
        self._next = None
        if step is None:
            step = self._plan(at, at, events)
        self._step = step
        if step is None:
            self._ends_at = inf
            return
        self._began_at = at
        self._ends_at = at + self._law.seconds(
            step.tokens, step.context, step.pairs, step.decoded + len(step.prefilled)
        )
        if self.settings.async_scheduling:
            self._next = self._plan(at, self._ends_at, events)

    def _plan(self, at: float, tokens_out_at: float, events: list[Event]) -> Plan | None:
        """Plan a step at `at`, while the tokens of the step before come out at `tokens_out_at`."""
        scheduler = self._scheduler
        running = self._step
        while True:
            plan = scheduler.plan(at, tokens_out_at)
            if not scheduler.preempted:
                break
            for sequence in scheduler.preempted:
                events.append(Preempted(sequence.id, at))
                if running is not None and running.gives_token(sequence):
                    running.preempted.append(sequence)
            scheduler.preempted.clear()
            if plan is not None or running is not None:
                break
        if plan is not None and self._progress:
            plan.decoding = [s for s in scheduler.running if plan.decodes(s)]
        return plan

    def _complete(self, step: Plan, at: float, events: list[Event]) -> None:
        """The tokens of `step` come out at `at`."""
        if self._aborts:
            self._apply_aborts(at)
        self._step = None
        step.came_out = True
        scheduler = self._scheduler
        counters = self.counters
        counters.steps += 1
        counters.busy_seconds += at - self._began_at
        tokens = self._tell_decoded(step, at, events)
        computed = 0
        for sequence, token_at in step.prefilled:
            if not sequence.gone:
                tokens += 1
                computed += self._tell_prefilled(sequence, token_at, at, events)
        if tokens:
            counters.generation_tokens += tokens
            counters.step_tokens.add(tokens + computed)
        if step.finishing:
            for sequence in sorted(step.finishing, key=_in_order):
                if not sequence.gone:
                    self._finish(sequence, at, events)
        counters.prefix_queries = scheduler.queries
        counters.prefix_hits = scheduler.hits
        counters.running = len(scheduler.running)
        counters.waiting = len(scheduler.waiting)
        counters.free_blocks = scheduler.pool.free

    def _tell_decoded(self, step: Plan, at: float, events: list[Event]) -> int:
        """The tokens of decoding sequences came out. Returns how many."""
        itl = self.counters.itl
        tokens = step.decoded - step.aborted
        if tokens:
            gaps = [at - token_at for sequence, token_at in step.late if not sequence.gone]
            for gap in gaps:
                itl.add(gap)
            itl.add(at - self._began_at, tokens - len(gaps))
        for sequence in step.preempted:
            if not sequence.gone:
                self._tell_preemptions(sequence)
        for sequence in step.decoding:
            if not sequence.gone:
                sequence.told += 1
                events.append(Progress(sequence.id, at, sequence.told))
        return tokens

    def _tell_prefilled(self, sequence: Sequence, token_at: float, at: float, events: list[Event]) -> int:
        """The token after a prefill came out, the one before at `token_at` (NEVER: it is the first).

        Returns the prompt tokens that are counted as computed with it.
        """
        sequence.told += 1
        computed = 0
        if token_at == NEVER:
            sequence.first_token_at = at
            prompt = sequence.request.prompt_tokens
            computed = prompt - sequence.cached_tokens
            self.counters.first_token(at - sequence.arrived_at, prompt, sequence.cached_tokens)
            events.append(FirstToken(sequence.id, at))
        else:
            self.counters.itl.add(at - token_at)
            if self._progress:
                events.append(Progress(sequence.id, at, sequence.told))
        if sequence.preemptions != sequence.preemptions_told:
            self._tell_preemptions(sequence)
        return computed

    def _tell_preemptions(self, sequence: Sequence) -> None:
        self.counters.preemptions += sequence.preemptions - sequence.preemptions_told
        sequence.preemptions_told = sequence.preemptions

    def _finish(self, sequence: Sequence, at: float, events: list[Event]) -> None:
        self._scheduler.drop(sequence)
        del self._sequences[sequence.id]
        request = sequence.request
        event = Finished(
            sequence.id,
            at,
            "length" if request.output_tokens == request.limit_tokens else "stop",
            sequence.arrived_at,
            sequence.queued_at,
            sequence.scheduled_at,
            sequence.first_token_at,
            request.prompt_tokens,
            request.output_tokens,
            sequence.cached_tokens,
            sequence.preemptions,
        )
        events.append(event)
        self.counters.finished(event, request.limit_tokens)

    def _apply_aborts(self, at: float) -> None:
        """Sequences whose clients hung up until `at` are gone; what a step computes for them is thrown
        away."""
        aborts = self._aborts
        while aborts and aborts[0][0] <= at:
            hung_up_at, sequence = aborts.popleft()
            if self._sequences.get(sequence.id) is not sequence:
                continue
            sequence.gone = True
            del self._sequences[sequence.id]
            self.counters.gave_up(hung_up_at - sequence.arrived_at)
            if sequence.queued_at == NEVER:
                continue
            decoded = False
            for plan in (self._step, self._next):
                if plan is not None and plan.decodes(sequence):
                    plan.aborted += 1
                    decoded = True
            self._scheduler.drop(sequence, decoded=decoded)
