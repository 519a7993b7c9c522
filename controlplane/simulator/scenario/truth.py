"""What really happened in the measured window, as the clients saw it.

A request is one try of a client. It is good where it was answered to the end, its first token came within the
objective since the client sent it, and so did the mean time of its further tokens; an answer that comes whole
is good where it came when such a stream would have ended at the latest. Counts are of what
happened in the window: what was sent, what ended how. So the requests that were in the system at its start
and at its end belong to the account.
"""

from array import array
from collections import Counter

from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.simulator.scenario.live import LENGTH_CLASSES, Live


class Account:
    """Requests of one tenant or one length class by what became of them, and their tokens."""

    __slots__ = ("completed", "good", "good_tokens", "offered", "offered_tokens", "refused")

    def __init__(self) -> None:
        self.offered = 0
        self.offered_tokens = 0
        self.completed = 0
        self.refused = 0
        self.good = 0
        self.good_tokens = 0


class Truth:
    """Counts from second `start` on, against the objectives of each class. Calls come in order of time."""

    def __init__(self, settings: AdmissionSettings, start: float) -> None:
        self.start = start
        self.failed = 0
        self.gave_up = 0
        self.preemptions = 0
        self.would_refuse = 0  # while the gateway only observes
        self.tokens = 0  # of all completed
        self.refused_by_reason: Counter[str] = Counter()
        self.by_length = tuple(Account() for _ in LENGTH_CLASSES)
        self.by_tenant: dict[str, Account] = {}
        self.ttft = array("d")
        self.tpot = array("d")
        self.e2e = array("d")
        self.all_offered = 0  # these since second 0, for the series
        self.all_good = 0
        self.all_good_tokens = 0
        self.recent_ttft: list[float] = []
        self._objectives = {
            name: (objective.ttft, objective.tpot)
            for name, objective in (
                ("interactive", settings.interactive),
                ("agent", settings.agent),
                ("batch", settings.batch),
            )
        }

    def offered(self, live: Live) -> None:
        self.all_offered += 1
        if live.sent_at >= self.start:
            for account in self._accounts(live):
                account.offered += 1
                account.offered_tokens += live.tokens

    def refused(self, live: Live, reason: str, now: float) -> None:
        if now >= self.start:
            self.refused_by_reason[reason] += 1
            for account in self._accounts(live):
                account.refused += 1

    def preempted(self, now: float) -> None:
        self.preemptions += now >= self.start

    def has_failed(self, now: float) -> None:
        self.failed += now >= self.start

    def has_given_up(self, now: float) -> None:
        self.gave_up += now >= self.start

    def finished(self, live: Live, now: float) -> None:
        ttft = live.first_token_at - live.sent_at
        more = live.request.output_tokens - 1
        tpot = (now - live.first_token_at) / more if more else 0.0
        ttft_objective, tpot_objective = self._objectives[live.source.service_class]
        if live.source.stream:
            good = ttft <= ttft_objective and tpot <= tpot_objective
        else:
            good = now - live.sent_at <= ttft_objective + more * tpot_objective
        self.recent_ttft.append(ttft)
        if good:
            self.all_good += 1
            self.all_good_tokens += live.tokens
        if now < self.start:
            return
        self.tokens += live.tokens
        self.ttft.append(ttft)
        self.e2e.append(now - live.sent_at)
        if more:
            self.tpot.append(tpot)
        for account in self._accounts(live):
            account.completed += 1
            if good:
                account.good += 1
                account.good_tokens += live.tokens

    def _accounts(self, live: Live) -> tuple[Account, Account]:
        tenant = self.by_tenant.get(live.source.tenant)
        if tenant is None:
            tenant = self.by_tenant[live.source.tenant] = Account()
        return tenant, self.by_length[live.length_class]


def jain(served: list[float], wanted: list[float]) -> float | None:
    """Jain's index of how evenly `served` follows the max-min fair shares of the same total; None of nothing.

    A tenant that wants less than its share is measured against what it wants, so that modesty is no
    injustice. For tenants that all want more than they get it is the usual index of `served`.
    """
    pairs = [(got, want) for got, want in zip(served, wanted, strict=True) if want > 0]
    total = sum(got for got, _ in pairs)
    if total <= 0:
        return None
    level = _water_level([want for _, want in pairs], total)
    ratios = [got / min(want, level) for got, want in pairs]
    return sum(ratios) ** 2 / (len(ratios) * sum(ratio * ratio for ratio in ratios))


def _water_level(wanted: list[float], total: float) -> float:
    """The most that anyone gets where `total` is shared out max-min fairly."""
    left = total
    ordered = sorted(wanted)
    for i, want in enumerate(ordered):
        share = left / (len(ordered) - i)
        if want >= share:
            return share
        left -= want
    return ordered[-1]
