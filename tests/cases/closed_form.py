"""One replica whose latency is a formula, behind the admission of the gateway and the tick of the daemon.

Nothing of the engine is simulated: a request that is let in while c are in flight has its first token after
`ttft(c, t)` and then tokens every `gap(t)` seconds, so that what is right can be worked out on paper. All
else is the product's: the gateway admits, queues, refuses and reports, the tick moves the limit once a
second, and the limit goes back to the gateway. Times are seconds of the run.
"""

import heapq
import math
from collections.abc import Callable, Iterable

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaSpec
from controlplane.gateway.admission.request import Request
from controlplane.gateway.admission.settings import AdmissionSettings, ClassSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Queued, Verdict
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.policy.steer import limit_of
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision, Mode
from controlplane.signals.samples import Samples, Scrape, Signals, Target

_START = 1_800_000_000.0
_MICROSECOND = 1e-6  # what a clock of that size can tell apart
_TARGET = Target("r0", "chat", "http://r0:8000")


class _Stream:
    """An answer under way; `told` tokens of it are known to the gateway."""

    def __init__(self, ticket: Ticket, first_at: float, gap: float, tokens: int) -> None:
        self.ticket, self.first_at, self.gap, self.tokens = ticket, first_at, gap, tokens
        self.told = 0

    @property
    def ends_at(self) -> float:
        return self.first_at + (self.tokens - 1) * self.gap

    def out(self, now: float) -> int:
        """Tokens that came out until now."""
        if now < self.first_at:
            return 0
        if self.gap <= 0:
            return self.tokens
        return min(self.tokens, 1 + int((now - self.first_at) / self.gap + 1e-9))


