"""How much memory a model's weights take: told, read from its files, or counted from its configuration.

Counted are the matrices of a decoder: embeddings, attention, feed-forward (gated: three matrices) or
experts. Norms, biases, routers' extras and image encoders are left out, so a count is 1 or 2 % low; the size
in a safetensors index is exact.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from controlplane.planner.kv import LayerKind, layer_kinds
from controlplane.planner.model_config import ModelConfig, ModelConfigError

_LARGEST_INDEX_BYTES = 64 << 20
_UNGATED = frozenset({"falcon", "gpt2", "gpt_neox", "gpt_bigcode", "gptj", "opt", "mpt", "bloom", "phi"})
_FULL_BITS = {"float32": 16, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8}
_GROUP_SCALE_BITS = 0.25
"""A group of 64 values shares a scale of 16 bits (or of 32 an 8-bit one)."""


class Weights(msgspec.Struct, frozen=True):
    """Bytes of all weights, and where the figure is from."""

    bytes: int
    source: str


def weights_of(config: ModelConfig, path: Path) -> Weights | None:
    """The weights of the model whose configuration is at `path` (a file or folder).

    None where its files are not there and its kind cannot be counted.
    """
    return weights_in(path if path.is_dir() else path.parent) or counted_weights(config)


def weights_in(folder: Path) -> Weights | None:
    """The weights by the safetensors index, or the files themselves, in a folder. None without them."""
    index = folder / "model.safetensors.index.json"
    if index.is_file() and index.stat().st_size <= _LARGEST_INDEX_BYTES:
        try:
            total = json.loads(index.read_bytes())["metadata"]["total_size"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelConfigError(f"{index} has no metadata.total_size ({error!r})") from None
        if isinstance(total, int | float) and total > 0:
            return Weights(int(total), index.name)
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    return Weights(sum(sizes), f"{len(sizes)} safetensors files") if sizes else None


def counted_weights(config: ModelConfig) -> Weights | None:
    """The weights counted from the configuration; None for kinds with layers that are not counted here."""
    kinds = layer_kinds(config)
    if LayerKind.NONE in kinds or config.get("attn_config"):
        return None
    vocabulary, hidden = config.number("vocab_size"), config.required("hidden")
    if vocabulary is None:
        return None
    tied = config.get("tie_word_embeddings") is True or config.model_type.startswith(("gemma", "cohere"))
    embeddings = vocabulary * hidden * (1 if tied else 2)
    attention = len(kinds) * _attention(config, hidden)
    dense, experts = _feed_forward(config, hidden, len(kinds))
    bits = _FULL_BITS.get(config.dtype, 16)
    linear_bits, only_experts = _quantized_bits(config.quantization, bits)
    around_bits = bits if only_experts else linear_bits
    total_bits = embeddings * bits + (attention + dense) * around_bits + experts * linear_bits
    parameters = embeddings + attention + dense + experts
    return Weights(round(total_bits / 8), f"counted: {parameters / 1e9:.4g} billion parameters")


def _attention(config: ModelConfig, hidden: int) -> int:
    """Parameters of one layer's attention."""
    heads = config.required("heads")
    latent = config.number("kv_lora_rank")
    if latent is None:
        width = config.head_dim
        return 2 * hidden * width * (heads + config.kv_heads)
    rope, nope, value = (config.required(f"{what}_head_dim") for what in ("qk_rope", "qk_nope", "v"))
    queries = heads * (rope + nope)
    low_rank = config.number("q_lora_rank")
    query = hidden * queries if low_rank is None else low_rank * (hidden + queries)
    return query + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden


def _feed_forward(config: ModelConfig, hidden: int, layers: int) -> tuple[int, int]:
    """Parameters of all dense feed-forward layers, and of all experts with their routers."""
    matrices = 2 if config.model_type in _UNGATED else 3
    inner = config.number("intermediate_size") or config.number("n_inner") or 4 * hidden
    dense = matrices * hidden * inner
    experts = next(
        (
            count
            for name in ("n_routed_experts", "num_local_experts", "num_experts")
            if (count := config.number(name)) is not None
        ),
        None,
    )
    if experts is None:
        return layers * dense, 0
    expert = matrices * hidden * (config.number("moe_intermediate_size") or inner)
    shared_inner = config.number("shared_expert_intermediate_size")
    shared = matrices * hidden * shared_inner if shared_inner else 0
    shared += (config.number("n_shared_experts") or 0) * expert
    sparse_layers = layers - _dense_layers(config, layers)
    sparse = sparse_layers * (experts * (expert + hidden))
    return (layers - sparse_layers) * dense + sparse_layers * shared, sparse


def _dense_layers(config: ModelConfig, layers: int) -> int:
    """How many layers of a model with experts have none."""
    first = config.number("first_k_dense_replace")
    if first is not None:
        return first
    step = config.number("interleave_moe_layer_step") or config.number("decoder_sparse_step") or 1
    return layers - layers // step


def _quantized_bits(quantization: Mapping[str, object], bits: float) -> tuple[float, bool]:
    """Bits of a number in a quantized matrix, and whether only experts are quantized."""
    method = str(quantization.get("quant_method", "")).lower()
    if method == "mxfp4":
        return 4 + _GROUP_SCALE_BITS, True
    if method == "fp8":
        return 8, False
    width = _number_of_bits(quantization)
    if width is None:
        return bits, False
    return (width + _GROUP_SCALE_BITS if width <= 4 else width), False


def _number_of_bits(quantization: Mapping[str, object]) -> int | None:
    """Bits by whichever of the many quantization formats says it."""
    if quantization.get("load_in_4bit") is True or quantization.get("_load_in_4bit") is True:
        return 4
    if quantization.get("load_in_8bit") is True:
        return 8
    algorithm = str(quantization.get("quant_algo", "")).upper()  # ModelOpt
    if algorithm:
        return 4 if "4" in algorithm else 8
    bits = quantization.get("bits", quantization.get("w_bit"))  # GPTQ, AWQ
    groups = quantization.get("config_groups")  # compressed-tensors
    if isinstance(groups, dict):
        widths = [
            weights.get("num_bits")
            for group in groups.values()
            if isinstance(group, dict) and isinstance(weights := group.get("weights"), dict)
        ]
        bits = max((width for width in widths if isinstance(width, int)), default=bits)
    return bits if isinstance(bits, int) and bits > 0 else None
