"""A model folder whose tokenizer has one token per byte, so that its counts can be worked out by hand."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"]


def byte_tokenizer() -> Tokenizer:
    """BPE without a single merge; a text with special tokens begins with <s>."""
    vocabulary = {mark: i for i, mark in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def model_folder(folder: Path, template: object = TEMPLATE, **config: object) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `folder`."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    fields = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return folder
