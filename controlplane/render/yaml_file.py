"""YAML for people: long expressions as blocks, keys in the order given, no anchors."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_file(comment: str, *documents: object) -> str:
    """Documents under a comment that says what the file is."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    body = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return head + body
