"""The engine's arguments for a pool, from what the model keeps and what the GPU holds.

    gpu-memory-utilization   the least of some shares at which so many of the longest sequences fit
    max-num-seqs             usual sequences that fit into the cache then, in steps of 8

More sequences than fit are no gain: the engine preempts some of them and computes their prompts anew.
"""

from typing import NamedTuple

from controlplane.planner.budget import UTILIZATION, KvBudget
from controlplane.planner.kv import kv_shape
from controlplane.planner.model_config import ModelConfig, ModelConfigError
from controlplane.planner.weights import counted_weights
from controlplane.render.manifests.settings import ManifestSettings, Pool

CPUS, MEMORY_GIB = 8, 64
"""What a replica asks for beside its GPUs."""

_SHARES = (UTILIZATION, 0.92, 0.95)
_LONGEST_AT_ONCE = 4
_MOST_SEQUENCES = 1024
_STEP = 8


class EngineArguments(NamedTuple):
    max_model_len: int
    gpu_memory_utilization: float
    max_num_seqs: int


class DoesNotFitError(ValueError):
    """The model cannot serve a pool on these GPUs; the text is a sentence."""


def arguments(settings: ManifestSettings, pool: Pool) -> EngineArguments:
    """Raises DoesNotFitError, also for a model that is not known here."""
    try:
        model = ModelConfig(settings.model.config)
        shape = kv_shape(model)
        counted = None if settings.model.weights is not None else counted_weights(model)
    except ModelConfigError as error:
        raise DoesNotFitError(str(error)) from None
    weights = settings.model.weights or (counted.bytes if counted is not None else None)
    if weights is None:
        raise DoesNotFitError(
            f"the weights of a {shape.model_type} model cannot be counted: give model.weights"
        )
    if shape.context_tokens is not None and pool.context > shape.context_tokens:
        raise DoesNotFitError(f"a context of {pool.context} is over the model's {shape.context_tokens}")
    gpu = settings.gpu
    for share in _SHARES:
        budget = KvBudget(shape, gpu.count, gpu.memory, share, weights, gpu.other)
        longest, usual = budget.sequences(pool.context), budget.sequences(pool.usual)
        if longest is None or usual is None:
            return EngineArguments(pool.context, share, _MOST_SEQUENCES)
        if longest >= _LONGEST_AT_ONCE:
            return EngineArguments(pool.context, share, max(longest, _steps(min(usual, _MOST_SEQUENCES))))
    raise DoesNotFitError(
        budget.trouble()
        or f"fewer than {_LONGEST_AT_ONCE} sequences of {pool.context} tokens fit beside the weights: "
        "more GPUs, a shorter context, or smaller weights"
    )


def _steps(sequences: int) -> int:
    return max(_STEP, sequences // _STEP * _STEP) if sequences >= _STEP else sequences
