"""YAML as people write it, read with the line of every key, and with what would be lost refused.

PyYAML's safe loader takes the last of two equal keys and forgets where things stood. Here a document is
composed to nodes first, equal keys are refused, and the line of each value is kept for messages.
"""

from typing import Any, TypeAlias

import yaml

_MOST_VALUES = 100_000  # with aliases written out, so that a few lines cannot become gigabytes
_PLAIN = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")

Place: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the top of the document."""


class YamlError(Exception):
    """The text cannot be used. `problems` are (line from 1 or None, sentence)."""

    def __init__(self, *problems: tuple[int | None, str]) -> None:
        super().__init__("; ".join(sentence for _, sentence in problems))
        self.problems = problems


def read_yaml(text: str) -> tuple[Any, dict[Place, int]]:
    """The document in `text` and the line (from 1) of each of its values. Raises YamlError."""
    # The loader in C is an order of magnitude faster; it is not in every build of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        document = _Document(loader)
        value = document.value(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(str(error.problem or error.context).split())
        raise YamlError((mark.line + 1 if mark else None, f"this is not YAML: {why}")) from None
    except yaml.YAMLError as error:
        raise YamlError((None, f"this is not YAML: {' '.join(str(error).split())}")) from None
    except RecursionError:
        raise YamlError((None, "this is nested too deeply")) from None
    finally:
        loader.dispose()
    if document.problems:
        raise YamlError(*document.problems)
    return value, document.lines


class _Document:
    """Turns nodes into values; collects lines and problems on the way."""

    def __init__(self, loader: Any) -> None:
        self.lines: dict[Place, int] = {}
        self.problems: list[tuple[int | None, str]] = []
        self._loader = loader
        self._values = 0

    def value(self, node: yaml.Node, place: Place) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._values += 1
        if self._values > _MOST_VALUES:
            raise YamlError((line, f"this holds more than {_MOST_VALUES} values"))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            self.problems.append((line, f"the tag {node.tag} has no meaning here"))
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        try:
            return self._loader.construct_object(node)
        except ValueError as error:  # a date like 2026-02-30
            self.problems.append((line, f"{node.value!r} is no value: {error}"))
            return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        own = [pair for pair in node.value if pair[0].tag != "tag:yaml.org,2002:merge"]
        self._refuse_twice(own, place)
        if len(own) < len(node.value):
            self._loader.flatten_mapping(node)  # `<<: *other` goes before the mapping's own keys
        result = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.problems.append((key_node.start_mark.line + 1, "a key is not a word"))
                continue
            self.lines[*place, key] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, (*place, key))
        return result

    def _refuse_twice(self, pairs: list[tuple[yaml.Node, yaml.Node]], place: Place) -> None:
        first: dict[str, int] = {}
        for key_node, _ in pairs:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            line = key_node.start_mark.line + 1
            if key_node.value in first:
                where = f" under {'.'.join(map(str, place))}" if place else ""
                before = first[key_node.value]
                self.problems.append(
                    (line, f"key {key_node.value!r}{where} stands here and in line {before}")
                )
            first.setdefault(key_node.value, line)
