"""A YAML document read into a settings model; all that is wrong with it is told, each with its line.

`ModelReader` turns the errors of pydantic into sentences that name the key, the offending value and, where
it is misspelt, what was meant. The configuration and the scenarios are read with it.
"""

import difflib
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from controlplane.yaml_text import Place, YamlError, read_yaml

_LARGEST_BYTES = 1 << 20
_SHOWN_CHARS = 80
_PLAIN_WORDS = {
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "path_type": "a path",
}

M = TypeVar("M", bound=BaseModel)


class SettingsError(Exception):
    """A document cannot be used; `sentences` say why, each on its own."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


def read_text(path: Path) -> str:
    """The text of the file at `path`. Raises SettingsError where it can't be read or is no text."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_BYTES:
        raise SettingsError(f"{path}: larger than {_LARGEST_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text: byte {error.start}") from None


def parse_mapping(text: str, name: str) -> tuple[dict[str, Any], dict[Place, int]]:
    """The mapping that is the document in `text`, and the lines of its values. Raises SettingsError.

    `name` is the document's, for messages. A key without a value is as good as none.
    """
    try:
        raw, lines = read_yaml(text)
    except YamlError as error:
        raise SettingsError(*(sentence(name, line, problem) for line, problem in error.problems)) from None
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise SettingsError(sentence(name, 1, "a mapping of sections is needed at the top"))
    return {key: value for key, value in raw.items() if value is not None}, lines


def sentence(name: str | None, line: int | None, problem: str) -> str:
    """A problem with where it is, before it; `name` None: in no document."""
    before = (f"{name}: " if name else "") + (f"line {line}: " if line and name else "")
    return before + problem


