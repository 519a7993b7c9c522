"""Text to tokens and back, without a vocabulary.

A token is up to five bytes of text that hold no blank, with the one blank before them; that is 4 to 5 bytes
of English a token, about what real vocabularies reach. Its number is its bytes, so every text can be given
back from its numbers, and all numbers are under 2^53, as JSON needs.

Answers are made of words of at most five letters: each is one token.
"""

import re
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

Tokens: TypeAlias = Sequence[bytes | int]
"""A prompt in tokens: pieces of text, or the numbers that a client sent."""

_PIECE = re.compile(rb"\s?\S{1,5}|\s")
LARGEST_PIECE = 6
"""Bytes of the longest token."""

_TEXT = (
    "apple arm ash baby back bank bark barn bay bell bird boat bone book bread brick cake camp cart chair "
    "chalk city clay cloud coal coast coin corn crow day deer desk dish door drum dust earth farm field fire "
    "fish flag fog foot fork frost gate glass goat gold grass green hall hand hill horse house ice inn iron "
    "jar juice key king kite lake lamp land leaf light lime lion map milk moon moss nest night oak ocean owl "
    "paint path pear pine plum pond rain river road rock roof rope rose sand ship snow"
)
WORDS = tuple(b" " + word.encode() for word in _TEXT.split())
"""What answers are made of."""


def pieces(text: str) -> list[bytes]:
    """The tokens of a text."""
    return _PIECE.findall(text.encode())


def number(piece: bytes) -> int:
    """The number of a token; special ones longer than others are cut."""
    return int.from_bytes(b"\x01" + piece[:LARGEST_PIECE])


def text_of(numbers: Sequence[int]) -> str:
    """The text that has these tokens; a number that is no token of ours is shown in brackets."""
    return b"".join(map(_piece, numbers)).decode(errors="replace")


def chat(messages: Sequence[tuple[str, str]], tools: object = None) -> list[bytes]:
    """The tokens of a conversation of (role, text): each text between a mark of its role and one of its end.

    The tools stand before it, and a mark after it says that the assistant comes next.
    """
    found: list[bytes] = []
    if tools:
        found += [_mark("tools"), *pieces(msgspec.json.encode(tools).decode()), _END]
    for role, text in messages:
        found += [_mark(role), *pieces(text), _END]
    found.append(_mark("assistant"))
    return found


_END = b"</s>"


def _mark(role: str) -> bytes:
    return b"<%b>" % role.encode()[: LARGEST_PIECE - 2]


def _piece(number: int) -> bytes:
    raw = number.to_bytes((number.bit_length() + 7) // 8)
    if 2 <= len(raw) <= LARGEST_PIECE + 1 and raw[0] == 1:
        return raw[1:]
    return b" [%d]" % number
