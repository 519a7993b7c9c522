"""What must hold, and whether it does: one line each, with the figure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.control.cells import BASELINES, LAW, NONE, SCRAPED, THRESHOLDS, Measured
from benchmarks.control.figures import Figures
from benchmarks.control.statistic import Mean, mean, share

_ENOUGH = 20
"""Of fewer good requests in a length class, over all seeds, no share is judged."""


class Verdict(NamedTuple):
    """One line of what must hold; `figure` tells what was found, and where."""

    what: str
    holds: bool
    figure: str

    def text(self) -> str:
        return f"{'holds ' if self.holds else 'FAILS '} {self.what}: {self.figure}"


def shares(figures: Sequence[Figures], of: Sequence[Figures]) -> Mean:
    """Token goodput as a share of another policy's on the same requests."""
    pairs = zip(figures, of, strict=True)
    return mean(share(one.token_goodput, other.token_goodput) for one, other in pairs)


def of_sweeps(cells: Sequence[Measured]) -> Iterator[Verdict]:
    """Where all limits were run: whether a part of them would have been enough."""
    parts = {cell.cell.name: cell.part_of_best for cell in cells if cell.part_of_best is not None}
    if parts:
        name = min(parts, key=parts.__getitem__)
        yield Verdict(
            "the part of a sweep that is run finds the best limit of the whole",
            parts[name] >= 0.999,
            f"{parts[name]:.2%} of its goodput at the least ({name}), over {len(parts)} whole sweeps",
        )


def of_loads(cells: Sequence[Measured], peaks: Mapping[str, float]) -> Iterator[Verdict]:
    """On the cells of loads. `peaks` is the best token goodput of an uncontrolled engine at any load, by
    load; where it is not known, nothing is said of it."""
    over = [cell for cell in cells if cell.cell.is_overloaded]
    light = [cell for cell in cells if cell.cell.is_light]
    if over:
        yield from _against_oracle(over)
        yield from _against_baselines(over)
        if all(cell.cell.load in peaks for cell in over):
            yield _against_peak(over, peaks)
        yield _by_length(over)
        yield _scraped(over)
    if light:
        yield from _light(light)
    if cells:
        yield preemptions(cells)


def _against_oracle(cells: Sequence[Measured]) -> Iterator[Verdict]:
    found = {cell.cell.name: shares(cell.by_policy[LAW], cell.oracle) for cell in cells}
    name, worst = _least(found)
    yield Verdict(
        "at least 97 % of the oracle's token goodput in every cell from 1.5x on",
        worst.value >= 0.97,
        f"{worst.text()} at the least ({name}), {sum(m.value >= 0.97 for m in found.values())} of "
        f"{len(found)} cells",
    )
    middle = median(m.value for m in found.values())
    yield Verdict("their median at least 99 %", middle >= 0.99, f"{middle:.1%}")


def _against_baselines(cells: Sequence[Measured]) -> Iterator[Verdict]:
    names = [name for name in (*BASELINES, THRESHOLDS) if name in cells[0].by_policy]
    gains = {
        f"{cell.cell.name} against {name}": mean(
            one.token_goodput - other.token_goodput
            for one, other in zip(cell.by_policy[LAW], cell.by_policy[name], strict=True)
        )
        for cell in cells
        for name in names
    }
    if not gains:
        return
    worse = [what for what, gain in gains.items() if gain.high < 0]
    yield Verdict(
        "never significantly worse than a baseline from 1.5x on",
        not worse,
        f"{len(worse)} of {len(gains)} pairs are{_named(worse)}",
    )
    better = sum(gain.value > 0 for gain in gains.values()) / len(gains)
    yield Verdict("better than it in at least 90 % of them", better >= 0.9, f"{better:.1%}")


def _against_peak(cells: Sequence[Measured], peaks: Mapping[str, float]) -> Verdict:
    found = {
        cell.cell.name: mean(one.token_goodput / peaks[cell.cell.load] for one in cell.by_policy[LAW])
        for cell in cells
    }
    name, worst = _least(found)
    return Verdict(
        "from 1.5x on at least the best token goodput of an uncontrolled engine at any load",
        worst.value >= 1.0,
        f"{worst.text()} of it at the least ({name})",
    )


def _by_length(cells: Sequence[Measured]) -> Verdict:
    found: dict[str, float] = {}
    for cell in cells:
        for name in {name for one in cell.oracle for name in one.by_length}:
            if sum(one.by_length[name].good for one in cell.oracle if name in one.by_length) < _ENOUGH:
                continue
            mine, best = (
                sum(one.by_length[name].token_goodput for one in figures if name in one.by_length)
                for figures in (cell.by_policy[LAW], cell.oracle)
            )
            found[f"{name} of {cell.cell.name}"] = mine / best
    name = min(found, key=found.__getitem__)
    failing = sum(value < 0.8 for value in found.values())
    return Verdict(
        "each length class keeps at least 80 % of what it has under the oracle",
        not failing,
        f"{found[name]:.1%} at the least ({name}), {failing} of {len(found)} under it",
    )


