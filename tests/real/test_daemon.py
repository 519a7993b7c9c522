"""The daemon tells the truth about a real vLLM: what it says is laid beside what the clients saw.

One run of some three minutes (scenario.py), watched by a real `controlplane run`, is judged by all tests
here. Tolerances are those of witness.py; each test states what else it allows, and why.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from controlplane.signals.interval import Interval
from controlplane.signals.samples import Scrape

from .conftest import ServerPool
from .history import History, Objective
from .load import Outcome, Record, aborted_in, in_flight_at, quantile
from .scenario import HOLDER, OBJECTIVE, RESTARTED, Phase, Run, play
from .server import ServerOptions
from .tables import GaugeLook, JudgedCell, counter_table, gauge_table, objective_table, phase_table
from .watcher import COMMAND
from .witness import ROUNDING, Verdict, Witness, sightings, tokens

Tell = Callable[[str], None]

# Objectives asked of the same journal: looser, tighter, off the bucket edges, and smaller cells.
OTHER_OBJECTIVES = (
    Objective(ttft_seconds=0.5, tpot_seconds=0.025),
    Objective(ttft_seconds=1.0, tpot_seconds=0.01),
    Objective(ttft_seconds=2.5, tpot_seconds=0.025),
    Objective(ttft_seconds=5.0, tpot_seconds=0.01),
    Objective(ttft_seconds=5.0, tpot_seconds=0.025),
    Objective(ttft_seconds=2.0, tpot_seconds=0.015),
    Objective(ttft_seconds=2.5, tpot_seconds=0.01, cell_seconds=5.0),
)
OFFSET_MEANS = 4.0
"""From the engine to a client it takes so many times the mean of the phase, at most: nearly all of an
exponential distribution. The mean is measured in each run: 5 ms under light load, 60 ms in overload on a
quiet machine of two cores."""
LEAST_OFFSET_SECONDS = 0.1
"""A hang-up takes this long to reach the engine."""

MOST = 0.95
MOST_IN_DOUBT = 0.15
"""None on a quiet machine. Where more are, it was too busy for its clients to know the truth."""
ENOUGH = 20
"""Fewer requests make no quantile."""

TOKENS_AFTER_HANG_UP = 40
"""A hang-up reaches the engine within 0.1 s, in which it writes a token every 2.5 ms at most."""

LATE_HANG_UPS = 0.05
"""The server may hear of so many hang-ups only when the answer is whole: for it those have finished."""

HANG_UPS_ON_THE_WAY = 3
"""At either end of a window; a busy server looks for clients that are gone only between two tokens."""

USABLE_BLOCKS = 63  # one of the 64 is the engine's own
SEATS = 16


class Case:
    """The run, what the daemon knew, and the witness."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.history = History(run.journal)
        self.last_page = self.history.page_before(run.killed_at)
        self.known = cache(self.history.known)

        offsets = {phase.name: phase.mean_offset_seconds for phase in run.phases}
        worst = max(offset for offset in offsets.values() if offset is not None)
        self.offsets = {
            name: max(LEAST_OFFSET_SECONDS, OFFSET_MEANS * (worst if offset is None else offset))
            for name, offset in offsets.items()
        }
        self.everyone = Witness(
            [
                sighting
                for phase in run.phases
                for sighting in sightings(phase.records, self.offsets[phase.name], run.blind)
            ]
        )
        cut = {id(record) for record in run.phase(RESTARTED).records}
        last = self.last_page
        for one in self.everyone.answered:
            one.may_be_lost = id(one.record) in cut and one.record.end > last.at - last.seconds
        self.lost = [s for s in self.everyone.answered if s.may_be_lost and s.earliest_end > last.at]
        self.witness = Witness([s for s in self.everyone.sightings if s not in self.lost])

    def pages_between(self, span: tuple[float, float]) -> tuple[Scrape, Scrape]:
        return self.history.page_before(span[0]), self.history.page_before(span[1])

    def pages_of(self, phase: Phase) -> list[Scrape]:
        return [page for page in self.history.pages if phase.begun <= page.at <= phase.over_at]

    def judged(self, objective: Objective, wrongly_from: Objective | None = None) -> list[JudgedCell]:
        """All cells with traffic; to try the judge, those of another objective than the one judged by."""
        _, cells = self.known(wrongly_from or objective)
        found = []
        for cell in cells:
            if cell.engines.requests == 0:
                continue
            begin, end = self.pages_between((cell.start, cell.end))
            found.append(
                JudgedCell(
                    phase=self.run.phase_at((cell.start + cell.end) / 2),
                    said=cell.engines,
                    good=self.witness.good(begin, end, objective),
                    tokens=self.witness.good(begin, end, objective, tokens),
                )
            )
        return found


