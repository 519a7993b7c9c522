"""The waiting queue of an engine, in order of arrival or of priority."""

import heapq
from collections import OrderedDict
from typing import Protocol

from controlplane.simulator.sequence import Sequence


class WaitingQueue(Protocol):
    def __len__(self) -> int: ...

    def add(self, sequence: Sequence) -> None:
        """A new request waits."""

    def add_preempted(self, sequence: Sequence) -> None:
        """A preempted request waits again."""

    def head(self) -> Sequence:
        """The next to be admitted."""

    def remove(self, sequence: Sequence) -> None:
        """`sequence`, which waits, was admitted or aborted."""


class FcfsQueue:
    """First come, first served; a preempted request goes back to the head."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Sequence, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: Sequence) -> None:
        self._queue[sequence] = None

    def add_preempted(self, sequence: Sequence) -> None:
        self._queue[sequence] = None
        self._queue.move_to_end(sequence, last=False)

    def head(self) -> Sequence:
        return next(iter(self._queue))

    def remove(self, sequence: Sequence) -> None:
        del self._queue[sequence]


class PriorityQueue:
    """Lower priority numbers first, then earlier arrivals, then ids in order of text."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str, int, Sequence]] = []
        self._waiting: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        self._waiting.add(sequence)
        heapq.heappush(
            self._heap, (sequence.priority, sequence.arrived_at, sequence.id, sequence.number, sequence)
        )

    add_preempted = add

    def head(self) -> Sequence:
        while self._heap[0][4] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][4]

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        if self._heap[0][4] is sequence:
            heapq.heappop(self._heap)
