"""Samples put together, and what of them outlives a tick that failed."""

from controlplane.signals.node import NodeFacts, Placement
from controlplane.signals.reading import Reason
from controlplane.signals.samples import OutcomeWindow, Samples, ScrapeFailure, Target

A = Target("a", "chat", "http://a:8000")
LATE = ScrapeFailure("a", 1.0, Reason.SCRAPE_FAILED, "no answer within 1 s")
LATER = ScrapeFailure("a", 2.0, Reason.SCRAPE_FAILED, "no answer within 1 s")
WINDOW = OutcomeWindow("gw", "chat", 0.0, 1.0, 0, 0, 0, 0, 0, {}, 0, 0, 0)


def test_what_came_adds_up_and_of_what_stands_the_later_word_counts() -> None:
    early = Samples(targets=(A,), scrapes=(LATE,), gpu_nodes=("n1",))
    late = Samples(scrapes=(LATER,), outcomes=(WINDOW,), gpu_nodes=())
    assert early.then(late) == Samples(targets=(A,), scrapes=(LATE, LATER), outcomes=(WINDOW,), gpu_nodes=())


def test_after_a_failed_tick_only_what_is_told_once_stays() -> None:
    facts, places = {"n1": NodeFacts("n1")}, (Placement("a", "n1"),)
    came = Samples(targets=(A,), scrapes=(LATE,), outcomes=(WINDOW,), placements=places, node_facts=facts)
    assert came.standing() == Samples(targets=(A,), placements=places, node_facts=facts)
