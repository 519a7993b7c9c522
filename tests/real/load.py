"""A bounded streaming load generator that knows the truth about every request it sent.

As a library::

    report = await run_load(Load(base_url=server.base_url, clients=8, seconds=10))
    truth = report.truth(slo=Slo(ttft_seconds=0.5, tpot_seconds=0.025))

or from the command line, which prints one JSON object::

    python tests/real/load.py http://127.0.0.1:8000 --clients 8 --seconds 10 --jsonl var/run.jsonl

Closed loop by default: `clients` callers, each sending its next request when the last one ended. With
`rate` it is open loop: arrivals come at random (Poisson) whatever the server does, at most `clients` in
flight; arrivals beyond that are not sent and are counted as skipped.

The truth is what the client saw: when it sent, when the first and the last token arrived, when the stream
ended, how many tokens the server said it read and wrote. Times are wall clock (`time.time()`), so they can
be laid beside scrapes; durations come from the monotonic clock. A request that hangs up also knows its
tokens, because the server is asked to repeat its usage in every chunk (`continuous_usage_stats`).

It sends to loopback addresses only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

# Common words, each one token of the tiny model's vocabulary when a blank stands before it (make_model.py
# trains on them), so a prompt of n words is about n tokens long.
_TEXT = (
    "account answer begin bridge carry circle cloud corner dinner early engine family field finger forest "
    "garden green hammer harbor hour island kettle ladder letter lemon listen market meadow mirror morning "
    "mountain needle number office orange paper pencil people picture planet pocket question quiet railway "
    "reason river school season shadow silver simple spring station stone story summer sunday table "
    "thunder ticket travel valley village violin water weather window winter wonder yellow"
)
WORDS = tuple(_TEXT.split())

# --- how long prompts and answers are ---------------------------------------------------------------------

Lengths = Callable[[random.Random], int]
"""Draws one length in tokens."""


def fixed(tokens: int) -> Lengths:
    """Every length the same."""
    return lambda _: tokens


def uniform(low: int, high: int) -> Lengths:
    """Any length from `low` to `high`, both included."""
    return lambda rng: rng.randint(low, high)


def lognormal(median: float, sigma: float, low: int, high: int) -> Lengths:
    """Skewed lengths as in real traffic: half of them under `median`, a long tail, clipped to the bounds."""
    return lambda rng: max(low, min(high, round(rng.lognormvariate(math.log(median), sigma))))


def mixture(parts: Sequence[tuple[Lengths, float]]) -> Lengths:
    """One of several distributions, chosen by weight."""
    choices = [lengths for lengths, _ in parts]
    weights = [weight for _, weight in parts]
    return lambda rng: rng.choices(choices, weights)[0](rng)


def parse_lengths(text: str) -> Lengths:
    """Read `64`, `16-256`, `lognormal:MEDIAN:SIGMA:LOW-HIGH` or a mixture `64@0.9,512@0.1`."""
    if "," in text or "@" in text:
        parts = [part.rpartition("@") for part in text.split(",")]
        return mixture([(parse_lengths(lengths), float(weight)) for lengths, _, weight in parts])
    if text.startswith("lognormal:"):
        _, median, sigma, bounds = text.split(":")
        low, high = bounds.split("-")
        return lognormal(float(median), float(sigma), int(low), int(high))
    low, dash, high = text.partition("-")
    return uniform(int(low), int(high)) if dash else fixed(int(low))


DEFAULT_PROMPT = fixed(64)
DEFAULT_OUTPUT = fixed(128)

# --- what to send -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """Clients that close the connection early: a share of them, after so many tokens or seconds."""

    after_tokens: int | None = None
    after_seconds: float | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One bounded run. `clients` is the number of callers, or with `rate` the most requests in flight."""

    base_url: str
    seconds: float
    clients: int = 4
    rate: float | None = None
    prompt: Lengths = DEFAULT_PROMPT
    output: Lengths = DEFAULT_OUTPUT
    hang_up: HangUp | None = None
    model: str = "tiny"
    chat: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 120.0
    drain_seconds: float = 120.0
    """How long requests in flight may go on after the last one was sent; then the clients hang up."""
    max_requests: int = 100_000
    pause_after_error_seconds: float = 0.2
    """A refused caller waits this long, so that a closed loop does not spin on a server that is down."""
    usage_in_each_chunk: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse any target that is not this machine."""
        host = urlsplit(self.base_url).hostname or ""
        if not _is_loopback(host):
            raise ValueError(f"load is sent to loopback addresses only, not to {host!r}")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False


# --- what happened ----------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    ERROR = "error"  # a status other than 200, no connection, or an answer that is not whole
    SSE_ERROR = "sse_error"  # an error object inside a stream whose status was 200
    CLIENT_ABORTED = "client_aborted"
    TIMEOUT = "timeout"  # the client waited `timeout_seconds` for the whole answer


@dataclass(slots=True, kw_only=True)
class Record:
    """Ground truth about one request. Times are wall clock seconds."""

    index: int
    due: float
    """When it should have been sent; `start - due` is how late the generator itself was."""
    start: float
    first_token: float | None = None
    last_token: float | None = None
    end: float = math.nan
    asked_prompt_tokens: int
    asked_output_tokens: int
    prompt_tokens: int | None = None
    output_tokens: int = 0
    tokens_exact: bool = False
    """False while `output_tokens` only counts chunks, because the server has not said its usage."""
    status: int | None = None
    outcome: Outcome = Outcome.ERROR
    finish_reason: str | None = None
    detail: str = ""

    @property
    def ttft_seconds(self) -> float | None:
        """Sending to first token."""
        return None if self.first_token is None else self.first_token - self.start

    @property
    def tpot_seconds(self) -> float | None:
        """Mean gap between tokens; 0 for a one-token answer, as the engine's own metric has it."""
        if self.first_token is None or self.last_token is None:
            return None
        return (self.last_token - self.first_token) / max(self.output_tokens - 1, 1)

    @property
    def e2e_seconds(self) -> float:
        """Sending to the end of the stream."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A latency objective a request meets or misses as a whole; None leaves that side open."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    def met_by(self, record: Record) -> bool:
        """Whether the request finished and kept every bound."""
        return (
            record.outcome is Outcome.OK
            and _within(record.ttft_seconds, self.ttft_seconds)
            and _within(record.tpot_seconds, self.tpot_seconds)
        )


def _within(value: float | None, bound: float | None) -> bool:
    return bound is None or (value is not None and value <= bound)


def ended_in(records: Iterable[Record], t0: float, t1: float) -> list[Record]:
    """Requests whose end, of whatever kind, lies in [t0, t1)."""
    return [record for record in records if t0 <= record.end < t1]


def finished_in(records: Iterable[Record], t0: float, t1: float) -> list[Record]:
    """Requests that were answered in full, ending in [t0, t1)."""
    return [record for record in ended_in(records, t0, t1) if record.outcome is Outcome.OK]


def aborted_in(records: Iterable[Record], t0: float, t1: float) -> list[Record]:
    """Requests whose client went away in [t0, t1), by plan or because it waited too long."""
    gone = (Outcome.CLIENT_ABORTED, Outcome.TIMEOUT)
    return [record for record in ended_in(records, t0, t1) if record.outcome in gone]


def first_tokens_in(records: Iterable[Record], t0: float, t1: float) -> list[Record]:
    """Requests whose first token came in [t0, t1): the set behind the engine's TTFT histogram."""
    return [r for r in records if r.first_token is not None and t0 <= r.first_token < t1]


