"""Ollama has no metrics page: its API tells that it answers and which models are loaded, but no load.

See `GET /api/ps` in https://github.com/ollama/ollama/blob/main/docs/api.md.
"""

from typing import Annotated

import msgspec

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Signals, Target
from controlplane.sources.catalog import CORE_SIGNALS
from controlplane.sources.dialects import dialect
from controlplane.sources.fetch import Answer
from controlplane.sources.urls import shown

_LOAD = Signals(unknown=dict.fromkeys(CORE_SIGNALS, Reason.UNSUPPORTED))
_MOST_MODELS = 1000


class _Model(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class _Loaded(msgspec.Struct):
    models: Annotated[list[_Model], msgspec.Meta(max_length=_MOST_MODELS)]


def read_loaded_models(target: Target, answer: Answer, at: float, seconds: float) -> Scrape | ScrapeFailure:
    """A scrape without any load from an answer to `GET /api/ps`; a failure where it is none."""
    try:
        loaded = msgspec.json.decode(answer.body, type=_Loaded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        detail = f"{shown(target.url)}: not the answer of an Ollama server"
        return ScrapeFailure(target.name, at, Reason.NOT_AN_ENGINE, detail)
    models = tuple(sorted({model.name for model in loaded.models}))
    return Scrape(
        target=target.name,
        at=at,
        seconds=seconds,
        engine="ollama",
        version="",
        models=models,
        engines={"0": _LOAD},
        server=Signals(),
        warnings=(dialect("ollama").note,),
    )
