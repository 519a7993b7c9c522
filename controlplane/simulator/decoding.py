"""What all decoding sequences of an engine have in common, so that a step costs the same for 1 and for 256.

Every decoding sequence computes one token a step. So the sum of their contexts grows by their number, a
sequence that has r tokens to go ends r steps after it joined, and one whose KV length is a multiple of the
block size now needs its next block every `block_size` steps from now.
"""

from controlplane.simulator.sequence import Sequence

_ENDLESS = 1 << 62


class Decoding:
    """The decoding sequences: `count` of them with `context` tokens in all; `steps` were planned so far."""

    __slots__ = ("block_size", "context", "count", "due", "phases", "steps")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.steps = 0
        self.count = 0
        self.context = 0
        self.phases = [
            0
        ] * block_size  # phase -> sequences that need a block when (phase + steps) % size == 0
        self.due: dict[int, list[Sequence]] = {}  # step count -> sequences whose last token is planned then

    def join(self, sequence: Sequence) -> None:
        """`sequence`, whose `generated` counts its last sampled token, decodes from the next step on."""
        steps = self.steps
        sequence.decode_from = steps
        sequence.decode_until = _ENDLESS
        end = steps + sequence.request.output_tokens - sequence.generated
        if end in self.due:
            self.due[end].append(sequence)
        else:
            self.due[end] = [sequence]
        self.count += 1
        self.context += sequence.request.prompt_tokens + sequence.generated
        self.phases[(sequence.request.prompt_tokens + sequence.generated - 1 - steps) % self.block_size] += 1

    def leave(self, sequence: Sequence) -> None:
        """`sequence` decodes no more; `generated`, `goal` and `computed` are brought up to date."""
        end = sequence.decode_from + sequence.request.output_tokens - sequence.generated
        siblings = self.due[end]
        siblings.remove(sequence)
        if not siblings:
            del self.due[end]
        self._settle(sequence)

    def advance(self) -> list[Sequence]:
        """One step is planned: every sequence gets a token. Returns those that have all theirs now, which
        left."""
        self.context += self.count
        self.steps += 1
        ended = self.due.pop(self.steps, [])
        for sequence in ended:
            self._settle(sequence)
        return ended

    def blocks_needed(self) -> int:
        """New blocks that the next step needs."""
        return self.phases[-self.steps % self.block_size]

    def tokens(self, sequence: Sequence) -> int:
        """Prompt and generated tokens of a decoding `sequence`."""
        return sequence.request.prompt_tokens + sequence.generated + self.steps - sequence.decode_from

    def _settle(self, sequence: Sequence) -> None:
        steps = self.steps
        prompt = sequence.request.prompt_tokens
        self.count -= 1
        # The phase does not change while it decodes, so it can be taken from where it joined.
        self.phases[(prompt + sequence.generated - 1 - sequence.decode_from) % self.block_size] -= 1
        sequence.generated += steps - sequence.decode_from
        sequence.decode_until = steps
        sequence.goal = prompt + sequence.generated
        sequence.computed = sequence.goal - 1
        self.context -= sequence.goal
