"""Nodes with GPUs, and what is held against each GPU: the worst first, those that look well as one line."""

from rich.text import Text

from controlplane.api.shapes import GpuVerdict, Node
from controlplane.terminal.figures import age, plain
from controlplane.terminal.listing import Block, fitted, under
from controlplane.terminal.view import View

_STAGES = {
    "noted": "dim",
    "suspected": "yellow",
    "held-down": "yellow",
    "withheld": "magenta",
    "wanted": "red",
    "placed": "red",
}


def nodes(view: View, width: int, room: int | None) -> list[Text]:
    """Every node that something is held against, or that nobody sees."""
    if not view.nodes:
        return [Text("no GPUs are watched: the section `gpus` says where they are", style="dim")]
    bad = [node for node in view.nodes if _badness(node) < _WELL]
    well = [node for node in view.nodes if _badness(node) == _WELL]
    blocks = [
        _block(node, view.now, width) for node in sorted(bad, key=lambda node: (_badness(node), node.name))
    ]
    if well:
        gpus = sum(node.gpus for node in well)
        words = f"{_number(len(well), 'node')} with {_number(gpus, 'GPU')}: nothing is held against them"
        blocks.append([Text(words, style="green")])
    return fitted(blocks, room)


_WELL = 3


def _badness(node: Node) -> int:
    if node.quarantined is not None:
        return 0
    if node.verdicts:
        return 1
    return _WELL if node.blind_since is None else 2


def _block(node: Node, now: float, width: int) -> Block:
    line = Text.assemble((plain(node.name), "bold"), f"  {_number(node.gpus, 'GPU')}")
    if node.quarantined is not None:
        mark = node.quarantined
        since = "" if mark.since is None else f" for {age(now - mark.since)}"
        line.append(f"  quarantined ({mark.kind}){since}: {plain(mark.remedy)}", style="bold red")
    if node.blind_since is not None:
        line.append(f"  nobody sees its GPUs for {age(now - node.blind_since)}", style="magenta")
    lines = [line]
    for verdict in node.verdicts:
        lines += _verdict(verdict, now, width)
    return lines


def _verdict(verdict: GpuVerdict, now: float, width: int) -> list[Text]:
    head = Text.assemble(
        "  ",
        (plain(verdict.stage), _STAGES.get(verdict.stage, "")),
        f" for {age(now - verdict.since)}  {plain(verdict.uuid)}  ",
        (f"{plain(verdict.check)}, {plain(verdict.fault_class)} → {plain(verdict.remedy)}", "dim"),
    )
    words = under(verdict.sentence, width, indent="  ")
    why = under(f"not acted on: {verdict.why}", width, "magenta", "  ") if verdict.why else []
    return [head, *words, *why]


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
