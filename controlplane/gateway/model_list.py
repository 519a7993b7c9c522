"""`/v1/models`: one list out of what all replicas serve.

* Each model once, in the order of the names, so that every call gives the same list.
* Of a model on several replicas the least `max_model_len`: what is promised holds wherever it goes.
* Only replicas that are in rotation count. A pool without any replica (scaled to zero) keeps the models that
  it had: asking for one of them is what starts it.
* Nothing to list is not an empty list: who has just started, or can reach nothing, does not know.
"""

from collections.abc import Iterable, Mapping

import msgspec

ModelCard = dict[str, object]
"""One entry of an engine's list, as it came."""


class Served(msgspec.Struct, frozen=True):
    """What one replica serves; `counts` says whether it is in rotation."""

    pool: str
    models: tuple[ModelCard, ...]
    counts: bool


def merged(
    replicas: Iterable[Served],
    empty_pools: Mapping[str, tuple[ModelCard, ...]],
    allowed: Iterable[str] | None,
) -> list[ModelCard] | None:
    """The cards to show; None where nothing is known. `allowed` None: all of them.

    `empty_pools` are the pools without replicas, with the models that they had.
    """
    cards: dict[str, ModelCard] = {}
    for served in replicas:
        if served.counts:
            _add(cards, served.models)
    for models in empty_pools.values():
        _add(cards, (card for card in models if card["id"] not in cards))
    if not cards:
        return None
    names = sorted(cards) if allowed is None else sorted(cards.keys() & set(allowed))
    return [cards[name] for name in names]


def read_cards(body: bytes) -> tuple[ModelCard, ...] | None:
    """The cards of an engine's answer to `/v1/models`; None where it is no such list."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        return None
    return tuple(card for card in data[:_MOST_CARDS] if isinstance(card, dict) and _is_name(card.get("id")))


def max_model_len(cards: Iterable[ModelCard]) -> int | None:
    """The longest context of a replica: the least that any of its models says."""
    return min((length for card in cards if (length := _length(card)) is not None), default=None)


_MOST_CARDS = 2000
_LONGEST_NAME = 512


def _add(cards: dict[str, ModelCard], models: Iterable[ModelCard]) -> None:
    for card in models:
        name = str(card["id"])
        known = cards.get(name)
        if known is None:
            cards[name] = card
            continue
        lengths = [length for each in (known, card) if (length := _length(each)) is not None]
        if lengths:
            cards[name] = {**known, "max_model_len": min(lengths)}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME


def _length(card: ModelCard) -> int | None:
    value = card.get("max_model_len")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
