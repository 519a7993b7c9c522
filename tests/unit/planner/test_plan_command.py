"""`controlplane plan kv`: the table, the JSON, and what is said to bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from controlplane.cli import cli

LLAMA_3_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
WINDOWED = LLAMA_3_70B | {
    "sliding_window": 1024,
    "sliding_window_pattern": 4,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_3_70B))
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["plan", "kv", *map(str, arguments)])


def answer(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    fields = json.loads(result.output)
    assert isinstance(fields, dict)
    return fields


def test_without_memory_it_shows_what_a_token_and_a_sequence_take(config: Path) -> None:
    assert run(config).output.splitlines() == [
        "llama: KV cache in fp16",
        "",
        "Bytes per token",
        "  2 (K and V) x 80 layers x 8 KV heads x 128 x 2 bytes (full attention)        327,680  327.7 kB",
        "",
        "A sequence of 8,192 tokens",
        "  8,192 tokens x 327,680 bytes (full attention)                          2,684,354,560  2.684 GB",
    ]


def test_with_memory_it_shows_the_arithmetic_of_the_budget(config: Path) -> None:
    output = run(config, "--gpu-memory", "80GB", "--gpus", 4, "--weights", "141.2GB").output
    rows = [" ".join(line.split()) for line in output.splitlines()]
    assert rows[rows.index("Memory of each GPU") :] == [
        "Memory of each GPU",
        "80,000,000,000 x 0.9 72,000,000,000 72 GB",
        "- weights 141,200,000,000 / 4 (given) 35,300,000,000 35.3 GB",
        "- activations, CUDA graphs, libraries 2,684,354,560 2.684 GB",
        "= for the KV cache 34,015,645,440 34.02 GB",
        "one of 4 GPUs keeps per token 81,920 81.92 kB",
        "",
        "One replica holds at once",
        "34,015,645,440 / 671,088,640 50 sequences of 8,192 tokens",
        "the same in tokens 415,230 tokens",
    ]


def test_fan_out_keeps_the_prompt_once(config: Path) -> None:
    output = run(config, "--gpu-memory", "80GB", "--gpus", 4, "--fan-out", 8, "--prompt", 7192).output
    rows = [" ".join(line.split()) for line in output.splitlines()]
    size = 81_920 * (7192 + 8 * 1000)
    prompts = 34_039_451_648 // size
    assert rows[-2:] == [
        f"34,039,451,648 / {size:,} {prompts} prompts of 7,192 tokens, kept once for 8 answers of 1,000",
        f"the same in answers {prompts * 8} answers",
    ]


def test_json_has_the_numbers(config: Path) -> None:
    fields = answer(config, "--gpu-memory", "80GB", "--gpus", "4", "--kv-dtype", "fp8", "--context", 4096)
    assert fields["bytes_per_token"] == 163_840
    assert fields["bytes_per_token_per_gpu"] == 40_960
    assert fields["sequence_bytes_per_gpu"] == 40_960 * 4096
    assert fields["for_kv_bytes_per_gpu"] == 34_039_451_648
    assert fields["budget_tokens"] == 34_039_451_648 // 40_960
    assert fields["sequences"] == 34_039_451_648 // (40_960 * 4096)
    assert fields["weights_source"] == "counted: 70.55 billion parameters"


def test_windows_are_shown_apart_and_together(config: Path) -> None:
    config.write_text(json.dumps(WINDOWED))
    output = run(config, "--context", 32768).output
    rows = [" ".join(line.split()) for line in output.splitlines()]
    assert rows[3:] == [
        "2 (K and V) x 60 layers x 8 KV heads x 128 x 2 bytes (sliding window, 1,024 tokens)"
        " 245,760 245.8 kB",
        "2 (K and V) x 20 layers x 8 KV heads x 128 x 2 bytes (full attention) 81,920 81.92 kB",
        "together 327,680 327.7 kB",
        "",
        "A sequence of 32,768 tokens",
        "1,024 tokens x 245,760 bytes (sliding window) 251,658,240 251.7 MB",
        "32,768 tokens x 81,920 bytes (full attention) 2,684,354,560 2.684 GB",
        "together 2,936,012,800 2.936 GB",
    ]


def test_a_model_without_attention_holds_any_number(config: Path) -> None:
    config.write_text(json.dumps({"model_type": "mamba2", "num_hidden_layers": 64}))
    output = run(config, "--gpu-memory", "80GB", "--weights", "5GB").output
    assert "64 layers that keep nothing" in output
    assert output.rstrip().endswith("as many tokens as are wanted: no layer keeps any")
    assert answer(config, "--gpu-memory", "80GB", "--weights", "5GB")["budget_tokens"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gpu-memory", "80 apples"), "not a size like 80GB, 79.6GiB or 81559MiB (got '80 apples')"),
        (("--gpu-memory", "80GB"), "the GPU has 72 GB to use, but the weights take 141.1 GB of it"),
        (("--context", 100, "--prompt", 200), "a prompt of 200 tokens is longer than the context of 100"),
        (("--gpus", 0), "0 is not in the range"),
        (("--kv-dtype", "int3"), "'int3' is not one of"),
    ],
)
def test_bad_options_are_told_in_a_sentence(
    config: Path, arguments: tuple[object, ...], sentence: str
) -> None:
    result = run(config, *arguments)
    assert result.exit_code != 0
    assert sentence in " ".join(result.output.split())


def test_bad_files_are_told_in_a_sentence(config: Path) -> None:
    config.write_text("{}")
    assert run(config).output.startswith(
        "Error: the configuration of this unknown model has no num_hidden_layers"
    )
    config.write_text(json.dumps(LLAMA_3_70B | {"attn_layer_period": 8}))
    result = run(config, "--gpu-memory", "80GB")
    assert result.output == "Error: the weights of a llama model cannot be counted here: give --weights\n"
    assert "cannot be read: No such file" in run(config.with_name("other.json")).output
