"""The result of a run as one JSON document; the same scenario and seed give the same bytes."""

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from controlplane import __version__
from controlplane.simulator.scenario.books import little_ratio
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.gpu_account import GpuHealth
from controlplane.simulator.scenario.live import LENGTH_CLASSES
from controlplane.simulator.scenario.run import Run
from controlplane.simulator.scenario.truth import Account, jain

_DIGITS = 9  # of floats in the JSON: more is noise
_MOST_TOLD = 100


class Part(msgspec.Struct, frozen=True):
    """What became of a part of the requests; `token_goodput` in tokens a second."""

    offered: int
    completed: int
    refused: int
    good: int
    token_goodput: float


class Bounds(msgspec.Struct, frozen=True):
    """Proven bounds and the best guess between them, per second."""

    low: float
    guess: float
    high: float


class AsReported(msgspec.Struct, frozen=True):
    """Goodput as the daemon counts it from scrapes alone, from one closed cell to another (seconds of the
    run), and the truth over the same time. Engines do not see the wait before them, and so not the daemon."""

    since: float
    until: float
    request_goodput: Bounds
    true_request_goodput: float
    token_goodput: Bounds
    true_token_goodput: float


class Told(msgspec.Struct, frozen=True):
    """An event or a decision of the daemon at second `at` of the run."""

    at: float
    kind: str
    target: str
    sentence: str