class ModelReader:
    """Validates parts of one document and collects what is wrong with them."""

    def __init__(self, name: str | None, raw: dict[str, Any], lines: dict[Place, int]) -> None:
        self.problems: list[tuple[int | None, str]] = []
        self._name, self._raw, self._lines = name, raw, lines

    def sentences(self) -> tuple[str, ...]:
        """All problems in the order of their lines, each once."""
        ordered = sorted(self.problems, key=lambda p: p[0] or 0)
        return tuple(dict.fromkeys(sentence(self._name, line, problem) for line, problem in ordered))

    def read(self, model: type[M], value: object, place: Place = ()) -> M | None:
        """`value`, which stands at `place`, as a `model`; None and problems where it is none."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                self._refuse(model, details, place)
            return None

    def problem(self, place: Place, sentence: str) -> None:
        """Complain of what stands at `place`."""
        nearest = (place[:n] for n in range(len(place), 0, -1) if place[:n] in self._lines)
        line = next((self._lines[known] for known in nearest), None)
        self.problems.append((line, sentence))

    def value(self, place: Place) -> Any:
        """What was written at `place`; None where nothing was."""
        value: Any = self._raw
        for part in place:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    # -- what a document may do otherwise ---------------------------------------------------------

    def got(self, place: Place) -> str:
        """What to show of the value at `place`, in brackets; empty where it is not to be shown."""
        value = self.value(place)
        if isinstance(value, dict | list | tuple | None):
            return ""
        return f" (got {self.shown(value)})"[:_SHOWN_CHARS]

    def shown(self, value: object) -> str:
        """A value as it may be shown."""
        return repr(value)

    def known_keys(self, model: type[BaseModel], under: Place) -> list[str]:
        """The keys that may stand at `under`."""
        return [field.alias or name for name, field in model.model_fields.items()]

    def wrong_key(self, place: Place) -> str | None:
        """What is wrong with a key that its pattern refused, if it can be said better."""
        return None

    # -- errors into sentences ---------------------------------------------------------------------

    def _refuse(self, model: type[BaseModel], details: ErrorDetails, place: Place) -> None:
        loc, kind = details["loc"], details["type"]
        where = self._written(place, loc)
        if kind == "extra_forbidden":
            self.unknown_key(_model_at(model, loc[:-1]), str(where[-1]), where[:-1])
            return
        name = ".".join(map(str, where))
        match kind:
            case "missing":
                self.problem(where[:-1], f"{name} is missing")
            case "value_error":
                message = details["msg"].removeprefix("Value error, ")
                self.problem(self._blamed(where, message), f"{name}: {message}" if name else message)
            case "union_tag_not_found":
                key = _tag_key(details)
                self.problem(where, f"{name}.{key} is missing" if key else f"{name}: has no form known here")
            case "union_tag_invalid":
                ctx, key = details.get("ctx", {}), _tag_key(details)
                there = str(ctx.get("expected_tags", "")).replace("'", "")
                what = f"{name}.{key}" if key else name
                self.problem((*where, key), f"{what}: there is no {ctx.get('tag')!r}, there are {there}")
            case _:
                message = details["msg"].removeprefix("Input ")
                if "[key]" in loc:
                    message = self.wrong_key(where) or message
                elif kind in _PLAIN_WORDS:
                    message = f"should be {_PLAIN_WORDS[kind]}"
                self.problem(where, f"{name}: {message}{self.got(where)}")

    def unknown_key(self, model: type[BaseModel] | None, key: str, under: Place) -> None:
        """Complain of a key that means nothing where it stands."""
        known = self.known_keys(model, under) if model else []
        close = difflib.get_close_matches(key, known, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})" if known else ""
        where = f" under {'.'.join(map(str, under))}" if under else ""
        self.problem((*under, key), f"unknown key {key!r}{where}{hint}")

    def _written(self, place: Place, loc: tuple[str | int, ...]) -> Place:
        """Where in the document an error is: its place without what pydantic adds (tags of unions).

        The last part stays where nothing is written there: it names what is missing.
        """
        where = place
        for i, part in enumerate(loc):
            if part == "[key]":
                continue
            there = self.value(where)
            found = (isinstance(there, dict) and part in there) or (
                isinstance(there, list | tuple) and isinstance(part, int) and part < len(there)
            )
            if found or (i == len(loc) - 1 and isinstance(there, dict)):
                where = (*where, part)
        return where

    def _blamed(self, place: Place, message: str) -> Place:
        """The first key under `place` that the message names, else `place` itself."""
        section = self.value(place)
        keys = section if isinstance(section, dict) else ()
        named = next((key for key in keys if re.search(rf"\b{re.escape(key)}\b", message)), None)
        return place if named is None else (*place, named)


def _tag_key(details: ErrorDetails) -> str:
    """The key that tells the members of a union apart; empty where a function does."""
    key = str(details.get("ctx", {}).get("discriminator", ""))
    return "" if key.endswith("()") else key.strip("'")


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The settings model that stands at `loc` (of pydantic: with tags of unions) inside `model`."""
    found: Any = model
    for part in loc:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = next((f for n, f in found.model_fields.items() if part in (n, f.alias)), None)
            found = field.annotation if field else None
        elif isinstance(part, str) and (tagged := _tagged(found, part)) is not None:
            found = tagged
        elif get_args(found):
            found = get_args(found)[-1 if get_origin(found) is dict else 0]
        found = _bare(found)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _tagged(annotation: Any, tag: str) -> type[BaseModel] | None:
    """The member of a union whose tag field says `tag`."""
    for model in _members(annotation):
        for field in model.model_fields.values():
            if tag in get_args(field.annotation):
                return model
    return None


def _members(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation, however deep in unions and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for arg in get_args(annotation):
        yield from _members(arg)


def _bare(annotation: Any) -> Any:
    """An annotation without `| None`, where that is all the union there is."""
    if get_origin(annotation) in (Union, types.UnionType):
        others = [arg for arg in get_args(annotation) if arg is not types.NoneType]
        return others[0] if len(others) == 1 else annotation
    return annotation
