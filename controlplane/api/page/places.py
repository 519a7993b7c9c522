"""Addresses of the page and its forms, and names for its parts."""

from hashlib import blake2s
from typing import Literal, TypeAlias
from urllib.parse import urlencode

from controlplane.api.page.cells import Tone
from controlplane.api.page.rows import Wanted

Kind: TypeAlias = Literal["hold", "release", "limit", "mode", "node", "clear"]
"""What can be ordered: the kinds of forms."""


def place(wanted: Wanted) -> str:
    """The address of the page that shows what is wanted."""
    given, usual = wanted._asdict(), Wanted()._asdict()
    changed = {name: given[name] for name in given if given[name] != usual[name]}
    query = urlencode({name: "1" if value is True else value for name, value in changed.items()})
    return f"/?{query}" if query else "/"


def order(kind: Kind, **about: str) -> str:
    """The address of the form of one order."""
    return f"/order?{urlencode({'kind': kind, **about})}"


def mark(name: str) -> str:
    """An id in markup, whatever the name is."""
    return blake2s(name.encode("utf-8", "replace"), digest_size=6).hexdigest()


def badge(tone: Tone) -> str:
    """The class of a word on a ground of its own."""
    return f"mark-{tone or 'plain'}"
