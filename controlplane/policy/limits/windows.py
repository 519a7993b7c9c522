"""One window of one replica, as a limit law is told of it, made from what production has.

Two sources of latency, and one of gauges:

    gateways    what they reported since the window before: in flight, first tokens, step gaps
    scrapes     where no gateway of ours reports on the pool: what grew between the two newest pages; the
                same where they do, but of answers that come whole, which show nothing before they end
    gauges      KV usage, waiting, preemptions and restarts are always the engine's own

Several gateways are added up: what is in flight by the sum, times by the number of those they are of.
Windows end now, in our time: gateways' clocks may differ from ours, and what they tell is a second or two
old at most.

Requests that reach the engine past all gateways take room too. They are what its page showed to be inside
beyond what the gateways had there at the most in that window.

Laws of the round trip need single requests; nobody in production reports those.
"""

import math
from collections.abc import Container, Sequence
from typing import TypeAlias

import msgspec

from controlplane.policy.limits.kv_ceiling import ENOUGH, Lengths, kv_ceiling
from controlplane.policy.limits.law import Window
from controlplane.signals.histogram import Histogram
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.samples import ReplicaWindow
from controlplane.signals.snapshot import Distribution, Number, Quantiles

_LATELY_SECONDS = 5.0  # older windows, of a gateway that could not be reached, tell nothing of now
_IDLE = ReplicaWindow()

Part: TypeAlias = tuple[str, float, ReplicaWindow | None]
"""What one gateway told of a replica in one of its windows: the gateway, the window's end, and what it saw
(None: nothing happened)."""


