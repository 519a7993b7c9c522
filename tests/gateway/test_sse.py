"""Events along a stream: the standard's rules, and the same whatever the pieces."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.sse import LARGEST_EVENT_BYTES, Events

PARTS = (
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"data: x", b"data:y", b"data", b": comment", b"event: e"),
    *(b"data: {}\n\n", b"\xef\xbb\xbf", b"\xef\xbb", b"a\xff", b"data: \xf0\x9f\x99", b"id: 1"),
)
streams = st.lists(st.sampled_from(PARTS), max_size=16).map(b"".join)
cuts = st.lists(st.integers(0, 80), max_size=10)


def in_pieces(whole: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(whole), *(place for place in at if place < len(whole))})
    return [whole[a:b] for a, b in itertools.pairwise(places)]


def by_the_standard(whole: bytes) -> list[bytes | None]:
    """All at once, from the words of the standard."""
    events: list[bytes | None] = []
    data: list[bytes] = []
    for line in re.split(rb"\r\n|\n|\r", whole.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        name, _, value = line.partition(b":")
        if not line:
            events.append(b"\n".join(data) if data else None)
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return events


@given(streams, cuts)
def test_events_are_those_of_the_standard_in_whatever_pieces(whole: bytes, at: list[int]) -> None:
    events = Events()
    told = [data for piece in in_pieces(whole, at) for data, _ in events.feed(piece)]
    assert told == by_the_standard(whole)


@given(streams, cuts)
def test_ends_are_where_events_end(whole: bytes, at: list[int]) -> None:
    events, before = Events(), b""
    for piece in in_pieces(whole, at):
        for _, end in events.feed(piece):
            assert (before + piece[:end]).endswith((b"\n", b"\r"))
        before += piece


def test_what_is_too_long_is_not_kept_and_the_next_event_is_read() -> None:
    events = Events()
    told = []
    for _ in range(LARGEST_EVENT_BYTES // 1000 + 2):
        told += events.feed(b"data: " + b"x" * 994)
    told += events.feed(b"\n\ndata: short\n\n")
    assert [data for data, _ in told] == [b"", b"short"]
    many_lines = b"data: " + b"y" * 9993 + b"\n"
    for _ in range(LARGEST_EVENT_BYTES // 10_000 + 2):
        assert events.feed(many_lines) == []
    assert [data for data, _ in events.feed(b"\ndata: short\n\n")] == [b"", b"short"]


def test_between_events_is_told() -> None:
    events = Events()
    assert events.is_between
    for piece, between in ((b"data: a", False), (b"\n", False), (b"\n", True), (b": c\n", True)):
        events.feed(piece)
        assert events.is_between is between