def in_flight_at(records: Iterable[Record], t: float) -> int:
    """How many requests were sent and not yet over at time t."""
    return sum(record.start <= t < record.end for record in records)


def quantile(values: Iterable[float], q: float) -> float:
    """The q-quantile by linear interpolation; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Count, mean and quantiles of one measure."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Of the values that are known."""
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if known else math.nan
        p50, p90, p99 = (quantile(known, q) for q in (0.5, 0.9, 0.99))
        top = max(known, default=math.nan)
        return cls(count=len(known), mean=mean, p50=p50, p90=p90, p99=p99, max=top)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What really happened in [t0, t1), by the time requests ended.

    Token goodput is `good_output_tokens / output_tokens`: the denominator holds every token the server
    wrote for requests that ended in the window, also for those that were aborted or too late.
    """

    t0: float
    t1: float
    outcomes: Mapping[str, int]
    finished: int
    aborted: int
    good: int
    ttft: Spread
    tpot: Spread
    e2e: Spread
    prompt_tokens: int
    output_tokens: int
    good_prompt_tokens: int
    good_output_tokens: int

    @property
    def ended(self) -> int:
        """Requests that ended in the window, however they did."""
        return sum(self.outcomes.values())

    @property
    def goodput_per_second(self) -> float:
        """Good requests a second."""
        return self.good / (self.t1 - self.t0)

    @property
    def output_tokens_per_second(self) -> float:
        """Tokens written a second, good or not."""
        return self.output_tokens / (self.t1 - self.t0)


def truth_in(records: Iterable[Record], t0: float, t1: float, slo: Slo | None = None) -> Truth:
    """Everything about the requests that ended in [t0, t1). Latencies are of those answered in full."""
    ended = ended_in(records, t0, t1)
    finished = finished_in(ended, t0, t1)
    good = [record for record in finished if (slo or Slo()).met_by(record)]
    return Truth(
        t0=t0,
        t1=t1,
        outcomes=dict(Counter(record.outcome.value for record in ended)),
        finished=len(finished),
        aborted=len(aborted_in(ended, t0, t1)),
        good=len(good),
        ttft=Spread.of(record.ttft_seconds for record in finished),
        tpot=Spread.of(record.tpot_seconds for record in finished),
        e2e=Spread.of(record.e2e_seconds for record in finished),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in ended),
        output_tokens=sum(record.output_tokens for record in ended),
        good_prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        good_output_tokens=sum(record.output_tokens for record in good),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All records of a run, in the order they were sent."""

    records: list[Record]
    skipped: int
    started: float
    ended: float
    lag: Spread
    """How late the client's own loop ran, in seconds: times in the records are no better than this."""

    def truth(self, slo: Slo | None = None) -> Truth:
        """The whole run as one window."""
        return truth_in(self.records, self.started, math.nextafter(self.ended, math.inf), slo)


