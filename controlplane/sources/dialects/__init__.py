"""What each engine prints, as data: one table an engine, plus one for the HTTP server around it.

A row says: the metric `name`, printed with one of the table's spellings before it, carries `signal`. Signals
are seconds, tokens, bytes and ratios 0..1. Of several rows with one signal the first that is on the page
counts, alone: newer names stand before those that they replace. There are no rules about versions in code;
versions are told by `since` and `until` (see `version.py`).
"""

from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias

import msgspec

Combine: TypeAlias = Literal["sum", "max", "min", "mean"]

MOST_COUNTED = 2.0**53
"""A float can count no further; nothing that is counted one by one gets there."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """One metric of one engine.

    `kind`: gauge, counter, histogram; "fact" (the value is in the label `label`), "mean" (`name` is the sum,
    `per` the count: a distribution without buckets), "adapters" (LoRA: comma lists in labels, the value is
    the time at which they held), "any" (a name that a user asked for).
    `over` combines several series of an engine, and several engines: a ratio is never summed.
    `by` is the label that splits the signal, `by_class` turns its HTTP status codes into classes (2xx). The
    sum of the parts is the signal's value, but of states only the part `value_of` is.
    `where` keeps only series whose labels have one of the values, `path_label` only those whose label is a
    path that asks a model for something.
    `scale` turns the printed unit into the signal's; `disabled` is a printed value that means "not measured",
    any other under `least` or over `most` is impossible.
    `observed` says when a histogram of finished requests is observed: at a request's finish, or sooner.
    `zero_with` is a sample that proves the page could have this counter: absent then means 0.
    `since` and `until` are the first and the last version with this name; `always` says that every such
    version prints it, even idle.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram", "fact", "mean", "adapters", "any"]
    signal: str
    over: Combine = "sum"
    by: str = ""
    by_class: bool = False
    value_of: str = ""
    where: dict[str, tuple[str, ...]] = {}
    path_label: str = ""
    label: str = ""
    per: str = ""
    scale: float = 1.0
    disabled: float | None = None
    least: float = 0.0
    most: float = MOST_COUNTED
    observed: Literal["finish", "sooner"] = "finish"
    zero_with: str = ""
    scope: Literal["engine", "server"] = "engine"
    since: str = ""
    until: str = ""
    always: bool = False


class Copies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Series with this label and no model are the engine's figures as printed by someone else."""

    label: str
    who: str


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """The table of one engine.

    `spellings` are the prefixes under which a name may be printed; a bare one needs `bare_needs_labels`.
    `engine_label` tells data-parallel engines apart, "" where a page has only one. `total_where_empty` is a
    label that splits a gauge while an unlabelled series has the total. Absence tells a version only on pages
    whose series have the label `complete_with_label`. `gauges_lag`: running and waiting are not told at the
    same moment as the histograms. `note` is for people who meet a page like this.
    """

    engine: str
    title: str
    spellings: tuple[str, ...]
    metrics: tuple[Row, ...]
    engine_label: str = ""
    model_label: str = "model_name"
    bare_needs_labels: tuple[str, ...] = ()
    total_where_empty: str = ""
    complete_with_label: str = ""
    gauges_lag: bool = False
    copied_by: Copies | None = None
    note: str = ""

    def rule(self, signal: str) -> Row | None:
        """The row that says how a signal is to be combined; None if no version of this engine has it."""
        return next((row for row in self.metrics if row.signal == signal), None)


ENGINES = ("vllm", "sglang", "tgi", "llamacpp", "lmdeploy", "trtllm", "ollama")
SERVER = "server"


@cache
def dialect(engine: str) -> Dialect:
    """The table of `engine`, one of ENGINES or SERVER."""
    text = files(__package__).joinpath(f"{engine}.toml").read_bytes()
    return msgspec.toml.decode(text, type=Dialect)


def engines() -> tuple[Dialect, ...]:
    """All engines that have a table, vLLM first."""
    return tuple(dialect(engine) for engine in ENGINES)
