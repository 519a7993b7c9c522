"""A model's Hugging Face config.json, with the many names of the same thing brought to one.

Multimodal models keep the language model in a part of its own. Files leave out what is the default of the
model's class; the defaults that sizes depend on are known here for the classes that do so in practice.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Fields: TypeAlias = Mapping[str, object]

_LARGEST_BYTES = 4 << 20
_LANGUAGE_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model")
_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head"),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
}
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
    | {"intermediate_size": 11008, "vocab_size": 32000},
    "mistral": {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
    | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4}
    | {"head_dim": 256, "hidden_size": 2304, "intermediate_size": 9216, "vocab_size": 262208}
    | {"sliding_window": 4096},
}


class ModelConfigError(ValueError):
    """A config.json that cannot be used; the text is a sentence for people."""


class ModelConfig:
    """The fields of the language model, and of the file as a whole."""

    def __init__(self, whole: Fields) -> None:
        part = whole
        for name in _LANGUAGE_PARTS:
            inner = part.get(name)
            if isinstance(inner, dict):
                part = inner
        self.whole = whole
        self.model_type = str(part.get("model_type") or whole.get("model_type") or "unknown")
        self._fields: Fields = {**_DEFAULTS.get(self.model_type, {}), **part}

    @classmethod
    def load(cls, path: Path) -> "ModelConfig":
        """The configuration in a file, or in the config.json of a folder. Raises ModelConfigError."""
        file = path / "config.json" if path.is_dir() else path
        try:
            with file.open("rb") as opened:
                raw = opened.read(_LARGEST_BYTES + 1)
        except OSError as error:
            raise ModelConfigError(f"{file} cannot be read: {error.strerror}") from None
        if len(raw) > _LARGEST_BYTES:
            raise ModelConfigError(
                f"{file} is larger than {_LARGEST_BYTES >> 20} MiB: no model configuration"
            )
        try:
            fields = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ModelConfigError(f"{file} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ModelConfigError(f"{file} is not a JSON object")
        return cls(fields)

    def get(self, name: str) -> object:
        """A field of the language model; None where it is not set."""
        return self._fields.get(name)

    def part(self, name: str) -> Fields:
        """A field that is an object; empty where it is not set."""
        value = self.get(name)
        return value if isinstance(value, dict) else {}

    def number(self, name: str) -> int | None:
        """A field, or one of the names of the same thing, as a whole number above 0; None where not set."""
        for one in _NAMES.get(name, (name,)):
            value = self.get(one)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    def required(self, name: str) -> int:
        """As `number`. Raises ModelConfigError where the file does not have it."""
        value = self.number(name)
        if value is None:
            names = " or ".join(_NAMES.get(name, (name,)))
            raise ModelConfigError(f"the configuration of this {self.model_type} model has no {names}")
        return value

    @property
    def kv_heads(self) -> int:
        """Heads that keep keys and values: all of them where no group is configured."""
        own = self.part("attn_config").get("kv_n_heads")
        if isinstance(own, int) and own > 0:
            return own
        if self.get("multi_query") is True and not self.get("new_decoder_architecture"):
            return 1
        if self.get("multi_query_attention") is True:
            return self.required("multi_query_group_num")
        return self.number("kv_heads") or self.required("heads")

    @property
    def head_dim(self) -> int:
        return self.number("head_dim") or self.required("hidden") // self.required("heads")

    @property
    def dtype(self) -> str:
        """The type that weights are stored in."""
        for fields in (self._fields, self.whole):
            value = fields.get("dtype", fields.get("torch_dtype"))
            if isinstance(value, str):
                return value.removeprefix("torch.")
        return "bfloat16"

    @property
    def quantization(self) -> Fields:
        """The quantization of the weights; empty where there is none."""
        for fields in (self.whole, self._fields):
            value = fields.get("quantization_config", fields.get("compression_config"))
            if isinstance(value, dict):
                return value
        return {}
