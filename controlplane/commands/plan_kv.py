"""`controlplane plan kv`: what a model keeps in the KV cache, and how much of it fits."""

import json
from pathlib import Path
from typing import NamedTuple

import click

from controlplane.planner.budget import OTHER_BYTES, UTILIZATION, KvBudget
from controlplane.planner.kv import KV_TYPE_BYTES, KvShape, LayerGroup, kv_shape
from controlplane.planner.model_config import ModelConfig, ModelConfigError
from controlplane.planner.sizes import size_bytes, size_text
from controlplane.planner.weights import Weights, weights_of


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else size_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = _Size()


@click.command()
@click.argument("config", metavar="CONFIG.json", type=click.Path(path_type=Path))
@click.option("--gpu-memory", type=SIZE, help="Memory of one GPU: 80GB, or as nvidia-smi says it, 81559MiB.")
@click.option(
    "--gpus", type=click.IntRange(1, 1024), default=1, show_default=True, help="In tensor parallel."
)
@click.option(
    "--utilization",
    type=click.FloatRange(0, 1, min_open=True),
    default=UTILIZATION,
    show_default=True,
    help="Share of the memory that the engine may take.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", *KV_TYPE_BYTES]),
    default="auto",
    show_default=True,
    help="Type of the KV cache.",
)
@click.option(
    "--weights", type=SIZE, help="Size of all weights. [default: from files beside CONFIG, or counted]"
)
@click.option(
    "--other",
    type=SIZE,
    default=OTHER_BYTES,
    show_default="2.5GiB",
    help="What the engine takes on each GPU besides weights and cache.",
)
@click.option(
    "--context", type=click.IntRange(1), help="Tokens of a sequence. [default: 8192, or the longest]"
)
@click.option(
    "--fan-out", type=click.IntRange(1), default=1, show_default=True, help="Answers to one prompt."
)
@click.option("--prompt", type=click.IntRange(0), help="Tokens of the prompt. [default: half of the context]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def kv(  # noqa: PLR0917 (click hands the options over by name)
    config: Path,
    gpu_memory: int | None,
    gpus: int,
    utilization: float,
    kv_dtype: str,
    weights: int | None,
    other: int,
    context: int | None,
    fan_out: int,
    prompt: int | None,
    as_json: bool,
) -> None:
    """Show what a model keeps in the KV cache, and how much of it fits.

    CONFIG.json is the model's Hugging Face configuration, or its folder. With --gpu-memory: how many tokens
    and sequences one replica holds at once. GB is 10^9 bytes, GiB is 2^30.
    """
    try:
        model = ModelConfig.load(config)
        shape = kv_shape(model, kv_dtype)
        found = Weights(weights, "given") if weights is not None else weights_of(model, config)
    except ModelConfigError as error:
        raise click.ClickException(str(error)) from None
    context = context or min(8192, shape.context_tokens or 8192)
    prompt = context // 2 if prompt is None else prompt
    if prompt > context:
        raise click.ClickException(f"a prompt of {prompt} tokens is longer than the context of {context}")
    budget = None
    if gpu_memory is not None:
        if found is None:
            raise click.ClickException(
                f"the weights of a {shape.model_type} model cannot be counted here: give --weights"
            )
        budget = KvBudget(shape, gpus, gpu_memory, utilization, found.bytes, other)
        if trouble := budget.trouble():
            raise click.ClickException(trouble)
    asked = _Asked(context, prompt, fan_out)
    if as_json:
        click.echo(json.dumps(_fields(shape, gpus, budget, found, asked), indent=2))
    else:
        click.echo(_text(shape, gpus, budget, found, asked))


class _Asked(NamedTuple):
    """A sequence of `context` tokens, `prompt` of them the prompt, and `fan_out` answers to each prompt."""

    context: int
    prompt: int
    fan_out: int

    @property
    def answer(self) -> int:
        return self.context - self.prompt


class _Row(NamedTuple):
    """A line of the table: what, how much, and a word on it. Without a number it is a heading."""

    what: str
    number: int | None = None
    word: str = ""


def _text(shape: KvShape, gpus: int, budget: KvBudget | None, weights: Weights | None, asked: _Asked) -> str:
    rows = [_Row(f"{shape.model_type}: KV cache in {shape.kv_type}"), *_shape_rows(shape, asked)]
    if budget is not None and weights is not None:
        rows += [*_memory_rows(shape, gpus, budget, weights), *_capacity_rows(shape, gpus, budget, asked)]
    width = max(len(row.what) for row in rows if row.number is not None)
    digits = max(len(f"{row.number:,}") for row in rows if row.number is not None)
    return "\n".join(
        row.what
        if row.number is None
        else f"  {row.what:<{width}}  {row.number:>{digits},}  {row.word}".rstrip()
        for row in rows
    )


