"""The files that the page needs, each read once. All come from here: the page asks no other host."""

from functools import cache
from hashlib import blake2s
from importlib.resources import files

KINDS = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def content(name: str) -> bytes:
    """One of the files of KINDS. Raises KeyError for any other name."""
    KINDS[name]
    return files(__name__).joinpath(name).read_bytes()


@cache
def address(name: str) -> str:
    """Where it is served; it changes with the content, so that browsers may keep it for good."""
    return f"/page/{name}?v={blake2s(content(name), digest_size=6).hexdigest()}"
