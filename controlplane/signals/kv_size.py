"""How many tokens of context an engine's KV cache holds, by its page."""

from controlplane.signals.samples import Signals


def engine_kv_tokens(engine: Signals) -> float | None:
    """As the engine says, else its blocks times their size; None where nothing is known.

    vLLM tells one block of a model that keeps no context (encoders, for embeddings): that is no capacity.
    """
    numbers = engine.numbers
    blocks, size = numbers.get("kv_blocks"), numbers.get("kv_block_size")
    if blocks is not None and blocks <= 1:
        return None
    return numbers.get("kv_capacity_tokens") or (blocks * size if blocks and size else None)