def _shape_rows(shape: KvShape, asked: _Asked) -> list[_Row]:
    rows = [_Row("\nBytes per token")]
    rows += [_size(_product(group, shape), _group_bytes(group, shape)) for group in shape.groups]
    if shape.layers_without_cache:
        rows.append(_size(f"{shape.layers_without_cache} layers that keep nothing", 0))
    if len(shape.groups) > 1:
        rows.append(_size("together", shape.token_bytes()))
    rows.append(_Row(f"\nA sequence of {asked.context:,} tokens"))
    for group in shape.groups:
        kept, each = group.kept_tokens(asked.context, 0), _group_bytes(group, shape)
        rows.append(_size(f"{kept:,} tokens x {each:,} bytes ({group.name})", kept * each))
    if len(shape.groups) != 1:
        rows.append(_size("together", shape.sequence_bytes(asked.context)))
    return rows


def _memory_rows(shape: KvShape, gpus: int, budget: KvBudget, weights: Weights) -> list[_Row]:
    usable = int(budget.gpu_memory_bytes * budget.utilization)
    rows = [_Row("\nMemory of the GPU" if gpus == 1 else "\nMemory of each GPU")]
    rows.append(_size(f"{budget.gpu_memory_bytes:,} x {budget.utilization:g}", usable))
    part = "" if gpus == 1 else f" {weights.bytes:,} / {gpus}"
    rows.append(_size(f"- weights{part} ({weights.source})", -(-weights.bytes // gpus)))
    rows.append(_size("- activations, CUDA graphs, libraries", budget.other_bytes))
    rows.append(_size("= for the KV cache", budget.for_kv_bytes))
    if gpus > 1:
        rows.append(_size(f"one of {gpus} GPUs keeps per token", shape.token_bytes(gpus)))
    return rows


def _capacity_rows(shape: KvShape, gpus: int, budget: KvBudget, asked: _Asked) -> list[_Row]:
    rows = [_Row("\nOne replica holds at once")]
    tokens, sequences = budget.tokens(asked.context), budget.sequences(asked.context)
    if tokens is None or sequences is None:
        return [*rows, _Row("  as many tokens as are wanted: no layer keeps any")]
    size = shape.sequence_bytes(asked.context, gpus)
    rows.append(
        _Row(f"{budget.for_kv_bytes:,} / {size:,}", sequences, f"sequences of {asked.context:,} tokens")
    )
    rows.append(_Row("the same in tokens", tokens, "tokens"))
    if asked.fan_out > 1:
        size = shape.shared_bytes(asked.prompt, asked.answer, asked.fan_out, gpus)
        prompts = budget.prompts(asked.prompt, asked.answer, asked.fan_out) or 0
        word = (
            f"prompts of {asked.prompt:,} tokens, kept once for {asked.fan_out} answers of {asked.answer:,}"
        )
        rows.append(_Row(f"{budget.for_kv_bytes:,} / {size:,}", prompts, word))
        rows.append(_Row("the same in answers", prompts * asked.fan_out, "answers"))
    return rows


def _product(group: LayerGroup, shape: KvShape) -> str:
    """The arithmetic of a group's bytes per token."""
    copies = "2 (K and V) x " if group.copies == 2 else ""
    kept = f", {group.window_tokens:,} tokens" if group.window_tokens is not None else ""
    number = group.fixed_bytes or KV_TYPE_BYTES[shape.kv_type]
    heads = f"{group.kv_heads} KV heads x " if group.sharded else ""
    return f"{copies}{group.layers} layers x {heads}{group.width} x {number} bytes ({group.name}{kept})"


def _group_bytes(group: LayerGroup, shape: KvShape) -> int:
    return group.token_bytes(KV_TYPE_BYTES[shape.kv_type])


def _size(what: str, size: int) -> _Row:
    return _Row(what, size, size_text(size))


def _fields(
    shape: KvShape, gpus: int, budget: KvBudget | None, weights: Weights | None, asked: _Asked
) -> dict[str, object]:
    fields: dict[str, object] = {
        "model_type": shape.model_type,
        "kv_dtype": shape.kv_type,
        "groups": [
            {
                "name": group.name,
                "layers": group.layers,
                "copies": group.copies,
                "kv_heads": group.kv_heads,
                "width": group.width,
                "window_tokens": group.window_tokens,
                "bytes_per_token": _group_bytes(group, shape),
            }
            for group in shape.groups
        ],
        "layers_without_cache": shape.layers_without_cache,
        "bytes_per_token": shape.token_bytes(),
        "context_tokens": asked.context,
        "sequence_bytes": shape.sequence_bytes(asked.context),
        "gpus": gpus,
        "bytes_per_token_per_gpu": shape.token_bytes(gpus),
        "sequence_bytes_per_gpu": shape.sequence_bytes(asked.context, gpus),
    }
    if weights is not None:
        fields["weights_bytes"], fields["weights_source"] = weights.bytes, weights.source
    if budget is not None:
        fields |= {
            "gpu_memory_bytes": budget.gpu_memory_bytes,
            "utilization": budget.utilization,
            "other_bytes_per_gpu": budget.other_bytes,
            "for_kv_bytes_per_gpu": budget.for_kv_bytes,
            "budget_tokens": budget.tokens(asked.context),
            "sequences": budget.sequences(asked.context),
            "fan_out": asked.fan_out,
            "prompt_tokens": asked.prompt,
            "prompts": budget.prompts(asked.prompt, asked.answer, asked.fan_out),
        }
    return fields
