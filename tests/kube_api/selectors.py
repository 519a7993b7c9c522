"""Label and field selectors, as a query string has them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kube_api.errors import bad_request

Test = Callable[[Mapping[str, Any]], bool]

_TERM = re.compile(
    r"""\s*(?:
        (?P<absent>!)\s*(?P<absent_key>[\w./-]+)
      | (?P<set_key>[\w./-]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<key>[\w./-]+)\s*(?P<sign>==|!=|=)\s*(?P<value>[\w.-]*)
      | (?P<present_key>[\w./-]+)
    )\s*(?:,|$)""",
    re.VERBOSE,
)

_FIELDS = {
    "pods": {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    },
    "nodes": {"spec.unschedulable"},
    "events": {
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "type",
    },
    "secrets": {"type"},
}


def by_labels(text: str) -> Test:
    """A test of an object's labels."""
    tests, at = [], 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None or term.end() == at:
            raise bad_request(f"unable to parse requirement: {text[at:]!r}")
        at = term.end()
        tests.append(_label_test(term))
    return lambda obj: all(test(obj.get("metadata", {}).get("labels") or {}) for test in tests)


def _label_test(term: re.Match[str]) -> Test:
    found = term.groupdict()
    if found["absent"]:
        return lambda labels: found["absent_key"] not in labels
    if found["set_key"]:
        key, values = found["set_key"], {value.strip() for value in found["values"].split(",")}
        if found["operator"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found["key"]:
        key, value = found["key"], found["value"]
        if found["sign"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    return lambda labels: found["present_key"] in labels


def by_fields(text: str, plural: str) -> Test:
    """A test of an object's fields; only the fields that the real server indexes may be asked for."""
    tests = []
    for term in filter(None, text.split(",")):
        parts = re.fullmatch(r"([\w.]+)(==|!=|=)(.*)", term)
        if parts is None:
            raise bad_request(f"invalid selector: {term!r}; can't understand it")
        field, sign, value = parts.groups()
        if field not in {"metadata.name", "metadata.namespace"} | _FIELDS.get(plural, set()):
            raise bad_request(f"field label not supported: {field}")
        tests.append((field, sign == "!=", value))
    return lambda obj: all((_field(obj, field) == value) != negated for field, negated, value in tests)


def _field(obj: Mapping[str, Any], path: str) -> str:
    value: Any = obj
    for part in path.split("."):
        value = (value or {}).get(part)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "false" if path == "spec.unschedulable" else ""
    return str(value)