def _scraped(cells: Sequence[Measured]) -> Verdict:
    found = {
        cell.cell.name: shares(cell.by_policy[SCRAPED], cell.oracle)
        for cell in cells
        if SCRAPED in cell.by_policy
    }
    if not found:
        return Verdict("with scrapes every 5 s alone at least 90 % of the oracle", False, "not run")
    name, worst = _least(found)
    under = sum(one.value < 0.9 for one in found.values())
    return Verdict(
        "with scrapes every 5 s alone at least 90 % of the oracle",
        not under,
        f"{worst.text()} at the least ({name}), {under} of {len(found)} cells under it",
    )


def _light(cells: Sequence[Measured]) -> Iterator[Verdict]:
    harm = {
        cell.cell.name: mean(one.harm.ratio for one in cell.by_policy[LAW] if one.harm is not None)
        for cell in cells
    }
    name = max(harm, key=lambda name: harm[name].value)
    yield Verdict(
        "at 0.8x at most 0.3 % of what an uncontrolled engine serves in time are refused or late",
        harm[name].value <= 0.003,
        f"{harm[name].text('.2%')} at the most ({name})",
    )
    kept = {
        cell.cell.name: shares(cell.by_policy[LAW], cell.by_policy[NONE])
        for cell in cells
        if NONE in cell.by_policy
    }
    name, worst = _least(kept)
    yield Verdict(
        "there goodput is within 0.5 % of no control, or better",
        worst.value >= 0.995,
        f"{worst.text('.2%')} of it at the least ({name})",
    )


def preemptions(cells: Sequence[Measured]) -> Verdict:
    def ratio(figures: Sequence[Figures]) -> float:
        return sum(one.preemptions for one in figures) / max(1, sum(one.completed for one in figures))

    found = {cell.cell.name: (ratio(cell.by_policy[LAW]), max(0.001, ratio(cell.oracle))) for cell in cells}
    over = {name: mine for name, (mine, most) in found.items() if mine > most}
    name = max(found, key=lambda name: found[name][0] - found[name][1])
    return Verdict(
        "preemptions at most 0.1 % of the answered requests, or as many as the oracle's",
        not over,
        f"{found[name][0]:.2%} of {found[name][1]:.2%} ({name}); {len(over)} of {len(found)} cells over it",
    )


def recovery(
    what: str,
    figures: Sequence[Figures],
    oracle: Sequence[Figures],
    at: float,
    steady: tuple[float, float],
    *,
    within: float,
) -> Verdict:
    """How many seconds after `at` ten seconds begin whose good tokens are 90 % of what they are on average
    from `steady[0]` to `steady[1]`: their own or the oracle's, whichever are more, so that a law which comes
    to rest too low has not recovered."""
    since, until = map(int, steady)

    def rate(one: Figures) -> float:
        return sum(one.good_tokens[since:until]) / (until - since)

    found = mean(
        _recovered(one.good_tokens, int(at), until, max(rate(one), rate(best)))
        for one, best in zip(figures, oracle, strict=True)
    )
    return Verdict(f"{what}: 90 % of the steady goodput within {within:g} s", found.value <= within,
                   f"after {found.text('.1f')} s")  # fmt: skip


def _recovered(tokens: Sequence[float], at: int, until: int, steady: float) -> float:
    for begin in range(at, until - _HELD):
        if sum(tokens[begin : begin + _HELD]) >= 0.9 * _HELD * steady:
            return float(begin - at)
    return float(until - at)


_HELD = 10


def lost(what: str, figures: Sequence[Figures], without: Sequence[Figures], span: tuple[int, int]) -> Verdict:
    """How much less there is than without the fault, in the seconds of `span`."""
    begin, end = span
    found = mean(
        1 - sum(one.good_tokens[begin:end]) / sum(other.good_tokens[begin:end])
        for one, other in zip(figures, without, strict=True)
    )
    return Verdict(f"{what}: loses at most 3 %", found.value <= 0.03, f"{found.text()}")


def unrefused(what: str, figures: Sequence[Figures]) -> Verdict:
    refused, offered = sum(one.refused for one in figures), sum(one.offered for one in figures)
    return Verdict(f"{what}: nothing refused", refused == 0, f"{refused} of {offered:,} requests")


def fairness(
    figures: Sequence[Figures], alone: Sequence[Figures], others: Iterable[str]
) -> Iterator[Verdict]:
    """`others` are the tenants that ask for no more than their share; `alone` is without the noisy one."""
    for name in others:
        kept = mean(
            share(one.by_tenant[name].token_goodput, other.by_tenant[name].token_goodput)
            for one, other in zip(figures, alone, strict=True)
        )
        yield Verdict(
            f"noisy tenant: {name!r} keeps at least 97 % of its goodput alone",
            kept.value >= 0.97,
            kept.text(),
        )
    jain = mean(one.jain_index or 0.0 for one in figures)
    yield Verdict("noisy tenant: Jain's index at least 0.98", jain.value >= 0.98, jain.text(".3f"))


def _least(found: Mapping[str, Mean]) -> tuple[str, Mean]:
    name = min(found, key=lambda name: found[name].value)
    return name, found[name]


def _named(names: Sequence[str]) -> str:
    return f" ({'; '.join(names[:3])}{'; ...' if len(names) > 3 else ''})" if names else ""
