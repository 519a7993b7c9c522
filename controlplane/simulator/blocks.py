"""KV blocks and the prefix cache of one engine, as vLLM's block pool keeps them.

Rules that hold here:

- A full block whose tokens have a name (a request's segment, or the request's own tail) can be found again.
  Named blocks that nobody holds stay findable until their room is needed; they count as free.
- Room is taken from blank blocks first, then from the named ones released longest ago. A sequence releases
  its blocks from the tail, so a chain loses its end first and always stays findable from its beginning.
- Who finds a beginning holds all blocks of it, so whoever holds block i of a chain holds every block before
  i.

Those rules make it enough to keep runs of blocks (`Chain`, `_Run`) instead of single ones: all costs here
grow with the number of sequences that come and go, not with blocks.

Two simplifications: blocks of the prompt are findable from the step that computes them, as in vLLM, but
blocks of generated tokens only when the sequence ends or is preempted; and where two sequences compute the
same named block at once, vLLM keeps both under the name, here the later one's copy (and all after it) has no
name.
"""

from collections import OrderedDict
from typing import Protocol


class Chain:
    """Consecutive named blocks [first, cached): one segment, or the own tail of one sequence.

    Blocks up to `held` are in use; [held, cached) are free but findable, in `runs` from the end (released
    first) to the beginning.
    """

    __slots__ = ("cached", "first", "held", "holders", "name", "runs")

    def __init__(self, first: int, name: str | None) -> None:
        self.first = first
        self.name = name
        self.cached = first
        self.held = first
        self.holders: dict[int, int] = {}  # how far a holder reaches -> how many reach just so far
        self.runs: list[_Run] = []


class _Run:
    """Free, findable blocks [start, end) of a chain that were released together."""

    __slots__ = ("chain", "end", "start")

    def __init__(self, chain: Chain, start: int, end: int) -> None:
        self.chain = chain
        self.start = start
        self.end = end


class Holder(Protocol):
    """What the pool must know of a sequence; `path` are its segments as (name, first block, end block).

    `held` are the chains it holds and how far, in the order of the path. `tail` is the chain of blocks after
    the segments, from block `tail_first` on, once it has one. `nameless` says that its further blocks get no
    names.
    """

    path: tuple[tuple[str, int, int], ...]
    tail_first: int
    held: list[tuple[Chain, int]]
    tail: Chain | None
    nameless: bool


