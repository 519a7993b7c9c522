"""Runs a history of `gpu_histories` through the product's quarantine and says what was wrong with it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_histories import POLL, History

from controlplane.policy.quarantine.budget import cap
from controlplane.signals import marks


@dataclass
class Answer:
    """What the product did in one history; `flaws` are sentences on what was wrong with it."""

    seed: int
    incident: str
    wanted: str
    got: str
    seconds: float | None = None
    flaws: list[str] = field(default_factory=list)


def run(seed: int) -> Answer:
    """One whole history: the incident, its repair, and the way back."""
    history = History(seed)
    fleet, plan = history.fleet, history.plan
    before = dict(fleet.facts)
    took: tuple[float, str] | None = None
    flaws: list[str] = []
    steps = sorted(enumerate(plan.steps), key=lambda item: (item[1][0], item[0]))
    missed_before: int | None = None
    end = plan.lasts
    while fleet.now - history.start < end:
        fleet.now += POLL
        at = fleet.now - history.start
        while steps and steps[0][1][0] <= at:
            steps.pop(0)[1][1]()
        if plan.node is not None and missed_before is None and at >= plan.visible_at:
            missed_before = history.missed.get(plan.node, 0)
        history.noise()
        outcome = fleet.observe(history.samples())
        for decision in outcome.decisions:
            if decision.action != "quarantine-node":
                continue
            mark = marks.read(decision.new)
            assert mark is not None
            if decision.target != plan.node:
                flaws.append(f"took {decision.target} for {mark.check}: {mark.reason}")
            elif took is None:
                took = at, mark.remedy
            else:
                took = took[0], mark.remedy
        flaws += _broken_rules(history)
    if plan.node is not None:
        missed = history.missed.get(plan.node, 0) - (missed_before or 0)
        latest = plan.visible_at + plan.within + (2 + missed) * POLL
        if took is None:
            flaws.append("the fault was not acted on")
        elif took[0] > latest:
            flaws.append(f"acted {took[0] - plan.visible_at:.0f} s after it could be seen")
        elif took[1] not in plan.remedies:
            flaws.append(f"asked for {took[1]}")
    if plan.repair is not None:
        plan.repair()
        for _ in range(40):
            fleet.now += POLL
            history.noise()
            fleet.observe(history.samples())
        flaws += _broken_rules(history)
    if fleet.facts != before:
        flaws.append("not everything was released as it had been")
    if fleet.outcome is not None and fleet.outcome.ejected:
        flaws.append(f"kept from requests: {', '.join(fleet.outcome.ejected)}")
    return Answer(
        seed,
        f"{plan.name}",
        "node" if plan.node else "none",
        "node" if took else "none",
        took[0] - plan.visible_at if took and plan.node else None,
        flaws,
    )


def _broken_rules(history: History) -> list[str]:
    """What must hold after every tick, whatever happens."""
    fleet = history.fleet
    flaws = []
    out = [name for name, fact in fleet.facts.items() if fact.tainted or fact.unschedulable]
    if len(out) > cap(len(fleet.names), fleet.settings):
        flaws.append(f"{len(out)} of {len(fleet.names)} nodes are out")
    assert fleet.outcome is not None
    ready = [one for one in fleet.replicas.values() if one.ready and one.replica not in fleet.outcome.ejected]
    if not ready and any(one.ready for one in fleet.replicas.values()):
        flaws.append("no ready replica gets requests any more")
    return flaws


def confusion(answers: Iterable[Answer]) -> str:
    """The table: incidents down, what was done across."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    slowest: dict[tuple[str, str], float] = {}
    for one in answers:
        key = one.wanted, one.incident
        cell = "right" if not one.flaws else "wrong"
        rows.setdefault(key, Counter())[f"{one.got} {cell}"] += 1
        slowest[key] = max(slowest.get(key, 0.0), one.seconds or 0.0)
    cells = ("node right", "node wrong", "none right", "none wrong")
    head = f"{'wanted':8}{'incident':46}" + "".join(f"{cell:>12}" for cell in cells) + f"{'slowest s':>12}"
    lines = [head]
    for key, counts in sorted(rows.items()):
        numbers = "".join(f"{counts[cell]:12d}" for cell in cells)
        lines.append(f"{key[0]:8}{key[1]:46}{numbers}{slowest[key]:12.0f}")
    return "\n".join(lines)
