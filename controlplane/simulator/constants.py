"""The engines that the simulator knows by name, read from constants.toml."""

from functools import cache
from importlib.resources import files
from typing import Annotated, TypeAlias

import msgspec

from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw

NotNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class EngineModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model on one set of GPUs; units as named. `sources` say where the numbers are from."""

    title: str
    host_ms: NotNegative
    weights_ms: Annotated[float, msgspec.Meta(gt=0)]  # every step takes some time
    token_us: NotNegative
    kv_token_ns: NotNegative
    pair_ns: NotNegative
    sequence_us: NotNegative
    num_gpu_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    confidence: str
    sources: tuple[str, ...]

    @property
    def law(self) -> StepLaw:
        return StepLaw(
            host=self.host_ms * 1e-3,
            weights=self.weights_ms * 1e-3,
            token=self.token_us * 1e-6,
            kv_token=self.kv_token_ns * 1e-9,
            pair=self.pair_ns * 1e-9,
            sequence=self.sequence_us * 1e-6,
        )

    @property
    def settings(self) -> EngineSettings:
        """The engine's options; change single ones with `msgspec.structs.replace`."""
        return EngineSettings(
            num_gpu_blocks=self.num_gpu_blocks,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


@cache
def engine_models() -> dict[str, EngineModel]:
    """All engines by name."""
    text = files(__package__).joinpath("constants.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, EngineModel])


def engine_model(name: str) -> EngineModel:
    """The engine called `name`; ValueError with the known names otherwise."""
    models = engine_models()
    if name not in models:
        raise ValueError(f"no engine model is called {name!r}; there are {', '.join(models)}")
    return models[name]
