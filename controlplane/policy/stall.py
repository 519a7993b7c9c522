"""Work without progress: a wedged engine, or gauges that froze after their requests had gone.

An engine that runs or queues requests computes; whatever it computes moves some counter: tokens of a
prompt, tokens of an answer, engine steps (a long chunked prefill moves only those, and the KV usage).
Some engines count tokens only when a request ends; of those, one that shows no step is not judged.
Where nothing of that moves for long while the page is served, one of two things is true. Either the
engine is **wedged** (vLLM's `/health` stays 200 then), or it is idle and its **gauges are frozen** at
the last step before all its clients hung up (vLLM issue 22545). Only whoever sends the requests knows
which; where no gateway tells, the state is called **stalled** and the gauges are not believed.
"""

import msgspec

from controlplane.signals.samples import Signals

_STEP_NUMBERS = ("decode_steps_total", "realtime_tokens_total")
_STEP_COUNTS = ("step_tokens", "step_time", "itl")
_MOVING_NUMBERS = ("prompt_tokens_total", "generation_tokens_total", "kv_usage", *_STEP_NUMBERS)
_MOVING_COUNTS = ("ttft", "e2e", *_STEP_COUNTS)


class Progress(msgspec.Struct, frozen=True):
    """The last time (Unix seconds) an engine moved or was idle, and what its counters said then."""

    at: float
    trace: tuple[float, ...]


def trace(*counted: Signals) -> tuple[float, ...]:
    """All values that move when an engine works; -1 for those that are not there."""
    values: list[float] = []
    for signals in counted:
        values.extend(signals.numbers.get(name, -1.0) for name in _MOVING_NUMBERS)
        seen = (signals.histograms.get(name) for name in _MOVING_COUNTS)
        values.extend(-1.0 if histogram is None else histogram.count for histogram in seen)
    return tuple(values)


def shows_steps(*counted: Signals) -> bool:
    """Whether the page has anything that moves with each step, not only with each finished request."""
    return any(
        any(name in s.numbers for name in _STEP_NUMBERS) or any(name in s.histograms for name in _STEP_COUNTS)
        for s in counted
    )


def busy(signals: Signals) -> bool:
    """Whether the gauges say that there is work."""
    return signals.numbers.get("running", 0.0) > 0 or signals.numbers.get("waiting", 0.0) > 0


def follow(
    progress: Progress | None, signals: Signals, shared: Signals, at: float, *, lags: bool
) -> Progress:
    """The progress of one engine after one more page at `at`.

    `shared` counts for it where not it itself; `lags` says that its tokens are counted only at the end.
    """
    now = trace(signals, shared)
    judged = busy(signals) and (not lags or shows_steps(signals, shared))
    return progress if progress is not None and judged and now == progress.trace else Progress(at, now)


def judge(who: str, stalled_seconds: float, in_flight: float | None, signals: Signals) -> tuple[str, str]:
    """The kind of a stall of engine `who`, and its sentence; `in_flight` is what the gateways have open
    towards it, None where they do not tell."""
    running, waiting = signals.numbers.get("running", 0.0), signals.numbers.get("waiting", 0.0)
    facts = (
        f"{who} shows {running:.0f} running and {waiting:.0f} waiting, "
        f"but not one token for {stalled_seconds:.0f} s"
    )
    if in_flight is None:
        return "stalled", f"{facts}: it is wedged, or its gauges froze after the clients hung up"
    if in_flight > 0:
        return "wedged", f"{facts}, while the gateways have {in_flight:.0f} requests open"
    return "frozen-gauges", f"{facts}, and no gateway has a request open: the gauges are frozen"
