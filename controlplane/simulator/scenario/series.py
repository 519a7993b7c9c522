"""What a run looks like over time: one point a control interval."""

from array import array

from controlplane.simulator.scenario.truth import Truth

_PERCENTILE = 0.95


class Series:
    """Columns of equal length. `limit`, `in_flight`, `queued` (before the engines), `waiting` (in them) are
    of the whole fleet, `kv_usage` is the fullest engine's; `ttft_seconds` is the 95th percentile of what
    finished in the interval (NaN of nothing); what was offered and what was good is per second of it."""

    def __init__(self) -> None:
        self.seconds = array("d")
        self.limit = array("d")
        self.in_flight = array("d")
        self.queued = array("d")
        self.waiting = array("d")
        self.kv_usage = array("d")
        self.ttft_seconds = array("d")
        self.offered = array("d")
        self.request_goodput = array("d")
        self.token_goodput = array("d")
        self._counted = (0, 0, 0)

    def add(
        self,
        now: float,
        *,
        limit: float,
        in_flight: int,
        queued: int,
        waiting: int,
        kv_usage: float,
        truth: Truth,
    ) -> None:
        """The point at `now`; takes from `truth` what happened since the point before."""
        interval = now - (self.seconds[-1] if self.seconds else 0.0)
        ttft = sorted(truth.recent_ttft)
        truth.recent_ttft.clear()
        before, self._counted = self._counted, (truth.all_offered, truth.all_good, truth.all_good_tokens)
        offered, good, tokens = (new - old for new, old in zip(self._counted, before, strict=True))
        self.seconds.append(now)
        self.limit.append(limit)
        self.in_flight.append(in_flight)
        self.queued.append(queued)
        self.waiting.append(waiting)
        self.kv_usage.append(kv_usage)
        self.ttft_seconds.append(ttft[int(len(ttft) * _PERCENTILE)] if ttft else float("nan"))
        self.offered.append(offered / interval)
        self.request_goodput.append(good / interval)
        self.token_goodput.append(tokens / interval)
