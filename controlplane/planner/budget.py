"""What the KV cache of a replica holds on given GPUs.

    for KV, on each GPU = memory x utilization - weights / GPUs - other
    sequences           = for KV / bytes that a GPU keeps of one sequence
    tokens              = for KV / bytes of one sequence x its length

`other` is what an engine needs besides weights and cache: activations of the largest batch, CUDA graphs,
libraries. vLLM measures it at start; 2.5 GiB is what a Llama-3.1-8B on an H100 leaves room for (440,000
tokens at a utilization of 0.9).
"""

import msgspec

from controlplane.planner.kv import KvShape
from controlplane.planner.sizes import size_text

OTHER_BYTES = 5 << 29
UTILIZATION = 0.9


class KvBudget(msgspec.Struct, frozen=True):
    """Memory for the cache on each of `gpus` GPUs in tensor parallel, and what the model keeps there.

    `for_kv_bytes` may be 0 or less: then the weights do not fit.
    """

    shape: KvShape
    gpus: int
    gpu_memory_bytes: int
    utilization: float
    weights_bytes: int
    other_bytes: int

    @property
    def for_kv_bytes(self) -> int:
        usable = int(self.gpu_memory_bytes * self.utilization)
        return usable - -(-self.weights_bytes // self.gpus) - self.other_bytes

    def tokens(self, context_tokens: int) -> int | None:
        """Tokens that fit in sequences of so many each: with windows, longer ones keep less a token. None for
        a model that keeps no tokens."""
        size = self.shape.sequence_bytes(context_tokens, self.gpus)
        return max(0, self.for_kv_bytes) * context_tokens // size if size else None

    def sequences(self, context_tokens: int) -> int | None:
        """Sequences of so many tokens that fit at once; None for a model that keeps no tokens."""
        return self.prompts(context_tokens, 0, 1)

    def prompts(self, prompt_tokens: int, answer_tokens: int, answers: int) -> int | None:
        """Prompts that fit at once with so many answers each, the prompt kept once for all of them."""
        size = self.shape.shared_bytes(prompt_tokens, answer_tokens, answers, self.gpus)
        return max(0, self.for_kv_bytes) // size if size else None

    def trouble(self) -> str | None:
        """A sentence where nothing fits; None otherwise."""
        if self.for_kv_bytes > 0:
            return None
        usable = size_text(self.gpu_memory_bytes * self.utilization)
        weights, other = size_text(self.weights_bytes / self.gpus), size_text(self.other_bytes)
        gpus = "the GPU" if self.gpus == 1 else f"each of {self.gpus} GPUs"
        return f"{gpus} has {usable} to use, but the weights take {weights} of it and the engine {other}"