class Sight(msgspec.Struct, frozen=True):
    """What the next window of a replica begins with: the `end` of the one before, the page seen last, the
    newest number in flight by gateway, and how many of others were inside the engine."""

    end: float
    restarts: int = 0
    page_at: float = 0.0
    in_flight: dict[str, int] = {}
    others: float = 0.0


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The newest page of a replica, at Unix time `at` (0 before the first).

    `preemptions` happened between it and the page before. Readings are as the snapshot has them: too old ones
    are unknown. `kv_tokens` and `max_num_seqs` are None where not known.
    """

    at: float = 0.0
    restarts: int = 0
    running: Number
    waiting: Number
    kv_usage: Number
    preemptions: Number
    kv_tokens: float | None = None
    max_num_seqs: int | None = None


class Growth(msgspec.Struct, frozen=True):
    """What an engine observed between its two newest pages: histograms of seconds, None where not known.

    `first_token` is held against the objective `ttft_seconds`. `step_gap` is of single `tokens`, or where
    those are not known (None) of requests, like `tpot`, which is of the mean time per token of each, against
    the objective `tpot_seconds`.
    """

    first_token: Histogram | None
    step_gap: Histogram | None
    tpot: Histogram | None = None
    ttft_seconds: float = math.inf
    tpot_seconds: float = math.inf
    tokens: float | None = None

    @property
    def mean_gap(self) -> float | None:
        """Mean seconds between two tokens of a stream; None of none. A gap may have brought several."""
        gap = self.step_gap
        mean = None if gap is None else gap.mean
        return mean if gap is None or mean is None or not self.tokens else mean * gap.count / self.tokens

    @property
    def paced(self) -> float | None:
        """Requests of two tokens and more that finished."""
        return None if self.tpot is None else self.tpot.count

    @property
    def slow(self) -> float | None:
        """Those of them that certainly missed the objective."""
        return _certainly_over(self.tpot, self.tpot_seconds)

    @property
    def late(self) -> float | None:
        """First tokens that certainly missed the objective."""
        return _certainly_over(self.first_token, self.ttft_seconds)


def from_gateways(
    sight: Sight,
    told: Sequence[Part],
    page: Page,
    growth: Growth | None,
    lengths: Lengths,
    *,
    heard: Container[str],
    now: float,
) -> tuple[Window, Sight]:
    """The window of a replica that ends now, and what the next one begins with.

    `told` is what came since the one before, the oldest first; `heard` are the gateways that were heard
    lately: of those that tell nothing this time, the last number in flight stands. `growth` is None where no
    page came since.
    """
    in_flight = {gateway: count for gateway, count in sight.in_flight.items() if gateway in heard}
    most: dict[str, int] = {}
    reserved: dict[str, int] = {}
    most_reserved: dict[str, int] = {}
    means: dict[str, list[float]] = {}
    firsts, gaps, gap_seconds, tokens, paced, slow, came_late = [], 0, 0.0, 0, 0, 0, 0
    newest = {gateway: end for gateway, end, _ in told}
    for gateway, end, part in told:
        if newest[gateway] - end > _LATELY_SECONDS:
            continue
        seen = part or _IDLE
        most[gateway] = max(most.get(gateway, 0), seen.max_in_flight)
        in_flight[gateway] = seen.in_flight
        most_reserved[gateway] = max(most_reserved.get(gateway, 0), seen.max_reserved_tokens)
        reserved[gateway] = seen.reserved_tokens
        means.setdefault(gateway, []).append(_or(seen.mean_in_flight, seen.in_flight))
        paced += seen.paced
        slow += seen.slow
        came_late += seen.late
        gaps += seen.gaps
        tokens += seen.gaps + seen.whole_tokens
        gap_seconds += seen.gap_seconds
        if seen.first_token is not None:
            firsts.append(seen.first_token)
    ours, ours_at_most = float(sum(in_flight.values())), float(sum({**in_flight, **most}.values()))
    ours_on_average = math.fsum(
        sum(means[gateway]) / len(means[gateway]) if gateway in means else count
        for gateway, count in in_flight.items()
    )
    others = _others(sight, page, ours_at_most)
    after = Sight(now, page.restarts, page.at, in_flight, others)
    nothing = Unknown(Reason.NO_TRAFFIC, now)
    first_token: Distribution = Known(_together(firsts), now) if firsts else nothing
    step_gap: Number = Known(gap_seconds / gaps, now) if gaps else nothing
    late: float | None = came_late
    if growth is not None and not firsts and not gaps:
        at, late = _at(sight, page, now), growth.late
        first_token, step_gap = _quantiles(growth.first_token, at), _gap(growth, at)
    window = _window(
        sight,
        page,
        lengths,
        now,
        in_flight=ours + others,
        max_in_flight=ours_at_most + others,
        mean_in_flight=ours_on_average + others,
        reserved_tokens=float(sum(reserved.values())),
        max_reserved_tokens=float(sum(most_reserved.values())),
        paced=float(paced),
        slow=float(slow),
        late=late,
        tokens=float(tokens),
        first_token=first_token,
        step_gap=step_gap,
    )
    return window, after


def from_scrapes(
    sight: Sight, page: Page, growth: Growth | None, lengths: Lengths, now: float
) -> tuple[Window, Sight]:
    """The same where scrapes are all there is. `growth` is None where no page came since the last window."""
    inside = _inside(page)
    why = Unknown(Reason.STALE if page.at else Reason.NOT_SCRAPED, page.at)
    first_token: Distribution = why
    step_gap: Number = why
    if growth is not None:
        at = _at(sight, page, now)
        first_token = _quantiles(growth.first_token, at)
        step_gap = _gap(growth, at)
    window = _window(
        sight,
        page,
        lengths,
        now,
        in_flight=inside,
        max_in_flight=inside,
        mean_in_flight=inside,
        paced=None if growth is None else growth.paced,
        slow=None if growth is None else growth.slow,
        late=None if growth is None else growth.late,
        tokens=None if growth is None else growth.tokens,
        first_token=first_token,
        step_gap=step_gap,
    )
    return window, Sight(now, page.restarts, page.at)


def skipped(sight: Sight, page: Page, now: float) -> Sight:
    """What happened until now is not looked at."""
    return Sight(now, page.restarts, page.at, sight.in_flight, sight.others)


def _window(
    sight: Sight,
    page: Page,
    lengths: Lengths,
    now: float,
    *,
    in_flight: float | None,
    max_in_flight: float | None,
    mean_in_flight: float | None,
    reserved_tokens: float | None = None,
    max_reserved_tokens: float | None = None,
    paced: float | None,
    slow: float | None,
    late: float | None,
    tokens: float | None,
    first_token: Distribution,
    step_gap: Number,
) -> Window:
    at = _at(sight, page, now)
    return Window(
        start=sight.end,
        end=now,
        in_flight=in_flight,
        max_in_flight=max_in_flight,
        mean_in_flight=mean_in_flight,
        reserved_tokens=reserved_tokens,
        max_reserved_tokens=max_reserved_tokens,
        request_tokens=lengths.request_tokens,
        paced=paced,
        slow=slow,
        late=late,
        tokens=tokens,
        first_token=first_token,
        step_gap=step_gap,
        running=_taken_at(page.running, page, at),
        kv_usage=_taken_at(page.kv_usage, page, at),
        waiting=_taken_at(page.waiting, page, at),
        preemptions=_taken_at(page.preemptions, page, at),
        max_num_seqs=page.max_num_seqs,
        kv_ceiling=_ceiling(page, lengths),
        restarted=page.restarts > sight.restarts,
    )


def _ceiling(page: Page, lengths: Lengths) -> float | None:
    if page.kv_tokens is None or lengths.requests < ENOUGH:
        return None
    return kv_ceiling(page.kv_tokens, lengths)


def _at(sight: Sight, page: Page, now: float) -> float:
    """The time of the page; of one that comes late, a time inside the window: it is news all the same."""
    if page.at > sight.page_at and page.at <= sight.end:
        return (sight.end + now) / 2
    return page.at


def _taken_at(reading: Number, page: Page, at: float) -> Number:
    if at == page.at or not isinstance(reading, Known) or reading.at != page.at:
        return reading
    return Known(reading.value, at, reading.quality)


def _inside(page: Page) -> float | None:
    """How many requests the engine has, running and waiting; None where that is not known."""
    if isinstance(page.running, Unknown):
        return None
    return page.running.value + (page.waiting.value if isinstance(page.waiting, Known) else 0.0)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _others(sight: Sight, page: Page, ours_at_most: float) -> float:
    inside = _inside(page)
    if inside is None:
        return 0.0
    return max(0.0, inside - ours_at_most) if page.at > sight.page_at else sight.others


def _together(parts: Sequence[Quantiles]) -> Quantiles:
    """One distribution of several: their quantiles are averaged, each by its number."""
    if len(parts) == 1:
        return parts[0]
    count = math.fsum(part.count for part in parts)

    def mean(name: str) -> float | None:
        known = [(value, part.count) for part in parts if (value := getattr(part, name)) is not None]
        weight = math.fsum(w for _, w in known)
        return math.fsum(value * w for value, w in known) / weight if weight else None

    return Quantiles(count, *(mean(name) for name in ("mean", "p50", "p90", "p95", "p99")))


def _certainly_over(histogram: Histogram | None, seconds: float) -> float | None:
    if histogram is None:
        return None
    below = histogram.count_below(seconds)
    return 0.0 if below is None else histogram.count - below.high


def _quantiles(histogram: Histogram | None, at: float) -> Distribution:
    if histogram is None:
        return Unknown(Reason.ABSENT, at)
    if histogram.count <= 0:
        return Unknown(Reason.NO_TRAFFIC, at)
    q = histogram.quantile
    return Known(Quantiles(histogram.count, histogram.mean, q(0.5), q(0.9), q(0.95), q(0.99)), at)


def _gap(growth: Growth, at: float) -> Number:
    if growth.step_gap is None:
        return Unknown(Reason.ABSENT, at)
    mean = growth.mean_gap
    return Unknown(Reason.NO_TRAFFIC, at) if mean is None else Known(mean, at)
