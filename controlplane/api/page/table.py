"""Tables as markup: each row is a body of its own, so that its sentences stay with it."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from htpy import Node, a, div, nav, p, span, table, tbody, td, th, thead, tr

from controlplane.api.page.cells import Cell
from controlplane.api.page.places import mark, place
from controlplane.api.page.rows import Column, Part, Row, Wanted
from controlplane.terminal.figures import plain

Actions: TypeAlias = Callable[[str], Node]
"""Links to what can be ordered of the thing of that name."""


def rows_table(what: str, columns: Sequence[Column], rows: Sequence[Row], actions: Actions) -> Node:
    """A table of things of one kind; it scrolls sideways where it must, also by keyboard."""
    return div(".wide", tabindex="0", role="region", aria_label=f"Table of {what}s")[
        table(class_=what)[
            thead[
                tr[
                    th(scope="col")[what],
                    [_title(column) for column in columns],
                    th(scope="col")[span(".hidden")["orders"]],
                ]
            ],
            [_row(what, columns, row, actions) for row in rows],
        ]
    ]


def pager(part: Part[Row], anchor: str, before: Wanted, after: Wanted) -> Node:
    """Links to the pages beside this one; nothing where there is only one."""
    if part.pages == 1:
        return None
    return nav(".pager", aria_label=f"Pages of {anchor}")[
        _turn("◂ before", before, anchor, is_there=part.number > 1),
        span[f"page {part.number} of {part.pages}"],
        _turn("after ▸", after, anchor, is_there=part.number < part.pages),
    ]


def _turn(words: str, wanted: Wanted, anchor: str, *, is_there: bool) -> Node:
    return a(href=f"{place(wanted)}#{anchor}")[words] if is_there else span(".dim")[words]


def _title(column: Column) -> Node:
    return th(scope="col", class_=_classes("", column), title=column.help or None)[column.title]


def _row(what: str, columns: Sequence[Column], row: Row, actions: Actions) -> Node:
    name = plain(row.name)
    return tbody(id=f"{what}-{mark(row.name)}", class_=f"is-{row.tone or 'plain'}")[
        tr[
            th(scope="row", title=name)[name],
            [_cell(cell, column) for cell, column in zip(row.cells, columns, strict=True)],
            td(".acts")[actions(row.name)],
        ],
        [tr(".says")[td(colspan=str(len(columns) + 2))[p[plain(sentence)]]] for sentence in row.sentences],
    ]


def _cell(cell: Cell, column: Column) -> Node:
    return td(class_=_classes(cell.tone, column), title=plain(cell.why) or None)[plain(cell.text)]


def _classes(tone: str, column: Column) -> str | None:
    places = (f"spare-{column.spare}" if column.spare else "", "text" if column.is_text else "")
    return " ".join(part for part in (tone, *places) if part) or None
