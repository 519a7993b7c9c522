"""Classes of request sizes, the same in every gateway and in the daemon, so that histograms can be added up.

A class is named by its upper edge in tokens: (previous edge, edge]. Edges are 256, 384, 512, 768, ... up to
1,048,576: two an octave, 25 in all; what is larger is in the last one.
"""

from bisect import bisect_left

import msgspec

EDGES: tuple[int, ...] = tuple(sorted([256 << k for k in range(13)] + [384 << k for k in range(12)]))


class SizeClass(msgspec.Struct, frozen=True):
    """What the requests of one class did.

    `offered` ended in any way, or were shed; `served` of them had been sent to a replica, where they took
    `sequence_seconds` (sequences times the time from sending to the end) and `token_seconds` (tokens held,
    at least those reserved, times that time).
    """

    offered: float = 0.0
    served: float = 0.0
    sequence_seconds: float = 0.0
    token_seconds: float = 0.0


def edge_of(tokens: float) -> int:
    """The class of a size in tokens."""
    return EDGES[min(bisect_left(EDGES, tokens), len(EDGES) - 1)]