@pytest.fixture(scope="module")
def case(server_pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The run that all tests of this file judge.

    The server is the shared one, though it is killed: it comes back, and each start is twenty seconds.
    """
    directory = tmp_path_factory.mktemp("watcher")

    async def run() -> Run:
        return await play(await server_pool.get(ServerOptions(), own=False), directory)

    return Case(asyncio.run(run()))


# --- the run itself ---------------------------------------------------------------------------------------


def test_the_load_was_what_it_should_be(case: Case) -> None:
    """Each phase did to the server what it is there for; else the other tests would judge something else."""
    outcomes = {phase.name: Counter(record.outcome for record in phase.records) for phase in case.run.phases}
    for name in ("light", "mixed", "overload", "after"):
        assert set(outcomes[name]) == {Outcome.OK}, name
    assert case.run.phase("light").grew("preemptions") == 0
    assert case.run.phase("overload").grew("preemptions") > 20
    assert outcomes["hang-ups"][Outcome.CLIENT_ABORTED] > 10 < outcomes["hang-ups"][Outcome.OK]
    gave_up = aborted_in(case.run.phase("impatient").records, 0.0, float("inf"))
    assert any(record.first_token is None for record in gave_up), "nobody gave up while waiting"
    assert any(record.first_token is not None for record in gave_up), "nobody gave up in mid-stream"
    cut = case.run.phase(RESTARTED).records
    assert any(record.outcome is Outcome.ERROR and record.output_tokens > 0 for record in cut)


def test_the_daemon_stayed_well(case: Case) -> None:
    """No trouble, no traceback, a clean end, and a page for nearly every second that the server was there."""
    assert case.run.exit_code == 0
    assert "Traceback" not in case.run.log
    assert [look["troubles"] for look in case.run.looks if look["troubles"]] == []
    back = next(page for page in case.history.pages if page.at > case.run.killed_at)
    down = [failure for failure in case.history.failures if case.run.kill_began_at < failure.at < back.at]
    slow = len(case.history.failures) - len(down)  # overload may hold a page up for longer than a second
    assert slow <= 0.05 * len(case.history.pages), f"{slow} scrapes failed while the server was up"


def test_replay_reaches_the_same_decisions(case: Case) -> None:
    """`controlplane replay` finds no difference in the journal of the whole run."""
    done = subprocess.run(
        [COMMAND, "replay", "--json", case.run.journal], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["different"], found["gaps"], found["segments"]) == (0, 0, 1)
    assert found["ticks"] >= case.run.looks[-1]["tick"]


def test_the_api_says_what_the_tick_knew(case: Case) -> None:
    """Goodput, totals and load in the API's answers are those of the replayed ticks."""
    known = {one.number: one.pool for one in case.known(OBJECTIVE)[0]}
    for look in case.run.looks:
        (said,), knew = look["pools"], known[look["tick"]]
        for name in ("finished", "requests", "gave_up", "shed", "failed", "good_requests_point"):
            assert said["goodput"][name] == getattr(knew.goodput, name)
        for name in ("finished", "prompt_tokens", "generation_tokens", "preemptions", "restarts"):
            assert said["totals"][name] == getattr(knew.totals, name)
        assert _interval(said["goodput"]["good_requests"]) == knew.goodput.good_requests
        assert _interval(said["totals"]["good"]) == knew.totals.good
        for name in ("running", "waiting", "kv_usage"):
            assert said["load"][name].get("value") == getattr(getattr(knew.load, name), "value", None)


def test_a_hold_is_told_when_it_begins_and_when_it_ends(case: Case) -> None:
    """An order over the API, with its token: whoever reads looks or events sees it."""
    holds = [look["orders"]["hold"] for look in case.run.looks]
    assert {hold["by"] for hold in holds if hold is not None} == {HOLDER}
    assert holds[-1] is None
    kinds = Counter(event["kind"] for event in case.run.events)
    assert (kinds["hold"], kinds["hold-over"]) == (1, 1)


# --- goodput ----------------------------------------------------------------------------------------------


def test_the_true_goodput_lies_in_the_proven_interval(case: Case, tell: Tell) -> None:
    """Requests and tokens, in at least 95 % of all cells of all objectives, few of them with a doubt."""
    judged = {objective: case.judged(objective) for objective in (OBJECTIVE, *OTHER_OBJECTIVES)}
    tell(phase_table(OBJECTIVE, judged[OBJECTIVE]))
    tell(objective_table(judged))
    everything = [cell for cells in judged.values() for cell in cells]
    for verdicts in (
        Counter(cell.verdict for cell in everything),
        Counter(cell.token_verdict for cell in everything),
    ):
        assert verdicts[Verdict.OUTSIDE] <= (1 - MOST) * len(everything), verdicts
        assert verdicts[Verdict.IN_DOUBT] <= MOST_IN_DOUBT * len(everything), verdicts
    own = Counter(cell.verdict for cell in judged[OBJECTIVE])
    assert own[Verdict.OUTSIDE] <= (1 - MOST) * len(judged[OBJECTIVE]), own


def test_the_intervals_say_something(case: Case) -> None:
    """The truth lies strictly between none and all in many cells, and there the interval is no shrug."""
    judged = [cell for objective in (OBJECTIVE, *OTHER_OBJECTIVES) for cell in case.judged(objective)]
    partly = [cell for cell in judged if 0 < cell.good.seen < cell.said.requests]
    assert len(partly) >= 15
    finished = sum(cell.said.requests for cell in partly)
    assert sum(cell.said.good.width for cell in partly) < 0.5 * finished
    assert sum(abs(cell.said.good_point - cell.good.seen) for cell in partly) < 0.25 * finished


def test_a_lie_would_be_noticed(case: Case) -> None:
    """The same judge finds intervals of another objective wrong, so its doubt does not excuse everything."""
    loose = Objective(ttft_seconds=5.0, tpot_seconds=0.05)
    tight = Objective(ttft_seconds=0.1, tpot_seconds=0.01)
    for truth, lie in ((tight, loose), (loose, tight)):
        cells = case.judged(truth, wrongly_from=lie)
        wrong = sum(cell.verdict is Verdict.OUTSIDE for cell in cells)
        assert wrong >= len(cells) / 4, f"{wrong} of {len(cells)}"


def test_the_goodput_of_each_window_that_the_api_told_is_true(case: Case) -> None:
    """What was told each second about the last minute: good requests, finished ones, those given up.

    A page is not written at one instant, so its counters may be one request apart. Minutes with the restart
    in them are judged too: what the engine did after its last page is lost with it, and not missed there.
    """
    verdicts: dict[str, Counter[Verdict]] = {name: Counter() for name in ("good", "finished", "gave up")}
    known = {one.number: one for one in case.known(OBJECTIVE)[0]}
    for look in case.run.looks:
        span, told = known[look["tick"]].goodput_span, look["pools"][0]["goodput"]
        good = _interval(told["good_requests"])
        if span is None or good is None:
            continue
        begin, end = case.pages_between(span)
        truth = {
            "good": (case.witness.good(begin, end, OBJECTIVE), good),
            "finished": (case.witness.finished(begin, end), _but_for(1, told["finished"])),
            "gave up": (case.witness.hung_up(begin, end), _but_for(HANG_UPS_ON_THE_WAY, told["gave_up"])),
        }
        assert told["denominator"] == "http"
        assert told["requests"] == told["finished"]  # nothing was refused, and nothing failed
        for name, (judged, said) in truth.items():
            verdicts[name][judged.against(said)] += 1
    for name, found in verdicts.items():
        assert found.total() > 100, name
        assert found[Verdict.OUTSIDE] <= (1 - MOST) * found.total(), (name, found)


# --- counters ---------------------------------------------------------------------------------------------


def test_counters_of_each_phase_are_the_engines_and_the_clients(case: Case, tell: Tell) -> None:
    """Read at rest, exactly; but for tokens that were written to somebody who had just hung up."""
    rows = {}
    for phase in case.run.phases:
        if phase.after is None:
            continue
        read = _growth(*(case.history.page_before(at) for at in (phase.begun, phase.over_at)))
        for name, value in read.items():
            assert value == phase.grew(name), (phase.name, name)
        done = [record for record in phase.records if _finished(record)]
        gone = aborted_in(phase.records, 0.0, float("inf"))
        assert read["answered"] == len(done) + len(gone)
        assert 0 <= read["finished"] - len(done) <= LATE_HANG_UPS * len(gone)
        started = [record for record in phase.records if record.first_token is not None]
        seen = sum(record.prompt_tokens or 0 for record in started)
        unseen = sum(record.asked_prompt_tokens for record in gone if record.first_token is None)
        assert seen <= read["prompt_tokens"] <= seen + unseen
        written = sum(record.output_tokens for record in phase.records)
        if not gone:
            assert (read["prompt_tokens"], read["generation_tokens"]) == (seen, written)
        assert written <= read["generation_tokens"] <= written + TOKENS_AFTER_HANG_UP * len(gone)
        rows[phase.name] = read | {"hung_up": len(gone), "prompts_seen": seen, "answers_seen": written}
    tell(counter_table(rows))


def test_totals_count_each_request_once(case: Case) -> None:
    """Over the whole run with its restart: what both processes counted, and no more is lost than must be."""
    totals = case.run.looks[-1]["pools"][0]["totals"]
    finished = sum(
        sum(map(_finished, phase.records)) if phase.after is None else phase.grew("finished")
        for phase in case.run.phases
    )
    may_be_lost = sum(one.may_be_lost for one in case.everyone.answered)
    assert len(case.lost) <= finished - totals["finished"] <= may_be_lost

    first_process = _growth(case.history.pages[0], case.last_page)
    second_process = _growth(None, case.history.pages[-1])
    for name in ("finished", "prompt_tokens", "generation_tokens", "preemptions"):
        assert totals[name] == first_process[name] + second_process[name], name
    assert totals["rejected"] == 0

    truth = case.witness.good(case.history.pages[0], case.history.pages[-1], OBJECTIVE)
    good = _interval(totals["good"])
    assert good is not None
    assert truth.against(good) is not Verdict.OUTSIDE, (truth, good)


# --- gauges -----------------------------------------------------------------------------------------------


def test_running_and_waiting_are_what_clients_have_open(case: Case, tell: Tell) -> None:
    """Within the requests that are on their way; at rest exactly nothing; never more than it has seats."""
    looks = {phase.name: _look_at_gauges(case, phase) for phase in case.run.phases}
    tell(gauge_table(looks, {phase.name: phase.mean_offset_seconds for phase in case.run.phases}))
    everything = [look for phase in looks.values() for look in phase]
    for name in ("requests_right", "running_right", "blocks_right"):
        right = sum(getattr(look, name) for look in everything)
        assert right >= MOST * len(everything), (name, right, len(everything))
    assert all(_gauge(page, "running") <= SEATS for page in case.history.pages)
    for phase in case.run.phases:
        if phase.after is not None:
            at_rest = case.history.page_before(phase.over_at)
            assert [_gauge(at_rest, name) for name in ("running", "waiting", "kv_usage")] == [0, 0, 0]


def _look_at_gauges(case: Case, phase: Phase) -> list[GaugeLook]:
    return [
        GaugeLook(
            seen=in_flight_at(phase.records, page.at),
            held=case.everyone.held(page),
            running=_gauge(page, "running"),
            waiting=_gauge(page, "waiting"),
            blocks=_gauge(page, "kv_usage") * USABLE_BLOCKS,
        )
        for page in case.pages_of(phase)
    ]


def test_kv_usage_is_that_of_the_tokens_in_flight(case: Case) -> None:
    """Under light load, where nothing is preempted, from both sides; in overload the cache is full."""
    light = _look_at_gauges(case, case.run.phase("light"))
    right = sum(look.held.blocks.low - 1 <= look.blocks + ROUNDING and look.blocks_right for look in light)
    assert right >= MOST * len(light)
    assert any(look.blocks > 0 for look in light)
    overload = [page for page in case.pages_of(case.run.phase("overload")) if _gauge(page, "waiting") > 0]
    assert sum(_gauge(page, "kv_usage") for page in overload) / len(overload) > 0.8
    assert all(0 <= _gauge(page, "kv_usage") <= 1 for page in case.history.pages)


# --- latency ----------------------------------------------------------------------------------------------


def test_latencies_are_within_one_bucket_of_the_truth(case: Case) -> None:
    """TTFT and TPOT of each window that the API told, p50 and p90; a TTFT may be shorter by the offset."""
    known = {one.number: one for one in case.known(OBJECTIVE)[0]}
    histograms = case.history.pages[-1].engines["0"].histograms
    right, told = Counter[str](), Counter[str]()
    for look in case.run.looks:
        span = known[look["tick"]].latency_span
        if span is None:
            continue
        started = [s for s in case.everyone.sightings if span[0] <= (s.record.first_token or 0.0) < span[1]]
        ended = [s for s in case.witness.answered if span[0] <= s.record.end < span[1]]
        offset = max((s.offset_seconds for s in started), default=0.0)
        truth = {
            "ttft": ([s.record.ttft_seconds for s in started], offset),
            "tpot": ([s.record.tpot_seconds for s in ended], 0.0),
        }
        for name, (seen, shorter) in truth.items():
            said = look["pools"][0]["latency"][name].get("value")
            if said is None or said["count"] < ENOUGH:
                continue
            for percent in (50, 90):
                true = quantile([value for value in seen if value is not None], percent / 100)
                buckets = [
                    bisect_left(histograms[name].bounds, value)
                    for value in (true - shorter, said[f"p{percent}"], true)
                ]
                told[f"{name} p{percent}"] += 1
                right[f"{name} p{percent}"] += buckets[0] - 1 <= buckets[1] <= buckets[2] + 1
    assert len(told) == 4
    for name, times in told.items():
        assert times > 100, name
        assert right[name] >= MOST * times, (name, right[name], times)


# --- what is told -----------------------------------------------------------------------------------------


def test_the_restart_is_told_once(case: Case) -> None:
    """One event when the server is back; the failing scrapes once when they begin and once when over."""
    kinds = Counter(event["kind"] for event in case.run.events)
    assert (kinds["restart"], kinds["scrape-failing"], kinds["scrape-failing-over"]) == (1, 1, 1)
    (restart,) = (event for event in case.run.events if event["kind"] == "restart")
    back = next(page for page in case.history.pages if page.at > case.run.killed_at)
    assert restart["at"] == back.at
    assert case.run.looks[-1]["pools"][0]["totals"]["restarts"] == 1
    # While it is down nothing is made up: the last page grows old, then there is nothing to say.
    down = [look for look in case.run.looks if case.run.killed_at + 1.0 < look["at"] < back.at]
    assert down
    for look in down:
        running = look["pools"][0]["load"]["running"]
        assert running["at"] <= case.run.killed_at
        assert ("value" in running) == (look["at"] - running["at"] <= 20.0)


def test_overload_is_told_and_nothing_that_did_not_happen(case: Case) -> None:
    """Saturation, preemption again and again (to the very end), the missed objective; and never a stall."""
    oldest_first = case.run.decisions[::-1]
    reasons = [decision["reason"] for decision in oldest_first]
    assert {"saturated", "preempting", "objective-missed"} <= set(reasons), reasons
    assert "saturated-over" in reasons, reasons
    for decision in oldest_first:
        if decision["reason"] in ("saturated", "preempting"):
            assert case.run.phase_at(decision["at"]) != "light", decision
    assert not {"stalled", "wedged", "frozen-gauges"} & set(reasons)
    assert {decision["mode"] for decision in case.run.decisions} == {"observe"}


# --- reading ----------------------------------------------------------------------------------------------


def _finished(record: Record) -> bool:
    return record.outcome is Outcome.OK


def _interval(bounds: dict[str, float] | None) -> Interval | None:
    return None if bounds is None else Interval(bounds["low"], bounds["high"])


def _but_for(few: float, count: float) -> Interval:
    return Interval(count - few, count + few)


def _gauge(page: Scrape, name: str) -> float:
    return page.engines["0"].numbers[name]


def _counters(page: Scrape) -> dict[str, float]:
    (engine,) = page.engines.values()
    read = {
        name: engine.numbers[f"{name}_total"]
        for name in ("finished", "prompt_tokens", "generation_tokens", "preemptions")
    }
    return read | {"answered": page.server.by.get("http_inference_requests", {}).get("2xx", 0.0)}


def _growth(earlier: Scrape | None, later: Scrape) -> dict[str, float]:
    before = {} if earlier is None else _counters(earlier)
    return {name: value - before.get(name, 0.0) for name, value in _counters(later).items()}