class Loop:
    """`limits[i]` is the limit after second i + 1, `ttft` what each answered request waited from its arrival
    to its first token (at second, seconds), `refused` and `admitted` are counts."""

    def __init__(
        self,
        limits: dict[str, object],
        *,
        ttft_seconds: float,
        tpot_seconds: float,
        ttft: Callable[[int, float], float],
        gap: Callable[[float], float],
    ) -> None:
        self._ttft, self._gap = ttft, gap
        slo = {"ttft": f"{ttft_seconds}s", "tpot": f"{tpot_seconds}s"}
        law = {"law": "slo-gradient", **limits}
        self._settings = PolicySettings(pools={"chat": PoolPolicy(slo=slo, limits=law)})
        objective = ClassSettings(**slo)
        given = AdmissionSettings(mode=Mode.ENFORCE, interactive=objective)
        self._gateway = Admission(given, gateway="gw", now=_START)
        self._gateway.set_replicas([ReplicaSpec(name="r0", pool="chat")], _START)
        self._memory, self._tokens = Memory(), 0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbered = 0
        self._polls_at = math.inf
        self._streams: dict[int, _Stream] = {}
        self._asked: dict[int, tuple[float, int]] = {}  # that wait: arrived at, tokens of the answer
        self.now = 0.0
        self.limits: list[int] = []
        self.decisions: list[Decision] = []
        self.ttft: list[tuple[float, float]] = []
        self.admitted = self.refused = 0
        self._look(0.0)

    @property
    def limit(self) -> int:
        return self.limits[-1]

    @property
    def in_flight(self) -> int:
        return len(self._streams)

    @property
    def queued(self) -> int:
        return len(self._asked)

    def ask(self, at: float, output_tokens: int) -> None:
        """A request arrives at `at`."""
        self._at(at, lambda now: self._offer(now, output_tokens))

    def run(self, until: float) -> None:
        """Go on until second `until`, a whole number."""
        while self.now < until:
            second = self.now + 1.0
            while self._events and self._events[0][0] < second:
                at, _, act = heapq.heappop(self._events)
                act(at)
            self._look(second)
            self.limits.append(int(self._limit))
            self.now = second

    def ttft_p95(self, since: float) -> float:
        """Of the requests that had their first token from second `since` on."""
        waits = sorted(seconds for at, seconds in self.ttft if at >= since)
        return waits[math.ceil(0.95 * len(waits)) - 1]

    def _at(self, at: float, act: Callable[[float], None]) -> None:
        self._numbered += 1
        heapq.heappush(self._events, (at, self._numbered, act))

    def _offer(self, now: float, output_tokens: int) -> None:
        request = Request(tenant="t", prompt_tokens=100, output_tokens=output_tokens)
        self._obey(self._gateway.offer(request, _START + now, 0.5), now, (now, output_tokens))

    def _obey(self, verdict: Verdict, now: float, asked: tuple[float, int]) -> None:
        arrived, tokens = asked
        if isinstance(verdict, Admitted):
            self.admitted += 1
            first_at = now + self._ttft(len(self._streams) + 1, now)
            stream = _Stream(verdict.ticket, first_at, self._gap(now), tokens)
            self._streams[verdict.ticket.id] = stream
            self._at(first_at, lambda at: self._first(stream, at, at - arrived))
            self._at(stream.ends_at, lambda at: self._end(stream, at))
        elif isinstance(verdict, Queued):
            self._asked[verdict.ticket.id] = asked
            self._poll_at(now)
        else:
            self.refused += 1

    def _poll_at(self, now: float) -> None:
        at = max(now, self._gateway.next_poll_at(_START + now) - _START)
        if at < self._polls_at:
            self._polls_at = at
            self._at(at, self._poll)

    def _poll(self, now: float) -> None:
        if now >= self._polls_at:
            self._polls_at = math.inf
        for verdict in self._gateway.poll(_START + now):
            assert verdict.ticket is not None
            self._obey(verdict, now, self._asked.pop(verdict.ticket.id))
        if self._asked:
            self._poll_at(now + _MICROSECOND)

    def _first(self, stream: _Stream, now: float, waited: float) -> None:
        self.ttft.append((now, waited))
        self._tell(stream, now)

    def _tell(self, stream: _Stream, now: float) -> None:
        new = stream.out(now) - stream.told
        if new > 0:
            stream.told += new
            self._tokens += new
            self._gateway.tokens(stream.ticket, new, _START + now)

    def _end(self, stream: _Stream, now: float) -> None:
        self._tell(stream, now)
        del self._streams[stream.ticket.id]
        self._gateway.finished(stream.ticket, _START + now, Usage(100, stream.tokens))
        self._poll(now)

    def _look(self, now: float) -> None:
        """The second ends: the daemon scrapes, hears the gateway, ticks and tells it the limit."""
        for stream in self._streams.values():
            self._tell(stream, now)
        at = _START + now
        samples = Samples(
            targets=(_TARGET,), scrapes=(self._page(at),), outcomes=tuple(self._gateway.windows(at))
        )
        snapshot, decisions, self._memory = tick(samples, self._memory, self._settings, at)
        self.decisions += [one for one in decisions if one.action == "set-limit"]
        self._limit = limit_of(snapshot.replicas["r0"])
        self._gateway.set_limits({"r0": self._limit}, {}, at)
        self._poll(now)

    def _page(self, at: float) -> Scrape:
        numbers = {
            "running": float(len(self._streams)),
            "waiting": 0.0,
            "kv_usage": min(0.5, len(self._streams) / 1000),
            "preemptions_total": 0.0,
            "generation_tokens_total": float(self._tokens),
        }
        return Scrape(
            target="r0",
            at=at,
            seconds=0.01,
            engine="vllm",
            version=">=0.32",
            models=("acme/chat-8b",),
            engines={"0": Signals(numbers=numbers)},
            server=Signals(numbers={"start_time": _START - 3600}),
        )


def steadily(loop: Loop, per_second: float, begin: float, end: float, output_tokens: int) -> None:
    """Requests in even distances, from `begin` to before `end`."""
    for i in range(math.ceil((end - begin) * per_second)):
        loop.ask(begin + i / per_second, output_tokens)


def at_times(loop: Loop, times: Iterable[float], output_tokens: int) -> None:
    for at in times:
        loop.ask(at, output_tokens)
