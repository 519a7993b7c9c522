"""Weights, and what is left of the memory for the KV cache."""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.planner.budget import KvBudget
from controlplane.planner.kv import kv_shape
from controlplane.planner.model_config import ModelConfig, ModelConfigError
from controlplane.planner.sizes import size_bytes, size_text
from controlplane.planner.weights import Weights, counted_weights, weights_of

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_3_70B = LLAMA_3_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
MIXTRAL_8X7B = LLAMA_3_8B | {"model_type": "mixtral", "num_local_experts": 8, "vocab_size": 32000}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "vocab_size": 201088,
    "sliding_window": 128,
    "quantization_config": {"quant_method": "mxfp4"},
}


def quantized(method: str, **fields: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, **fields}}


@pytest.mark.parametrize(
    ("name", "config", "size", "tolerance"),
    [
        # Parameters as published, at two bytes each.
        ("Llama-3-8B", LLAMA_3_8B, 2 * 8.03e9, 0.002),
        ("Llama-3-70B", LLAMA_3_70B, 2 * 70.55e9, 0.002),
        ("Mixtral-8x7B", MIXTRAL_8X7B, 2 * 46.7e9, 0.002),
        ("DeepSeek-V3", DEEPSEEK_V3, 2 * 671e9, 0.002),
        ("GPT-2", {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257}
         | {"tie_word_embeddings": True}, 2 * 124e6, 0.01),
        # Sizes of the published files.
        ("gpt-oss-20b", GPT_OSS_20B, 13.76e9, 0.03),
        ("DeepSeek-V3 in fp8", DEEPSEEK_V3 | quantized("fp8"), 671e9, 0.01),
        ("Llama-3-70B AWQ", LLAMA_3_70B | quantized("awq", bits=4), 39.8e9, 0.04),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_counted_weights(name: str, config: dict[str, Any], size: float, tolerance: float) -> None:
    counted = counted_weights(ModelConfig(config))
    assert counted is not None, name
    assert counted.bytes == pytest.approx(size, rel=tolerance)
    assert counted.source.startswith("counted: ")


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({}, 16),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "gptq", "bits": 8}, 8),
        ({"quant_method": "awq", "w_bit": 4}, 4.25),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.25),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 8),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": None}}}, 16),
        ({"quant_method": "new", "bits": "few"}, 16),
    ],
)
def test_quantization_counts_matrices_but_not_embeddings(quantization: dict[str, Any], bits: float) -> None:
    counted = counted_weights(ModelConfig(LLAMA_3_8B | {"quantization_config": quantization}))
    embeddings = 2 * 128256 * 4096
    matrices = 32 * (2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 14336)
    assert counted is not None
    assert counted.bytes == round(embeddings * 2 + matrices * bits / 8)


def test_kinds_that_cannot_be_counted() -> None:
    assert counted_weights(ModelConfig(LLAMA_3_8B | {"attn_layer_period": 8, "attn_layer_offset": 4})) is None
    assert counted_weights(ModelConfig({**LLAMA_3_8B, "vocab_size": None})) is None


def test_files_beside_the_configuration_win(tmp_path: Path) -> None:
    config = ModelConfig(LLAMA_3_8B)
    counted = weights_of(config, tmp_path / "config.json")
    assert counted is not None
    assert counted.source == "counted: 8.03 billion parameters"
    for part in "ab":
        (tmp_path / f"{part}.safetensors").write_bytes(b"x" * 500)
    assert weights_of(config, tmp_path / "config.json") == Weights(1000, "2 safetensors files")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 16060522496}, "weight_map": {}}))
    assert weights_of(config, tmp_path) == Weights(16060522496, index.name)
    for broken in ("{}", "[", "[]", '{"metadata": null}'):
        index.write_text(broken)
        with pytest.raises(ModelConfigError, match=r"has no metadata\.total_size"):
            weights_of(config, tmp_path)