class Users(msgspec.Struct, frozen=True):
    """What clients wanted in the whole run, however many tries each took."""

    wanted: int
    tries: int
    answered: int
    refused: int
    failed: int
    gave_up: int
    under_way: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and rates of the measured window; rates are per second of it. A request is one try of a client.

    offered + in_system_at_start = completed + refused + failed + gave_up + in_system_at_end. A gateway that
    only observes refuses nobody, but tells how many it would_refuse.
    """

    version: str
    scenario: str
    seed: int
    load: float
    policy: dict[str, Any]
    measured_seconds: float
    offered: int
    completed: int
    refused: int
    would_refuse: int
    failed: int
    gave_up: int
    in_system_at_start: int
    in_system_at_end: int
    request_goodput: float
    token_goodput: float
    token_throughput: float
    good: int
    ttft_p50_seconds: float | None
    ttft_p95_seconds: float | None
    ttft_p99_seconds: float | None
    tpot_p50_seconds: float | None
    tpot_p95_seconds: float | None
    tpot_p99_seconds: float | None
    e2e_p50_seconds: float | None
    e2e_p95_seconds: float | None
    preemptions: int
    jain_index: float | None
    refused_by_length: dict[str, int]
    refused_by_reason: dict[str, int]
    by_length: dict[str, Part]
    by_tenant: dict[str, Part]
    users: Users
    limit_mean: float | None
    limit_last: float | None
    daemon: AsReported | None
    gpus: GpuHealth | None
    told: tuple[Told, ...]
    told_left_out: int
    little_ratio: float | None


def result_of(run: Run, name: str) -> Result:
    """The result of a run that has ended; `name` is what the scenario is called."""
    scenario, truth = run.scenario, run.truth
    start, end = run.marks
    seconds = scenario.duration - scenario.warmup
    lengths = dict(zip(LENGTH_CLASSES, truth.by_length, strict=True))
    tenants = dict(sorted(truth.by_tenant.items()))
    told = _told(run)
    limits = run.series.limit[_first_after(run.series.seconds, scenario.warmup) :]
    total = _sum(lengths.values())
    return Result(
        version=__version__,
        scenario=name,
        seed=scenario.seed,
        load=scenario.workload.times,
        policy=run.law.model_dump(mode="json"),
        measured_seconds=seconds,
        offered=total.offered,
        completed=total.completed,
        refused=total.refused,
        would_refuse=truth.would_refuse,
        failed=truth.failed,
        gave_up=truth.gave_up,
        in_system_at_start=start.inside,
        in_system_at_end=end.inside,
        request_goodput=total.good / seconds,
        token_goodput=total.good_tokens / seconds,
        token_throughput=truth.tokens / seconds,
        good=total.good,
        ttft_p50_seconds=_percentile(truth.ttft, 50),
        ttft_p95_seconds=_percentile(truth.ttft, 95),
        ttft_p99_seconds=_percentile(truth.ttft, 99),
        tpot_p50_seconds=_percentile(truth.tpot, 50),
        tpot_p95_seconds=_percentile(truth.tpot, 95),
        tpot_p99_seconds=_percentile(truth.tpot, 99),
        e2e_p50_seconds=_percentile(truth.e2e, 50),
        e2e_p95_seconds=_percentile(truth.e2e, 95),
        preemptions=truth.preemptions,
        jain_index=jain(
            [float(account.good_tokens) for account in tenants.values()],
            [float(account.offered_tokens) for account in tenants.values()],
        ),
        refused_by_length={name: account.refused for name, account in lengths.items()},
        refused_by_reason=dict(sorted(truth.refused_by_reason.items())),
        by_length={name: _part(account, seconds) for name, account in lengths.items()},
        by_tenant={name: _part(account, seconds) for name, account in tenants.items()},
        users=_users(run),
        limit_mean=float(np.mean(limits)) if run.controls and len(limits) else None,
        limit_last=run.limit if run.controls else None,
        daemon=_as_reported(run),
        gpus=None if scenario.gpus is None else run.gpu_account.result(run.series, scenario.warmup),
        told=tuple(told[:_MOST_TOLD]),
        told_left_out=max(0, len(told) - _MOST_TOLD),
        little_ratio=little_ratio(start, end),
    )


def to_json(result: Result) -> bytes:
    """The result as indented JSON with a line feed at the end."""
    return msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(result))), indent=2) + b"\n"


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
        case _:
            return value


def _sum(accounts: Iterable[Account]) -> Account:
    total = Account()
    for account in accounts:
        for name in Account.__slots__:
            setattr(total, name, getattr(total, name) + getattr(account, name))
    return total


def _part(account: Account, seconds: float) -> Part:
    return Part(
        account.offered, account.completed, account.refused, account.good, account.good_tokens / seconds
    )


def _percentile(values: "array[float]", percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _first_after(seconds: "array[float]", start: float) -> int:
    return int(np.searchsorted(seconds, start, side="right"))


def _users(run: Run) -> Users:
    tallies = run.clients.tallies.values()
    wanted = sum(tally.offered for tally in tallies)
    answered = sum(tally.finished for tally in tallies)
    refused = sum(tally.refused for tally in tallies)
    failed = sum(tally.failed for tally in tallies)
    gave_up = sum(tally.gave_up for tally in tallies)
    return Users(
        wanted=wanted,
        tries=sum(tally.tries for tally in tallies),
        answered=answered,
        refused=refused,
        failed=failed,
        gave_up=gave_up,
        under_way=wanted - answered - refused - failed - gave_up,
    )


def _as_reported(run: Run) -> AsReported | None:
    """From the first closing of cells in the measured window to the last; None where there are not two."""
    closings = [closing for closing in run.closings if closing.at >= run.scenario.warmup]
    if len(closings) < 2:
        return None
    first, last = closings[0], closings[-1]
    seconds = last.at - first.at
    then, now = first.totals, last.totals
    return AsReported(
        since=first.at,
        until=last.at,
        request_goodput=Bounds(
            (now.good.low - then.good.low) / seconds,
            (now.good_point - then.good_point) / seconds,
            (now.good.high - then.good.high) / seconds,
        ),
        true_request_goodput=(last.good - first.good) / seconds,
        token_goodput=Bounds(
            (now.good_tokens.low - then.good_tokens.low) / seconds,
            (now.good_tokens_point - then.good_tokens_point) / seconds,
            (now.good_tokens.high - then.good_tokens.high) / seconds,
        ),
        true_token_goodput=(last.good_tokens - first.good_tokens) / seconds,
    )


def _told(run: Run) -> list[Told]:
    events = [Told(e.at - UNIX_START, e.kind, e.target, e.sentence) for e in run.watch.events]
    decisions = [Told(d.at - UNIX_START, d.reason, d.target, d.sentence) for d in run.watch.decisions]
    return sorted(events + decisions, key=lambda told: told.at)