class BlockPool:
    """`free` blocks can be taken, findable ones included."""

    def __init__(self, blocks: int, block_size: int, caching: bool) -> None:
        self.free = blocks
        self.block_size = block_size
        self.caching = caching
        self._blank = blocks
        self._segments: dict[tuple[str, int], Chain] = {}
        self._released: OrderedDict[_Run, None] = OrderedDict()  # oldest first

    def find(self, sequence: Holder, limit: int) -> tuple[int, int]:
        """The longest findable beginning of at most `limit` blocks; how many of these count as free."""
        blocks = free = 0
        for name, first, end in sequence.path:
            chain = self._segments.get((name, first))
            if chain is None:
                return blocks, free
            reach = min(chain.cached, end, limit)
            if reach > blocks:
                free += max(reach - max(chain.held, first), 0)
                blocks = reach
            if blocks < end:
                return blocks, free
        tail = sequence.tail
        if tail is not None and blocks == sequence.tail_first:
            reach = min(tail.cached, limit)
            if reach > blocks:
                free += reach - blocks
                blocks = reach
        return blocks, free

    def hold(self, sequence: Holder, blocks: int) -> None:
        """Hold the found beginning of `blocks` blocks."""
        for name, first, end in sequence.path:
            if first >= blocks:
                return
            self._reach(sequence, self._segments[name, first], min(end, blocks))
        if blocks > sequence.tail_first and sequence.tail is not None:
            self._reach(sequence, sequence.tail, blocks)

    def take(self, blocks: int) -> None:
        """Take `blocks` of the free blocks; the caller has checked that there are so many."""
        self.free -= blocks
        self._blank -= blocks
        if self._blank < 0:
            self._evict(-self._blank)
            self._blank = 0

    def name_prompt(self, sequence: Holder, full_blocks: int) -> None:
        """Make the first `full_blocks` blocks findable as far as they belong to segments."""
        if not self.caching:
            return
        done = sequence.held[-1][1] if sequence.held else 0
        for index, (name, first, end) in enumerate(sequence.path):
            start = max(first, done)
            stop = min(end, full_blocks)
            if start >= stop:
                continue
            if sequence.nameless:
                return
            chain = self._segments.get((name, first))
            if chain is None:
                chain = self._segments[name, first] = Chain(first, name)
            self._name(sequence, chain, start, stop, index < len(sequence.held))

    def release(self, sequence: Holder, computed_tokens: int, held_blocks: int, comes_back: bool) -> None:
        """Give back all `held_blocks` of a sequence that has KV of `computed_tokens`.

        A preempted one `comes_back` and may find its own tail again.
        """
        if not self.caching:
            self.free += held_blocks
            self._blank += held_blocks
            return
        full = computed_tokens // self.block_size
        if sequence.path:
            self.name_prompt(sequence, full)
        if full > sequence.tail_first and not sequence.nameless:
            tail = sequence.tail
            if tail is None:
                tail = sequence.tail = Chain(sequence.tail_first, None)
            holds_tail = len(sequence.held) > len(sequence.path)
            done = sequence.held[-1][1] if holds_tail else sequence.tail_first
            if full > done:
                self._name(sequence, tail, done, full, holds_tail)
        held = sequence.held
        nameless = held_blocks - (held[-1][1] if held else 0)
        self.free += nameless
        self._blank += nameless
        for chain, reach in reversed(held):
            self._leave(chain, reach)
        sequence.held = []
        sequence.nameless = False
        if not comes_back:
            sequence.tail = None

    def _name(self, sequence: Holder, chain: Chain, done: int, end: int, extend: bool) -> None:
        """Give blocks [done, end) of `sequence` their names in `chain`, unless others have these names."""
        if chain.cached > done:
            sequence.nameless = True
            return
        chain.cached = end
        if extend:
            held, reach = sequence.held.pop()
            self._forget(held, reach)
        self._reach(sequence, chain, end)

    def _reach(self, sequence: Holder, chain: Chain, reach: int) -> None:
        """`sequence` holds `chain` up to block `reach`; blocks that were free until now are free no more."""
        sequence.held.append((chain, reach))
        chain.holders[reach] = chain.holders.get(reach, 0) + 1
        if reach <= chain.held:
            return
        chain.held = reach
        while chain.runs and chain.runs[-1].start < reach:
            run = chain.runs[-1]
            if run.end > reach:
                self.free -= reach - run.start
                run.start = reach
                return
            self.free -= run.end - run.start
            chain.runs.pop()
            del self._released[run]

    def _forget(self, chain: Chain, reach: int) -> None:
        """One holder up to `reach` less."""
        left = chain.holders[reach] - 1
        if left:
            chain.holders[reach] = left
        else:
            del chain.holders[reach]

    def _leave(self, chain: Chain, reach: int) -> None:
        """One holder less; what nobody holds any more becomes a run of free, findable blocks."""
        self._forget(chain, reach)
        held = max(chain.holders, default=chain.first)
        if held < chain.held:
            run = _Run(chain, held, chain.held)
            self.free += run.end - run.start
            chain.held = held
            chain.runs.append(run)
            self._released[run] = None

    def _evict(self, blocks: int) -> None:
        """Forget the names of the `blocks` findable blocks that were released longest ago."""
        while blocks:
            run = next(iter(self._released))
            taken = min(blocks, run.end - run.start)
            run.end -= taken
            run.chain.cached -= taken
            blocks -= taken
            if run.start == run.end:
                del self._released[run]
                chain = run.chain
                del chain.runs[0]
                if chain.name is not None and chain.cached == chain.first:
                    del self._segments[chain.name, chain.first]
