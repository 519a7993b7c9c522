"""A request inside an engine: how far it is computed, which blocks it holds, when what happened to it."""

from controlplane.simulator.blocks import Chain
from controlplane.simulator.request import Request

NEVER = float("inf")


class Sequence:
    """Mutable state of one request.

    `goal` is how many tokens must be in the KV cache before the next token can be sampled: the prompt, and
    after a preemption the generated tokens too. `generated` counts sampled tokens up to the last prefill;
    while it decodes, `Decoding` knows how many came since it joined in step `decode_from`. It decodes in the
    steps [decodes_since, decode_until) except those that it sat out.
    """

    __slots__ = (
        "arrived_at",
        "cached_tokens",
        "computed",
        "decode_from",
        "decode_until",
        "decodes_since",
        "first_token_at",
        "generated",
        "goal",
        "gone",
        "held",
        "id",
        "last_token_at",
        "nameless",
        "number",
        "order",
        "path",
        "preemptions",
        "preemptions_told",
        "priority",
        "queued_at",
        "request",
        "running",
        "scheduled_at",
        "tail",
        "tail_first",
        "told",
    )

    def __init__(self, request: Request, number: int, arrived_at: float, block_size: int) -> None:
        self.request = request
        self.number = number  # in order of arrival
        self.id = request.id
        self.priority = request.priority
        self.arrived_at = arrived_at
        self.queued_at = NEVER
        self.scheduled_at = NEVER
        self.first_token_at = NEVER
        self.last_token_at = NEVER  # known only of sequences that were kept from decoding
        self.order = 0  # place in the running list
        self.running = False
        self.gone = False  # aborted
        self.goal = request.prompt_tokens
        self.computed = 0
        self.generated = 0
        self.told = 0
        self.decode_from = 0
        self.decode_until = 0
        self.decodes_since = 0
        self.preemptions = 0
        self.preemptions_told = 0
        self.cached_tokens = 0
        self.path: tuple[tuple[str, int, int], ...] = ()
        self.tail_first = 0
        if request.prefix:
            self._lay_path(block_size)
        self.held: list[tuple[Chain, int]] = []
        self.tail: Chain | None = None
        self.nameless = False

    def _lay_path(self, block_size: int) -> None:
        """A block belongs to the segment of its last token."""
        path = []
        first = 0
        for segment in self.request.prefix:
            end = segment.end_tokens // block_size
            if end > first:
                path.append((segment.name, first, end))
                first = end
        self.path = tuple(path)
        self.tail_first = first
