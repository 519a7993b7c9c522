"""Make the tiny model that the `real` tests serve: a random Llama and a tokenizer of its own.

    VENV/bin/python tests/real/make_model.py [FOLDER]        default: var/model in this repository

Nothing is downloaded. The weights are random, so the answers are noise; what counts is that the engine
schedules, batches, caches and streams them as it would for a large model. The tokenizer is a byte-level BPE,
so any text can be encoded, with a chat template. Runs in the environment that install.sh makes (it uses the
`transformers` and `tokenizers` that come with vLLM). A finished folder is left as it is.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

from load import WORDS

VOCABULARY = 2048
CONTEXT = 8192
UNKNOWN, BEGIN, END, PAD = SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '</s>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def sentences(count: int = 3000) -> list[str]:
    """Text to learn merges from: the load generator's words, so that each of them becomes one token."""
    rng = random.Random(0)
    return [" " + " ".join(rng.choices(WORDS, k=12)) + f" {rng.randrange(10_000)}." for _ in range(count)]


def write_tokenizer(folder: Path) -> None:
    """Train the byte-level BPE and save it in the form the engine loads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL + ROLES,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    # The model may emit any id below VOCABULARY; each must decode to some text.
    tokenizer.add_tokens([f" x{i}" for i in range(VOCABULARY - tokenizer.get_vocab_size())])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)


def write_weights(folder: Path) -> None:
    """Save a two-layer Llama with random bfloat16 weights, about 1.6 MB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=SPECIAL.index(BEGIN),
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    """Write the folder under another name and move it into place, so that it is whole or absent."""
    default = Path(__file__).resolve().parents[2] / "var" / "model"
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else default
    if (folder / "config.json").exists():
        return
    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    write_tokenizer(draft)
    write_weights(draft)
    draft.rename(folder)
    print(f"{folder}: made")


if __name__ == "__main__":
    main()
