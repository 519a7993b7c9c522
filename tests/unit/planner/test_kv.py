"""What known models keep in the KV cache: configurations by hand, figures from public facts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.planner.kv import KvShape, LayerGroup, kv_shape
from controlplane.planner.model_config import ModelConfig, ModelConfigError


def shape(kv_type: str = "auto", /, **fields: Any) -> KvShape:
    return kv_shape(ModelConfig(fields), kv_type)


LLAMA_3_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "float16",
}
LLAMA_3_8B = LLAMA_3_70B | {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
MISTRAL_7B_V01 = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
}
GEMMA_2_9B = {
    "model_type": "gemma2",
    "hidden_size": 3584,
    "head_dim": 256,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    },
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}
GPT_OSS_120B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "head_dim": 64,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}


@pytest.mark.parametrize(
    ("name", "config", "token_bytes"),
    [
        ("Llama-3-70B", LLAMA_3_70B, 327_680),
        ("Llama-3-8B", LLAMA_3_8B, 131_072),
        ("Llama-2-7B", LLAMA_3_8B | {"num_key_value_heads": 32}, 524_288),
        ("Mistral-7B", MISTRAL_7B_V01, 131_072),
        ("Gemma-2-9B", GEMMA_2_9B, 2 * 42 * 8 * 256 * 2),
        ("Gemma-3-27B", GEMMA_3_27B, 2 * 62 * 16 * 128 * 2),
        ("Gemma-3-4B", {"text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34}}, 34 * 4096),
        ("DeepSeek-V3", DEEPSEEK_V3, 61 * (512 + 64) * 2),
        ("gpt-oss-120b", GPT_OSS_120B, 2 * 36 * 8 * 64 * 2),
        (
            "Qwen2-7B",
            {
                "model_type": "qwen2",
                "hidden_size": 3584,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "sliding_window": 131072,
                "use_sliding_window": False,
                "max_window_layers": 28,
            },
            57_344,
        ),
        (
            "Qwen3-235B-A22B",
            {
                "model_type": "qwen3_moe",
                "hidden_size": 4096,
                "head_dim": 128,
                "num_hidden_layers": 94,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "sliding_window": None,
            },
            192_512,
        ),
        (
            "Phi-3-mini-4k",
            {
                "model_type": "phi3",
                "hidden_size": 3072,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "sliding_window": 2047,
            },
            393_216,
        ),
        (
            "Phi-4",
            {
                "model_type": "phi3",
                "hidden_size": 5120,
                "num_hidden_layers": 40,
                "num_attention_heads": 40,
                "num_key_value_heads": 10,
                "sliding_window": None,
            },
            204_800,
        ),
        ("GPT-2", {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}, 36_864),
        (
            "Falcon-7B",
            {
                "model_type": "falcon",
                "hidden_size": 4544,
                "num_hidden_layers": 32,
                "num_attention_heads": 71,
                "multi_query": True,
                "new_decoder_architecture": False,
            },
            2 * 32 * 1 * 64 * 2,
        ),
        (
            "Falcon-40B",
            {
                "model_type": "falcon",
                "hidden_size": 8192,
                "num_hidden_layers": 60,
                "num_attention_heads": 128,
                "num_kv_heads": 8,
                "multi_query": True,
                "new_decoder_architecture": True,
            },
            2 * 60 * 8 * 64 * 2,
        ),
        (
            "ChatGLM3-6B",
            {
                "model_type": "chatglm",
                "hidden_size": 4096,
                "num_layers": 28,
                "num_attention_heads": 32,
                "kv_channels": 128,
                "multi_query_attention": True,
                "multi_query_group_num": 2,
                "seq_length": 8192,
            },
            2 * 28 * 2 * 128 * 2,
        ),
        (
            "DBRX",
            {
                "model_type": "dbrx",
                "d_model": 6144,
                "n_layers": 40,
                "n_heads": 48,
                "attn_config": {"kv_n_heads": 8},
            },
            2 * 40 * 8 * 128 * 2,
        ),
        # Only the layers with attention count.
        (
            "Qwen3-Next-80B",
            {
                "model_type": "qwen3_next",
                "hidden_size": 2048,
                "head_dim": 256,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "full_attention_interval": 4,
            },
            2 * 12 * 2 * 256 * 2,
        ),
        (
            "Jamba-v0.1",
            {
                "model_type": "jamba",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "attn_layer_period": 8,
                "attn_layer_offset": 4,
            },
            2 * 4 * 8 * 128 * 2,
        ),
        (
            "Nemotron-H-8B",
            {
                "model_type": "nemotron_h",
                "hidden_size": 4096,
                "num_hidden_layers": 52,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "attention_head_dim": 128,
                "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            },
            2 * 4 * 8 * 128 * 2,
        ),
        (
            "Kimi-Linear-48B",
            DEEPSEEK_V3
            | {
                "model_type": "kimi_linear",
                "num_hidden_layers": 27,
                "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]},
            },
            7 * 576 * 2,
        ),
        (
            "Bamba-9B",
            LLAMA_3_8B | {"model_type": "bamba", "attn_layer_indices": [9, 18, 27]},
            2 * 3 * 8 * 128 * 2,
        ),
        ("LFM2", LLAMA_3_8B | {"layer_types": ["conv"] * 26 + ["full_attention"] * 6}, 2 * 6 * 8 * 128 * 2),
        ("MiniMax-01", LLAMA_3_8B | {"attn_type_list": [0, 0, 0, 1] * 8}, 2 * 8 * 8 * 128 * 2),
        ("Mamba", {"model_type": "mamba2", "num_hidden_layers": 64}, 0),
        # The last 15 of 35 layers use the cache of earlier ones.
        (
            "Gemma-3n-E4B",
            {
                "model_type": "gemma3n_text",
                "hidden_size": 2048,
                "head_dim": 256,
                "num_hidden_layers": 35,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "num_kv_shared_layers": 15,
                "sliding_window": 512,
                "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
            },
            2 * 20 * 2 * 256 * 2,
        ),
        # Llama 4 Scout: three of four layers look back 8,192 tokens.
        (
            "Llama-4-Scout",
            {
                "model_type": "llama4",
                "text_config": {
                    "model_type": "llama4_text",
                    "hidden_size": 5120,
                    "head_dim": 128,
                    "num_hidden_layers": 48,
                    "num_attention_heads": 40,
                    "num_key_value_heads": 8,
                    "attention_chunk_size": 8192,
                },
            },
            196_608,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_per_token(name: str, config: dict[str, Any], token_bytes: int) -> None:
    assert shape(**config).token_bytes() == token_bytes, name


@pytest.mark.parametrize(
    ("config", "tokens", "sequence_bytes"),
    [
        (LLAMA_3_70B, 65536, 20 << 30),
        # Mistral keeps its window, however long the sequence is.
        (MISTRAL_7B_V01, 4096, 512 << 20),
        (MISTRAL_7B_V01, 32768, 512 << 20),
        # Gemma 2: every other layer has a window of 4,096; a layer keeps 8,192 bytes a token.
        (GEMMA_2_9B, 8192, 8192 * (21 * 8192 + 21 * 4096)),
        # Gemma 3: 10 of 62 layers look at everything, the others back 1,024 tokens.
        (GEMMA_3_27B, 32768, 8192 * (10 * 32768 + 52 * 1024)),
        (GEMMA_3_27B, 1000, 8192 * 62 * 1000),
        # gpt-oss: half of the layers look back 128 tokens; a layer keeps 2,048 bytes a token.
        (GPT_OSS_120B, 131072, 2048 * 18 * (131072 + 128)),
        (DEEPSEEK_V3, 131072, 70_272 * 131072),
    ],
)
def test_windows_bound_a_sequence(config: dict[str, Any], tokens: int, sequence_bytes: int) -> None:
    assert shape(**config).sequence_bytes(tokens) == sequence_bytes


@pytest.mark.parametrize(
    ("fields", "full", "bounded"),
    [
        ({"sliding_window": 4096, "sliding_window_pattern": 4}, 8, 24),  # Cohere2
        ({"model_type": "cohere2", "sliding_window": 4096}, 8, 24),
        ({"sliding_window": 4096, "sliding_window_pattern": "LLLG"}, 8, 24),  # EXAONE 4
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 28, 4),
        ({"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28}, 32, 0),
        ({"sliding_window": None}, 32, 0),
        ({"model_type": "gpt_oss", "sliding_window": 128}, 16, 16),
        ({"attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0] * 8}, 8, 24),
        ({"attention_chunk_size": 8192, "no_rope_layer_interval": 2}, 16, 16),
    ],
)
def test_which_layers_have_a_window(fields: dict[str, Any], full: int, bounded: int) -> None:
    groups = shape(**(LLAMA_3_8B | fields)).groups
    assert sum(group.layers for group in groups if group.window_tokens is None) == full
    assert sum(group.layers for group in groups if group.window_tokens is not None) == bounded


def test_the_type_of_the_cache() -> None:
    assert shape("fp8", **LLAMA_3_70B).token_bytes() == 163_840
    assert shape("fp32", **LLAMA_3_70B).token_bytes() == 655_360
    assert shape(**(LLAMA_3_70B | {"torch_dtype": "float32"})).token_bytes() == 327_680
    assert shape(**(LLAMA_3_70B | {"torch_dtype": None, "dtype": "float16"})).kv_type == "fp16"
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert shape(**LLAMA_3_70B, quantization_config=scheme).token_bytes() == 163_840
    assert shape(**LLAMA_3_70B, quantization_config={"kv_cache_quant_algo": "FP8"}).kv_type == "fp8"
    assert shape(**LLAMA_3_70B, quantization_config={"quant_method": "fp8"}).kv_type == "fp16"


def test_sparse_attention_keeps_an_index_beside_the_latent() -> None:
    config = DEEPSEEK_V3 | {"model_type": "deepseek_v32", "index_head_dim": 128, "index_topk": 2048}
    assert shape(**config).token_bytes() == 61 * (576 * 2 + 132)
    assert shape("fp8", **config).token_bytes() == 61 * (656 + 132)
    assert shape("fp8", **DEEPSEEK_V3).token_bytes() == 61 * 576


def test_gemma_4_has_other_heads_where_it_looks_at_everything() -> None:
    config = GEMMA_3_27B["text_config"] | {
        "model_type": "gemma4_text",
        "num_hidden_layers": 60,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 4,
    }
    assert shape(**config).token_bytes() == 2 * 2 * (50 * 16 * 256 + 10 * 4 * 512)


def test_tensor_parallelism_divides_heads_down_to_one() -> None:
    llama = shape(**LLAMA_3_70B)
    assert [llama.token_bytes(gpus) for gpus in (1, 2, 4, 8, 16)] == [
        327_680,
        163_840,
        81_920,
        40_960,
        40_960,
    ]
    assert shape(**DEEPSEEK_V3).token_bytes(8) == 70_272, "every GPU keeps the whole latent vector"


def test_answers_to_one_prompt_share_it() -> None:
    llama = shape(**LLAMA_3_8B)
    assert llama.shared_bytes(6000, 500, 8) == 131_072 * (6000 + 8 * 500)
    mistral = shape(**MISTRAL_7B_V01)
    # 500 tokens of each answer, and of the prompt the 3,596 that are still in the window
    assert mistral.shared_bytes(6000, 500, 8) == 131_072 * (3596 + 8 * 500)
    assert mistral.shared_bytes(6000, 5000, 8) == 131_072 * 8 * 4096


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 100), st.none() | st.integers(1, 10**5))
def test_sharing_laws(prompt: int, answer: int, answers: int, window: int | None) -> None:
    group = LayerGroup("", 1, 2, 1, 1, window)
    kept = group.kept_tokens(prompt, answer, answers)
    assert group.kept_tokens(prompt, answer) == group.kept_tokens(prompt + answer, 0)
    assert kept <= answers * group.kept_tokens(prompt, answer)
    assert kept >= group.kept_tokens(prompt, answer)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "this unknown model has no num_hidden_layers or n_layer"),
        ({"num_hidden_layers": 2}, "has no num_attention_heads"),
        ({"num_hidden_layers": 2, "num_attention_heads": 4}, "has no hidden_size or n_embd"),
        ({"num_hidden_layers": -1}, "has no num_hidden_layers"),
        ({"num_hidden_layers": True}, "has no num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "has no num_hidden_layers"),
        (LLAMA_3_8B | {"layer_types": ["sliding_attention"] * 32}, "has no sliding_window"),
        (DEEPSEEK_V3 | {"qk_rope_head_dim": None}, "has no qk_rope_head_dim"),
        (LLAMA_3_70B | {"block_configs": [{}]}, "differ in a way that is not known here"),
    ],
)
def test_what_is_missing_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        shape(**fields)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_3_8B))
    for path in (file, tmp_path):
        assert kv_shape(ModelConfig.load(path)).token_bytes() == 131_072
    for content, message in (
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "is not JSON"),
        (b" " * (5 << 20), "is larger than 4 MiB"),
        (b"[" * 100_000, "is not JSON"),
    ):
        file.write_bytes(content)
        with pytest.raises(ModelConfigError, match=message):
            ModelConfig.load(file)
    with pytest.raises(ModelConfigError, match="cannot be read: No such file"):
        ModelConfig.load(tmp_path / "nothing.json")


@given(
    st.dictionaries(
        st.sampled_from(
            [*LLAMA_3_8B, *DEEPSEEK_V3, "layer_types", "sliding_window", "text_config", "attn_config"]
        ),
        st.none()
        | st.booleans()
        | st.integers(-5, 200)
        | st.text(max_size=5)
        | st.lists(st.text(max_size=3), max_size=3)
        | st.dictionaries(st.sampled_from(["kv_n_heads", "num_hidden_layers"]), st.integers(-1, 5)),
    )
)
def test_any_fields_give_a_shape_or_a_sentence(fields: dict[str, Any]) -> None:
    try:
        found = shape(**fields)
    except ModelConfigError:
        return
    assert found.token_bytes() >= 0
    assert found.sequence_bytes(1000) <= 1000 * found.token_bytes()