def budget(config: dict[str, Any], gpus: int, memory: str, weights: int, other: int = 0) -> KvBudget:
    return KvBudget(kv_shape(ModelConfig(config)), gpus, size_bytes(memory), 0.9, weights, other)


def test_llama_70b_on_8_a100_holds_what_the_dual_pool_paper_needs() -> None:
    """20 sequences of 64K or 162 of 8K: with two GPUs not even one of 64K fits."""
    eight = budget(LLAMA_3_70B, 8, "80GB", 141_000_000_000)
    assert eight.for_kv_bytes == 72_000_000_000 - 17_625_000_000
    assert eight.tokens(8192) == pytest.approx(1.33e6, rel=0.01)
    assert (eight.sequences(65536), eight.sequences(8192)) == (20, 162)
    two = budget(LLAMA_3_70B, 2, "80GB", 141_000_000_000)
    assert two.tokens(8192) == pytest.approx(9155, abs=1)
    assert two.sequences(65536) == 0


def test_llama_8b_on_an_h100_holds_what_an_engine_reports() -> None:
    one = budget(LLAMA_3_8B, 1, "81559MiB", 16_060_522_496, 5 << 29)
    assert one.tokens(8192) == pytest.approx(440_000, rel=0.02)


def test_answers_to_one_prompt_fit_more_often() -> None:
    one = budget(LLAMA_3_8B, 1, "80GB", 16_000_000_000)
    assert one.for_kv_bytes == 56_000_000_000
    assert one.sequences(6500) == 56_000_000_000 // (131_072 * 6500) == 65
    assert one.prompts(6000, 500, 8) == 56_000_000_000 // (131_072 * 10_000) == 42


def test_windows_make_tokens_of_long_sequences_cheaper() -> None:
    config = LLAMA_3_8B | {"sliding_window": 4096}
    windowed = budget(config, 1, "80GB", 16_000_000_000)
    assert windowed.sequences(4096) == windowed.sequences(100_000) == 104
    tokens = windowed.tokens(4096)
    assert tokens is not None
    assert windowed.tokens(8192) == pytest.approx(2 * tokens, abs=2)


def test_a_model_that_keeps_nothing_has_no_bound() -> None:
    free = budget({"model_type": "mamba2", "num_hidden_layers": 4}, 1, "80GB", 10**9)
    assert (free.tokens(8192), free.sequences(8192), free.prompts(1, 1, 1)) == (None, None, None)


def test_weights_that_do_not_fit_are_told() -> None:
    small = budget(LLAMA_3_70B, 1, "80GB", 141_000_000_000, 5 << 29)
    assert (small.tokens(8192), small.sequences(8192)) == (0, 0)
    assert small.trouble() == (
        "the GPU has 72 GB to use, but the weights take 141 GB of it and the engine 2.684 GB"
    )
    assert budget(LLAMA_3_70B, 2, "80GB", 150_000_000_000).trouble() == (
        "each of 2 GPUs has 72 GB to use, but the weights take 75 GB of it and the engine 0 B"
    )
    assert budget(LLAMA_3_70B, 4, "80GB", 141_000_000_000).trouble() is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80_000_000_000),
        ("80 GB", 80_000_000_000),
        ("80g", 80_000_000_000),
        ("79.6GiB", round(79.6 * 2**30)),
        ("81559MiB", 81559 << 20),
        ("1.5T", 1_500_000_000_000),
        ("12k", 12_000),
        ("7B", 7),
        ("7", 7),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "80 apples", "-80GB", "80GBB", "8e9", "80P"])
def test_bad_sizes_are_told(text: str) -> None:
    with pytest.raises(ValueError, match="not a size like 80GB"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (327_680, "327.7 kB"), (8e10, "80 GB"), (-5e9, "-5 GB")]
)
def test_sizes_are_written(size: float, text: str) -> None:
    assert size_text(size) == text
