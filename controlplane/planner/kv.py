"""What a model keeps in the KV cache for each token, by layer.

    bytes per token = copies x layers x KV heads x head dim x bytes of the type

with 2 copies (K and V), or 1 for latent attention (MLA), which keeps one compressed vector of
kv_lora_rank + qk_rope_head_dim numbers. A layer with a sliding window or a chunk keeps no more than that
many tokens; layers without attention (Mamba, linear attention, convolutions) and layers that share the
cache of an earlier one keep nothing. Llama-3-70B in 16 bits: 2 x 80 x 8 x 128 x 2 = 327,680 bytes.

Sources: transformers' configuration classes, and vLLM's model code and KV cache specs for how an engine
reads them. Not counted: the fixed state that layers without attention keep for each sequence, and the
chunk of a prompt being read, which a window layer holds on top of its window meanwhile.
"""

from collections import Counter
from enum import StrEnum

import msgspec

from controlplane.planner.model_config import ModelConfig, ModelConfigError

KV_TYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_TYPES = {"float32": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
"""What an engine takes for the cache by itself; models stored in 32 bits are run in 16."""
_SPARSE_FP8_BYTES = 656
"""A token of DeepSeek's sparse attention in fp8: 512 values, 4 scales of 4 bytes, 64 rope values of 2."""
_INDEX_BLOCK = 128
_NOT_KNOWN = ("block_configs", "compress_ratios", "swa_num_key_value_heads", "dim_model_base")
"""Fields of models that keep what the fields read here do not tell: Nemotron-NAS, DeepSeek V4, MiMo V2,
MiniCPM3."""
_ATTENTION_FREE = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"})


class LayerKind(StrEnum):
    """How far back a layer keeps tokens."""

    FULL = "full attention"
    WINDOW = "sliding window"
    CHUNK = "chunked attention"
    NONE = "no attention"
    SHARED = "shares an earlier layer's cache"


class LayerGroup(msgspec.Struct, frozen=True):
    """Layers that keep the same. `width` numbers per KV head, `copies` of them (K and V); `window_tokens` is
    the most tokens kept; `fixed_bytes` is the size of one number where the cache's type does not say it;
    `sharded`: whether tensor parallelism divides the KV heads (a latent vector is kept by every GPU)."""

    name: str
    layers: int
    copies: int
    kv_heads: int
    width: int
    window_tokens: int | None = None
    fixed_bytes: int | None = None
    sharded: bool = True

    def token_bytes(self, type_bytes: int, gpus: int = 1) -> int:
        """Bytes that one GPU keeps for a token. With more GPUs than KV heads each keeps a whole head."""
        heads = -(-self.kv_heads // gpus) if self.sharded else self.kv_heads
        return self.layers * self.copies * heads * self.width * (self.fixed_bytes or type_bytes)

    def kept_tokens(self, prompt_tokens: int, answer_tokens: int, answers: int = 1) -> int:
        """Tokens kept at the end of so many answers to one prompt: of the prompt once what is still inside
        the windows of the answers, of each answer its own."""
        if self.window_tokens is None:
            return prompt_tokens + answers * answer_tokens
        own = min(answer_tokens, self.window_tokens)
        return min(prompt_tokens, self.window_tokens - own) + answers * own


class KvShape(msgspec.Struct, frozen=True):
    """What a model keeps: its groups of layers, the type of the cache, the longest context (tokens)."""

    model_type: str
    kv_type: str
    groups: tuple[LayerGroup, ...]
    layers_without_cache: int
    context_tokens: int | None

    def token_bytes(self, gpus: int = 1) -> int:
        """Bytes that one of `gpus` GPUs keeps for one more token, before any window is full."""
        return sum(group.token_bytes(KV_TYPE_BYTES[self.kv_type], gpus) for group in self.groups)

    def sequence_bytes(self, tokens: int, gpus: int = 1) -> int:
        """Bytes that one of `gpus` GPUs keeps for a sequence of so many tokens."""
        return self.shared_bytes(tokens, 0, 1, gpus)

    def shared_bytes(self, prompt_tokens: int, answer_tokens: int, answers: int, gpus: int = 1) -> int:
        """The same for several answers to one prompt, which is kept once (`n`, agents that fan out)."""
        return sum(
            group.token_bytes(KV_TYPE_BYTES[self.kv_type], gpus)
            * group.kept_tokens(prompt_tokens, answer_tokens, answers)
            for group in self.groups
        )


def kv_shape(config: ModelConfig, kv_type: str = "auto") -> KvShape:
    """What the model of `config` keeps. `kv_type`: one of KV_TYPE_BYTES, or "auto" for what an engine takes.

    Raises ModelConfigError where the configuration lacks what is needed or is of a kind not known here.
    """
    if any(config.get(name) for name in _NOT_KNOWN):
        raise ModelConfigError(
            f"layers of this {config.model_type} model differ in a way that is not known here: "
            "take the engine's own figure (cache_config_info)"
        )
    kv_type = _own_type(config) if kv_type == "auto" else kv_type
    kinds = layer_kinds(config)
    if config.number("kv_lora_rank") is not None:
        groups = _latent_groups(config, kinds, kv_type)
    else:
        groups = [_group(config, kind, count) for kind, count in Counter(kinds).items() if _keeps(kind)]
    return KvShape(
        model_type=config.model_type,
        kv_type=kv_type,
        groups=tuple(groups),
        layers_without_cache=sum(not _keeps(kind) for kind in kinds),
        context_tokens=config.number("context"),
    )


def _keeps(kind: LayerKind) -> bool:
    return kind not in (LayerKind.NONE, LayerKind.SHARED)


def _own_type(config: ModelConfig) -> str:
    """The type of the cache where nobody sets it."""
    quantization = config.quantization
    if quantization.get("kv_cache_scheme") or str(quantization.get("kv_cache_quant_algo")).upper() == "FP8":
        return "fp8"
    return _TYPES.get(config.dtype, "bf16")


def _group(config: ModelConfig, kind: LayerKind, layers: int) -> LayerGroup:
    kv_heads, width = config.kv_heads, config.head_dim
    if kind is LayerKind.FULL:  # Gemma 4 has other heads where it looks at everything
        width = config.number("global_head_dim") or width
        if config.get("attention_k_eq_v") is True:
            kv_heads = config.number("num_global_key_value_heads") or kv_heads
    return LayerGroup(str(kind), layers, 2, kv_heads, width, _window(config, kind))


def _window(config: ModelConfig, kind: LayerKind) -> int | None:
    if kind is LayerKind.WINDOW:
        return config.required("sliding_window")
    return config.required("attention_chunk_size") if kind is LayerKind.CHUNK else None


def _latent_groups(config: ModelConfig, kinds: list[LayerKind], kv_type: str) -> list[LayerGroup]:
    """MLA, and beside it the index of sparse attention (DeepSeek V3.2) with its own 8-bit keys."""
    layers = sum(_keeps(kind) for kind in kinds)
    width = config.required("kv_lora_rank") + config.required("qk_rope_head_dim")
    index = config.number("index_head_dim")
    if index is None:
        return [LayerGroup("latent attention (MLA)", layers, 1, 1, width, sharded=False)]
    fixed = None
    if kv_type == "fp8":
        width, fixed = _SPARSE_FP8_BYTES, 1
    return [
        LayerGroup("latent attention (MLA)", layers, 1, 1, width, None, fixed, False),
        LayerGroup(
            "index of sparse attention", layers, 1, 1, index + index // _INDEX_BLOCK * 4, None, 1, False
        ),
    ]


_KINDS = {
    "attention": LayerKind.FULL,
    "full_attention": LayerKind.FULL,
    "hybrid": LayerKind.FULL,
    "sliding_attention": LayerKind.WINDOW,
    "local_attention": LayerKind.WINDOW,
    "chunked_attention": LayerKind.CHUNK,
    "linear_attention": LayerKind.NONE,
    "mamba": LayerKind.NONE,
    "mamba2": LayerKind.NONE,
    "conv": LayerKind.NONE,
    "recurrent": LayerKind.NONE,
    "linear": LayerKind.NONE,
    "mlp": LayerKind.NONE,
    "moe": LayerKind.NONE,
}
"""Names in lists of layer types. Any other is taken as full attention, which keeps the most."""
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4, "gpt_oss": 2}
"""Each so-many-th layer looks at everything, where the file does not say so."""


def layer_kinds(config: ModelConfig) -> list[LayerKind]:
    """The kind of each layer, in order."""
    kinds = _listed(config)
    if not kinds:
        layers = config.required("layers")
        kinds = _interleaved(config, layers) or _windowed(config, layers)
    shared = config.number("num_kv_shared_layers") or 0
    return kinds[: len(kinds) - shared] + [LayerKind.SHARED] * shared


def _listed(config: ModelConfig) -> list[LayerKind]:
    """From a list of layer types; empty where there is none."""
    for name in ("layer_types", "layers_block_type"):
        listed = config.get(name)
        if isinstance(listed, list):
            return [_KINDS.get(str(one), LayerKind.FULL) for one in listed]
    pattern = config.get("hybrid_override_pattern")  # Nemotron-H: M Mamba, - MLP, E experts, * attention
    if isinstance(pattern, str):
        return [LayerKind.FULL if mark == "*" else LayerKind.NONE for mark in pattern]
    types = config.get("attn_type_list")  # MiniMax: 1 softmax, 0 linear
    if isinstance(types, list):
        return [LayerKind.FULL if one == 1 else LayerKind.NONE for one in types]
    return []


def _interleaved(config: ModelConfig, layers: int) -> list[LayerKind]:
    """From a rule for which layers have attention at all; empty where every layer has."""
    if config.model_type in _ATTENTION_FREE:
        return [LayerKind.NONE] * layers
    interval = config.number("full_attention_interval")  # Qwen3-Next
    if interval is not None:
        return [_full_if((layer + 1) % interval == 0) for layer in range(layers)]
    period = config.number("attn_layer_period")  # Jamba
    if period is not None:
        offset = config.number("attn_layer_offset") or 0
        return [_full_if(layer % period == offset) for layer in range(layers)]
    for name, first in (("attn_layer_indices", 0), ("full_attn_idxs", 0), ("full_attn_layers", 1)):
        listed = config.part("linear_attn_config").get(name, config.get(name))  # Bamba, LFM2, Kimi Linear
        if isinstance(listed, list):
            return [_full_if(layer + first in listed) for layer in range(layers)]
    return []


def _full_if(attends: bool) -> LayerKind:
    return LayerKind.FULL if attends else LayerKind.NONE


def _windowed(config: ModelConfig, layers: int) -> list[LayerKind]:
    """From windows or chunks, where every layer has attention."""
    if config.number("attention_chunk_size") is not None:  # Llama 4
        rope = config.get("no_rope_layers")
        if isinstance(rope, list) and len(rope) == layers:
            return [LayerKind.CHUNK if one else LayerKind.FULL for one in rope]
        interval = config.number("no_rope_layer_interval") or 4
        return [LayerKind.CHUNK if (i + 1) % interval else LayerKind.FULL for i in range(layers)]
    if config.number("sliding_window") is None or config.get("use_sliding_window") is False:
        return [LayerKind.FULL] * layers
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE: L local, G global
        marks = (pattern * layers)[:layers]
        return [LayerKind.WINDOW if mark == "L" else LayerKind.FULL for mark in marks]
    every = config.number("sliding_window_pattern") or _PATTERNS.get(config.model_type)
    if every is not None:
        return [LayerKind.WINDOW if (i + 1) % every else LayerKind.FULL for i in range(layers)]
    first = config.number("max_window_layers") if config.get("use_sliding_window") is True else None
    return [LayerKind.WINDOW if i >= (first or 0) else LayerKind.FULL for i in range(layers)]
