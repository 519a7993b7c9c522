"""The goodput interval must hold the truth, whatever the requests do."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.goodput import Carry, Cell, Ends, EngineCell, Finishers, measure, start, summarize
from controlplane.policy.settings import Slo
from controlplane.signals.histogram import Histogram
from controlplane.signals.interval import Interval, exactly
from controlplane.signals.reading import Reason
from controlplane.signals.snapshot import Denominator

TTFT_BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
TPOT_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 1.0, math.inf)
PHASE_BOUNDS = (0.3, 1.0, 2.5, 5.0, 10.0, math.inf)
LENGTH_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, math.inf)
CELL = 10.0


@dataclass(frozen=True)
class Request:
    """One request as only an onlooker inside the engine could see it."""

    arrival: float
    queue_time: float
    prefill_time: float
    prompt: int
    output: int
    tpot: float
    fate: str  # "answer"; "hang-up" at the end unseen; "error" after tokens; "no token" error before any

    @property
    def ttft(self) -> float:
        return self.queue_time + self.prefill_time

    @property
    def first_token(self) -> float:
        return self.arrival + self.ttft

    @property
    def mean_gap(self) -> float:
        return self.tpot if self.output > 1 else 0.0

    @property
    def end(self) -> float:
        return self.first_token + self.mean_gap * (self.output - 1)

    def good(self, slo: Slo) -> bool:
        return self.fate == "answer" and self.ttft <= slo.ttft and self.mean_gap <= slo.tpot


requests = st.builds(
    Request,
    arrival=st.floats(0, 60),
    queue_time=st.floats(0, 6),
    prefill_time=st.floats(0.01, 3),
    prompt=st.integers(1, 300),
    output=st.integers(1, 400),
    tpot=st.floats(0.005, 0.12),
    fate=st.sampled_from(["answer", "answer", "answer", "hang-up", "error", "no token"]),
)


def observed(bounds: tuple[float, ...], values: list[float]) -> Histogram:
    counts = tuple(float(sum(v <= b for v in values)) for b in bounds)
    return Histogram(bounds, counts, math.fsum(values))


def cells_of(
    everything: list[Request], slo: Slo, slack: float = 0.0
) -> list[tuple[EngineCell, list[Request]]]:
    """Each cell as measured, beside the requests that really finished in it.

    The gauge may show `slack` more requests than there are, as it does with waiting ones.
    """
    out = []
    carry = Carry()
    for k in range(13):
        low, high = k * CELL, (k + 1) * CELL
        first = [r for r in everything if low < r.first_token <= high and r.fate != "no token"]
        done = [r for r in everything if low < r.end <= high and r.fate != "hang-up"]
        running = sum(r.first_token <= high < r.end for r in everything)
        seen = Finishers(
            ttft=observed(TTFT_BOUNDS, [r.ttft for r in first]),
            tpot=observed(TPOT_BOUNDS, [r.tpot for r in done if r.output > 1]),
            e2e=observed(PHASE_BOUNDS, [r.end - r.arrival for r in done]),
            queue_time=observed(PHASE_BOUNDS, [r.queue_time for r in done]),
            prefill_time=observed(PHASE_BOUNDS, [r.prefill_time for r in done]),
            prompt_len=observed(LENGTH_BOUNDS, [float(r.prompt) for r in done]),
            generation_len=observed(LENGTH_BOUNDS, [float(r.output) for r in done]),
            not_answers=float(sum(r.fate != "answer" for r in done)),
        )
        cell, carry = measure(carry, seen, slo, running + slack)
        out.append((cell, done))
    return out


@given(
    st.lists(requests, max_size=60),
    st.sampled_from([(2.5, 0.05), (1.0, 0.025), (2.0, 0.04)]),
    st.sampled_from([0.0, 3.0, 1e9]),
)
def test_truth_is_inside_the_interval(
    everything: list[Request], limits: tuple[float, float], slack: float
) -> None:
    slo = Slo(ttft=f"{limits[0]}s", tpot=f"{limits[1]}s")  # the last pair lies between bucket edges
    for cell, done in cells_of(everything, slo, slack):
        good = [r for r in done if r.good(slo)]
        tokens = sum(r.prompt + r.output for r in good)
        assert cell.requests == len(done)
        assert cell.good.low - 1e-9 <= len(good) <= cell.good.high + 1e-9
        assert cell.good.low <= cell.good_point <= cell.good.high
        assert cell.good_tokens.low - 1e-6 <= tokens <= cell.good_tokens.high + 1e-6
        assert cell.good_tokens.low <= cell.good_tokens_point <= cell.good_tokens.high
        assert cell.tokens == sum(r.prompt + r.output for r in done)


@given(st.lists(requests, max_size=60))
def test_all_in_time_is_exact(everything: list[Request]) -> None:
    """Where every request is good the interval has no width, carry or not."""
    slo = Slo(ttft="10s", tpot="1s")
    answers = [r for r in everything if r.fate in ("answer", "hang-up")]
    for cell, done in cells_of(answers, slo):
        assert cell.good == exactly(float(len(done)))
        assert cell.good_tokens == exactly(float(sum(r.prompt + r.output for r in done)))


def finishers(**given: Histogram | float | None) -> Finishers:
    fields: dict[str, object] = dict.fromkeys(Finishers.__struct_fields__)
    return Finishers(**{**fields, "not_answers": 0.0, "why": Reason.ABSENT, **given})  # type: ignore[arg-type]


def two_marginals(in_time: int, fast: int, n: int) -> Finishers:
    ttft = Histogram((2.5, math.inf), (float(in_time), float(n)), None)
    tpot = Histogram((0.05, math.inf), (float(fast), float(n)), None)
    return finishers(ttft=ttft, tpot=tpot)


@pytest.mark.parametrize(
    ("in_time", "fast", "low", "high"),
    [(100, 100, 100, 100), (80, 70, 50, 70), (30, 40, 0, 30), (0, 100, 0, 0), (100, 0, 0, 0)],
)
def test_frechet_hoeffding(in_time: int, fast: int, low: int, high: int) -> None:
    cell, _ = measure(Carry(), two_marginals(in_time, fast, 100), Slo(), 0.0)
    assert cell.good == Interval(low, high)


def test_point_is_the_product_of_the_shares() -> None:
    cell, _ = measure(Carry(), two_marginals(80, 70, 100), Slo(), 0.0)
    assert cell.good_point == pytest.approx(56.0)


def test_an_engine_without_per_request_tpot_proves_no_lower_bound() -> None:
    seen = two_marginals(80, 0, 100)
    seen = finishers(ttft=seen.ttft, e2e=Histogram((100.0, math.inf), (100.0, 100.0), None))
    cell, _ = measure(Carry(), seen, Slo(), 0.0)
    assert cell.good == Interval(0.0, 80.0)


def test_errors_are_finished_but_never_good() -> None:
    seen = two_marginals(100, 100, 100)
    seen = finishers(ttft=seen.ttft, tpot=seen.tpot, not_answers=10.0)
    cell, _ = measure(Carry(), seen, Slo(), 0.0)
    assert cell.good == exactly(90.0)


def test_requests_that_ran_before_we_watched_are_unknown() -> None:
    none = Histogram((2.5, math.inf), (0.0, 0.0), None)
    seen = finishers(ttft=none, tpot=Histogram((0.05, math.inf), (8.0, 8.0), None))
    cell, carry = measure(start(10.0), seen, Slo(), 2.0)
    assert cell.good == Interval(0.0, 8.0)
    assert carry.size == 2.0


def test_a_changed_objective_forgets_what_was_in_time() -> None:
    first = finishers(ttft=Histogram((2.5, math.inf), (5.0, 5.0), None), finished=0.0)
    _, carry = measure(Carry(), first, Slo(), 5.0)
    assert carry.in_time == exactly(5.0)
    none = Histogram((2.5, math.inf), (0.0, 0.0), None)
    done = finishers(ttft=none, tpot=Histogram((0.05, math.inf), (5.0, 5.0), None))
    cell, _ = measure(carry, done, Slo(ttft="1s"), 0.0)
    assert cell.good == Interval(0.0, 5.0)


def test_hang_ups_leave_the_carry() -> None:
    """Without the bound of what runs, requests that clients gave up would be carried for ever."""
    ttft = finishers(ttft=Histogram((2.5, math.inf), (50.0, 50.0), None), finished=0.0)
    _, carry = measure(Carry(), ttft, Slo(), in_flight=4.0)
    assert carry.size == 4.0


def cell_with(requests: float, ends: Ends) -> Cell:
    return Cell(0.0, 10.0, EngineCell(requests, good=exactly(requests), good_point=requests), ends)


def test_denominator_from_the_http_server_and_those_who_gave_up() -> None:
    cells = [cell_with(80.0, Ends(rejected=5.0, answered=95.0, server_errors=10.0))]
    found = summarize(cells, 60.0, 20, None)
    assert found.denominator is Denominator.HTTP
    assert (found.finished, found.shed, found.failed, found.gave_up) == (80.0, 5.0, 5.0, 15.0)
    assert found.requests == 90.0
    assert found.ratio == exactly(80.0 / 90.0)


def test_without_http_counts_it_is_finished_only() -> None:
    found = summarize([cell_with(80.0, Ends())], 60.0, 20, None)
    assert found.denominator is Denominator.FINISHED
    assert found.ratio == exactly(1.0)


@pytest.mark.parametrize(
    ("count", "reason"), [(0.0, Reason.NO_TRAFFIC), (19.0, Reason.TOO_FEW), (20.0, None)]
)
def test_low_traffic_is_said_and_gives_no_ratio(count: float, reason: Reason | None) -> None:
    found = summarize([cell_with(count, Ends())], 60.0, 20, None)
    assert found.unknown is reason
    assert (found.ratio is None) == (reason is not None)
    assert found.finished == count


def test_no_cell_yet() -> None:
    assert summarize([], 60.0, 20, None).unknown is Reason.FIRST_SAMPLE


def test_a_cell_whose_requests_cannot_be_counted_is_unknown_not_empty() -> None:
    cell, _ = measure(Carry(), finishers(why=Reason.NOT_A_NUMBER), Slo(), 5.0)
    found = summarize([Cell(0.0, 10.0, cell, Ends(0.0, 40.0, 0.0))], 60.0, 20, None)
    assert found.unknown is Reason.NOT_A_NUMBER
    assert found.gave_up == 0.0


def test_first_tokens_that_could_not_be_read_prove_nothing() -> None:
    seen = finishers(tpot=Histogram((0.05, math.inf), (5.0, 5.0), None))
    cell, carry = measure(Carry(), seen, Slo(), 3.0)
    assert cell.good == Interval(0.0, 5.0)
    assert carry == start(3.0)


def test_tokens_that_could_not_be_read_are_unknown_not_zero() -> None:
    seen = two_marginals(10, 10, 10)
    cell, _ = measure(Carry(), seen, Slo(), 0.0)
    assert cell.tokens is None
    assert cell.good_tokens is None


def test_requests_that_failed_with_a_5xx_are_counted_once() -> None:
    done = EngineCell(100.0, not_answers=10.0, good=exactly(90.0), good_point=90.0)
    found = summarize([Cell(0.0, 10.0, done, Ends(0.0, 90.0, 10.0))], 60.0, 20, None)
    assert found.requests == 100.0
    assert found.ratio == exactly(0.9)


def test_refusals_that_could_not_be_read_make_the_ratio_unknown() -> None:
    assert summarize([cell_with(50.0, Ends(rejected=None))], 60.0, 20, None).unknown is Reason.NOT_A_NUMBER