def write_jsonl(records: Iterable[Record], path: Path) -> None:
    """One record a line."""
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))


def read_jsonl(path: Path) -> list[Record]:
    """What `write_jsonl` wrote."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Record(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows]


# --- sending ----------------------------------------------------------------------------------------------


class _Clock:
    """Wall clock time that cannot jump during a run."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset


class _Run:
    """The state of one run."""

    def __init__(self, load: Load, session: aiohttp.ClientSession) -> None:
        self.load = load
        self.session = session
        self.clock = _Clock()
        self.rng = random.Random(load.seed)
        self.records: list[Record] = []
        self.skipped = 0
        self.started = self.clock.now()
        self.deadline = self.started + load.seconds

    def more(self) -> bool:
        return self.clock.now() < self.deadline and len(self.records) < self.load.max_requests

    async def closed_loop(self) -> None:
        await self._drain({asyncio.create_task(self._caller()) for _ in range(self.load.clients)})

    async def _caller(self) -> None:
        while self.more():
            record = await self._request(self.clock.now())
            if record.outcome in (Outcome.ERROR, Outcome.SSE_ERROR):
                await asyncio.sleep(self.load.pause_after_error_seconds)

    async def open_loop(self, rate: float) -> None:
        tasks: set[asyncio.Task[Any]] = set()
        due = self.started
        while True:
            # Arrivals follow the schedule, not the last wake-up: a late wake-up must not thin the load.
            due += self.rng.expovariate(rate)
            if due >= self.deadline:
                break
            await asyncio.sleep(max(0.0, due - self.clock.now()))
            if not self.more():
                break
            if len(tasks) >= self.load.clients:
                self.skipped += 1
                continue
            task = asyncio.create_task(self._request(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await self._drain(set(tasks))

    async def _drain(self, tasks: set[asyncio.Task[Any]]) -> None:
        if not tasks:
            return
        try:
            left = max(0.0, self.deadline - self.clock.now())
            _, late = await asyncio.wait(tasks, timeout=left + self.load.drain_seconds)
        except asyncio.CancelledError:
            late = tasks
            raise
        finally:
            for task in late:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _request(self, due: float) -> Record:
        load, rng = self.load, self.rng
        record = Record(
            index=len(self.records),
            due=due,
            start=self.clock.now(),
            asked_prompt_tokens=load.prompt(rng),
            asked_output_tokens=load.output(rng),
        )
        self.records.append(record)
        hang_up = load.hang_up if load.hang_up and rng.random() < load.hang_up.share else HangUp()
        url, body = self._question(record)
        record.start = self.clock.now()
        patience = min(load.timeout_seconds, hang_up.after_seconds or math.inf)
        try:
            async with asyncio.timeout(patience), self.session.post(url, json=body) as response:
                record.status = response.status
                if response.status == 200:
                    record.outcome = await self._follow(response, record, hang_up.after_tokens)
                else:
                    record.detail = (await response.text())[:200]
        except TimeoutError:
            planned = hang_up.after_seconds == patience
            record.outcome = Outcome.CLIENT_ABORTED if planned else Outcome.TIMEOUT
        except asyncio.CancelledError:
            record.outcome = Outcome.CLIENT_ABORTED
            record.detail = "the run ended"
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a chunk that is no JSON
            record.detail = f"{type(error).__name__}: {error}"[:200]
        finally:
            record.end = self.clock.now()
        return record

    def _question(self, record: Record) -> tuple[str, dict[str, Any]]:
        load = self.load
        text = " " + " ".join(self.rng.choices(WORDS, k=record.asked_prompt_tokens))
        options: dict[str, Any] = {"include_usage": True}
        if load.usage_in_each_chunk:
            options["continuous_usage_stats"] = True
        body: dict[str, Any] = {
            "model": load.model,
            "max_tokens": record.asked_output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": options,
        }
        if load.chat:
            return f"{load.base_url}/v1/chat/completions", body | {
                "messages": [{"role": "user", "content": text}]
            }
        return f"{load.base_url}/v1/completions", body | {"prompt": text}

    async def _follow(
        self, response: aiohttp.ClientResponse, record: Record, hang_up_after: int | None
    ) -> Outcome:
        """Read the stream to its end mark, or to the token after which this client hangs up."""
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return _outcome_of_whole_stream(record)
            event = json.loads(data)
            if "error" in event:
                record.detail = str(event["error"])[:200]
                return Outcome.SSE_ERROR
            self._note(event, record)
            if hang_up_after is not None and record.output_tokens >= hang_up_after:
                response.close()
                return Outcome.CLIENT_ABORTED
        record.detail = "the stream stopped without its end mark"
        return Outcome.ERROR

    def _note(self, event: Mapping[str, Any], record: Record) -> None:
        """Take times and token counts from one chunk. A chunk may hold several tokens, or none yet."""
        before = record.output_tokens
        if usage := event.get("usage"):
            record.prompt_tokens = usage["prompt_tokens"]
            record.output_tokens = usage["completion_tokens"]
            record.tokens_exact = True
        choices = event.get("choices") or ()
        if not choices:
            return
        record.finish_reason = choices[0].get("finish_reason") or record.finish_reason
        if not usage:
            record.output_tokens += 1
        if record.output_tokens > before:
            record.last_token = self.clock.now()
            record.first_token = record.first_token or record.last_token


def _outcome_of_whole_stream(record: Record) -> Outcome:
    """An engine that drops its requests still ends their streams properly: 200, usage, end mark."""
    if record.finish_reason not in (None, "abort", "error"):
        return Outcome.OK
    record.detail = f"the server ended it with finish reason {record.finish_reason}"
    return Outcome.ERROR


async def run_load(load: Load) -> Report:
    """Send the load, wait for what is in flight, and tell what happened to every request."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=load.headers) as session:
        run = _Run(load, session)
        lags: list[float] = []
        watch = asyncio.create_task(_watch_loop(lags))
        try:
            await (run.closed_loop() if load.rate is None else run.open_loop(load.rate))
        finally:
            watch.cancel()
        return Report(
            records=run.records,
            skipped=run.skipped,
            started=run.started,
            ended=run.clock.now(),
            lag=Spread.of(lags),
        )


async def _watch_loop(lags: list[float], period_seconds: float = 0.01) -> None:
    """Note how much later than asked this process gets to run."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(period_seconds)
        lags.append(time.monotonic() - before - period_seconds)


# --- command line -----------------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Send a bounded streaming load to a server on this machine.")
    parser.add_argument("base_url", help="for example http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=4, help="callers; with --rate the most in flight")
    parser.add_argument("--rate", type=float, help="arrivals a second (open loop)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--max-requests", type=int, default=100_000)
    lengths = "N, LOW-HIGH, lognormal:MEDIAN:SIGMA:LOW-HIGH or a mixture 64@0.9,512@0.1"
    parser.add_argument("--prompt", type=parse_lengths, default=DEFAULT_PROMPT, help=lengths)
    parser.add_argument("--output", type=parse_lengths, default=DEFAULT_OUTPUT, help=lengths)
    parser.add_argument("--hang-up-tokens", type=int)
    parser.add_argument("--hang-up-seconds", type=float)
    parser.add_argument("--hang-up-share", type=float, default=1.0)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a client waits for its answer")
    parser.add_argument("--drain", type=float, default=120.0, help="seconds for what is in flight at the end")
    parser.add_argument("--slo-ttft", type=float)
    parser.add_argument("--slo-tpot", type=float)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jsonl", type=Path, help="write one record a line to this file")
    return parser.parse_args()


def main() -> None:
    """Run the load that the command line asks for and print what happened."""
    args = _arguments()
    hang_up = HangUp(
        after_tokens=args.hang_up_tokens, after_seconds=args.hang_up_seconds, share=args.hang_up_share
    )
    load = Load(
        base_url=args.base_url.rstrip("/"),
        seconds=args.seconds,
        clients=args.clients,
        rate=args.rate,
        prompt=args.prompt,
        output=args.output,
        hang_up=hang_up,
        model=args.model,
        chat=args.chat,
        timeout_seconds=args.timeout,
        drain_seconds=args.drain,
        max_requests=args.max_requests,
        seed=args.seed,
    )
    report = asyncio.run(run_load(load))
    if args.jsonl:
        write_jsonl(report.records, args.jsonl)
    truth = report.truth(Slo(ttft_seconds=args.slo_ttft, tpot_seconds=args.slo_tpot))
    statuses = Counter(str(record.status) for record in report.records)
    more = {
        "skipped": report.skipped,
        "lag": asdict(report.lag),
        "statuses": dict(statuses),
        "goodput_per_second": truth.goodput_per_second,
        "output_tokens_per_second": truth.output_tokens_per_second,
    }
    print(json.dumps(_without_nan(asdict(truth) | more)))


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a mean of nothing becomes null."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
