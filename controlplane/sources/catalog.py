"""Which sample names are worth reading, and what each of them means in which engine's table.

`full()` has every name of every table, `tick()` what the daemon reads. The latter keeps one sample of each
other name too, so that a page's version is the same whoever looks; but not of adapters, of which a page has
one more series with each new mix, without end.
"""

import math
from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from controlplane.sources.dialects import SERVER, Combine, Dialect, Row, dialect, engines

Role: TypeAlias = Literal["value", "bucket", "sum", "count", "witness"]

TICK_SIGNALS = frozenset(
    {
        "running", "waiting", "waiting_by_reason", "sleep_state",
        "kv_usage", "kv_blocks", "kv_block_size", "kv_capacity_tokens",
        "prefix_hits_total", "prefix_queries_total", "preemptions_total",
        "prompt_tokens_total", "generation_tokens_total", "finished_total", "rejected_total",
        "ttft", "tpot", "itl", "e2e", "queue_time", "prefill_time", "decode_time", "inference_time",
        "prompt_len", "generation_len",
        "step_tokens", "step_time", "decode_steps_total", "realtime_tokens_total",
        "spec_accepted_tokens_total",
        "http_inference_requests", "start_time",
    }
)  # fmt: skip

CORE_SIGNALS = (
    "running", "waiting", "kv_usage", "preemptions_total", "prompt_tokens_total", "generation_tokens_total",
    "finished_total", "ttft", "tpot", "itl", "e2e", "queue_time",
)  # fmt: skip
"""Signals whose absence is told: every engine should have them."""

INFERENCE_PATHS = frozenset(
    {
        "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses",
        "/v1/messages", "/v1/embeddings", "/v1/audio/transcriptions", "/v1/audio/translations",
        "/v1/classify", "/v1/score", "/v1/rerank", "/v2/rerank",
        "/classify", "/score", "/rerank", "/pooling", "/encode",
        "/generate", "/generate_stream", "/inference/v1/generate", "/invocations", "/vertex_generate",
        "/api/generate", "/api/chat", "/api/embed", "/api/embeddings",
    }
)  # fmt: skip
"""Request paths that ask a model for something: the requests that goodput is about."""


class Use(NamedTuple):
    """What a sample name stands for in one table. `bare`: it lacks the engine's prefix."""

    dialect: Dialect
    row: Row
    role: Role
    bare: bool


class Catalog:
    """The wanted names. `signals` limits them (None: all), `extra` are names that a user asked for.

    An extra name keeps its own name as signal; it may be that of a gauge, a counter or a histogram.
    """

    def __init__(self, signals: frozenset[str] | None = None, extra: Iterable[str] = ()) -> None:
        self.extra = tuple(extra_row(name) for name in dict.fromkeys(extra))
        self.uses: dict[str, tuple[Use, ...]] = {}
        for table in (*engines(), dialect(SERVER)):
            for row in table.metrics:
                selected = signals is None or row.signal in signals
                for spelling in table.spellings:
                    self._add(table, row, spelling, selected)
        for row in self.extra:
            for name, role in (*_samples("any", row.name), *_samples("histogram", row.name)):
                self._use(name, Use(dialect(SERVER), row, role, False))

    def wanted(self, name: str) -> bool:
        """Whether a sample of this name is worth reading; `_created` never is."""
        return name in self.uses

    def _add(self, table: Dialect, row: Row, spelling: str, selected: bool) -> None:
        bare = not spelling and table.engine != SERVER
        if not selected:
            if table.engine != SERVER and row.kind != "adapters":
                witness = row.name + ("_count" if row.kind == "histogram" else "")
                self._use(spelling + witness, Use(table, row, "witness", bare))
            return
        for name, role in _samples(row.kind, row.name):
            self._use(spelling + name, Use(table, row, role, bare))
        if row.per:
            self._use(spelling + row.per, Use(table, row, "count", bare))
        if row.zero_with:
            self._use(spelling + row.zero_with, Use(table, row, "witness", bare))

    def _use(self, name: str, use: Use) -> None:
        self.uses[name] = (*self.uses.get(name, ()), use)


def extra_row(name: str) -> Row:
    """The rule for a name that a user asked for: counts add up, of anything else the highest counts."""
    counted = name.endswith(("_total", "_count", "_sum", "_bucket"))
    over: Combine = "sum" if counted else "max"
    return Row(name=name, kind="any", signal=name, over=over, least=-math.inf, most=math.inf)


@cache
def full() -> Catalog:
    """Every name of every table."""
    return Catalog()


@cache
def tick() -> Catalog:
    """The names that the daemon's tick uses."""
    return Catalog(TICK_SIGNALS)


def _samples(kind: str, name: str) -> tuple[tuple[str, Role], ...]:
    """The sample names of a metric and their roles. The text format has no other suffixes."""
    if kind == "histogram":
        return ((name + "_bucket", "bucket"), (name + "_sum", "sum"), (name + "_count", "count"))
    return ((name, "sum" if kind == "mean" else "value"),)
