"""Lists within any width and height: columns that give way, words that wrap, a count of what is left out.

An entry is a row of cells and the words about it. The words take the room beside the cells; where that is
too narrow to read, they stand below.
"""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.text import Text

from controlplane.terminal.figures import plain

_READABLE_WORDS = 32
_MOST_LINES_OF_WORDS = 3


class Column(NamedTuple):
    """`spare` columns are left out where there is no room, those with the highest number first."""

    title: str
    spare: int = 0
    left: bool = False


class Entry(NamedTuple):
    """One cell a column; `words` are for people, `below` are lines of their own."""

    cells: tuple[Text, ...]
    words: str = ""
    style: str = ""
    below: tuple[Text, ...] = ()


Block = list[Text]
"""The lines of one entry."""


def listing(
    columns: Sequence[Column], entries: Sequence[Entry], width: int, room: int | None, title: str = "WHY"
) -> list[Text]:
    """The entries under their titles, in at most `room` lines where it is given. `title` is of the words."""
    widths = {
        i: max(len(column.title), *(entry.cells[i].cell_len for entry in entries))
        for i, column in enumerate(columns)
    }
    for i in sorted((i for i in widths if columns[i].spare), key=lambda i: -columns[i].spare):
        if sum(widths.values()) + len(widths) + _READABLE_WORDS <= width:
            break
        del widths[i]
    taken = sum(widths.values()) + len(widths)
    beside = width - taken >= _READABLE_WORDS

    def row(cells: Sequence[Text]) -> Text:
        out = Text()
        for i, wide in widths.items():
            cell, pad = cells[i], " " * (wide - cells[i].cell_len)
            out = (
                Text.assemble(out, cell, pad, " ") if columns[i].left else Text.assemble(out, pad, cell, " ")
            )
        return out

    def block(entry: Entry) -> Block:
        first = row(entry.cells)
        if beside:
            words = _wrapped(entry.words, width - taken)
            lines = [Text.assemble(first, (words[0] if words else "", entry.style))]
            lines += [Text(" " * taken + line, style=entry.style) for line in words[1:]]
        else:
            lines = [first, *under(entry.words, width, entry.style)]
        return [*lines, *entry.below]

    head = row([Text(column.title) for column in columns])
    head.append(title if beside else "")
    head.stylize("dim")
    return [head, *fitted([block(entry) for entry in entries], None if room is None else room - 1)]


def under(words: str, width: int, style: str = "", indent: str = "") -> list[Text]:
    """The words below what they are about, in a few lines."""
    lines = _wrapped(words, max(8, width - len(indent) - 2))
    return [Text(indent + ("└ " if not i else "  ") + line, style=style) for i, line in enumerate(lines)]


def fitted(blocks: Iterable[Block], room: int | None) -> list[Text]:
    """The blocks, as many whole ones as `room` lines hold, and how many more there are."""
    blocks = list(blocks)
    if room is None:
        return [line for block in blocks for line in block]
    out: list[Text] = []
    for number, block in enumerate(blocks):
        is_last = number == len(blocks) - 1
        if len(out) + len(block) + (not is_last) > room:
            out.append(Text(f"… {len(blocks) - number} more", style="dim"))
            break
        out += block
    return out


def cut(name: Text, width: int) -> Text:
    """The name, without a part before its end: names of one pool differ at their ends."""
    if name.cell_len <= width:
        return name.copy()
    head = width // 3
    return Text.assemble(name[:head], "…", name[len(name) - (width - 1 - head) :])


def _wrapped(words: str, width: int) -> list[str]:
    lines = textwrap.wrap(plain(words), width)
    if len(lines) > _MOST_LINES_OF_WORDS:
        lines = lines[:_MOST_LINES_OF_WORDS]
        lines[-1] = lines[-1][: width - 1] + "…"
    return lines
