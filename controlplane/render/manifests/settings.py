"""What differs between installations: names, images, the model, its GPUs and its pools."""

from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from controlplane.planner.budget import OTHER_BYTES
from controlplane.planner.sizes import size_bytes
from controlplane.signals.units import Duration

_LARGEST_BYTES = 1 << 20

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
Namespace = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]

_SYSTEM = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
"""Namespaces that hold what is not ours and may need privilege."""

LLAMA_3_1_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""What the size of the example's weights and cache depends on."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Pool(_Strict):
    """Replicas for requests of up to `context` tokens, of which a usual one has `usual`."""

    context: int = Field(
        ge=256, le=10_000_000, description="tokens of the longest request, its answer included"
    )
    usual: int = Field(ge=1, description="tokens that a usual request comes to")
    replicas: int = Field(2, ge=0, le=10_000, description="to begin with; an autoscaler changes it")
    least: int = Field(1, ge=0, le=10_000)
    most: int = Field(8, ge=1, le=10_000)
    lend: int = Field(
        2, ge=0, description="replicas whose GPUs may be lent to other pools while they are idle"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.least <= self.replicas <= self.most:
            raise ValueError(
                f"replicas ({self.replicas}) are not from least ({self.least}) to most ({self.most})"
            )
        if self.usual > self.context:
            raise ValueError(f"usual ({self.usual}) is over context ({self.context})")
        if self.lend > self.most:
            raise ValueError(f"lend ({self.lend}) is over most ({self.most})")
        return self


class Model(_Strict):
    """The model: the name that clients ask for, and what its sizes follow from."""

    name: str = Field("llama-3.1-8b-instruct", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,200}$")
    folder: str = Field("llama-3.1-8b-instruct", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$")
    config: dict[str, Any] = Field(LLAMA_3_1_8B, description="its config.json")
    weights: int | None = Field(None, gt=0, description="bytes of all weights; default: counted")
    volume: Name = Field("models", description="the volume claim, yours, that holds its folder")

    @field_validator("weights", mode="before")
    @classmethod
    def _size(cls, weights: object) -> object:
        return size_bytes(weights) if isinstance(weights, str) else weights


class Gpu(_Strict):
    """The GPUs of one replica."""

    memory: int = Field(80 * 2**30, gt=0, description="of one GPU, like 80GiB")
    count: int = Field(1, ge=1, le=64, description="in tensor parallel")
    product: LabelValue = Field(
        "NVIDIA-H100-80GB-HBM3", description="label nvidia.com/gpu.product of its nodes"
    )
    other: int = Field(OTHER_BYTES, ge=0, description="what the engine takes besides weights and cache")

    @field_validator("memory", "other", mode="before")
    @classmethod
    def _size(cls, size: object) -> object:
        return size_bytes(size) if isinstance(size, str) else size


class ManifestSettings(_Strict):
    """All of it; the defaults are the example that is in deploy/kubernetes."""

    namespace: Name = Field("controlplane", description="of daemon and gateway")
    serving: Name = Field("serving", description="of the engines")
    monitoring: Namespace = Field("monitoring", description="of Prometheus")
    keda: Namespace = Field("keda", description="of KEDA")
    gpu_operator: Namespace = Field("gpu-operator", description="of dcgm-exporter")
    engine_clients: tuple[Namespace, ...] = Field(
        (), max_length=100, description="namespaces whose pods may ask the engines past the gateway"
    )
    image: str = Field(
        "registry.example/controlplane:0.1.0",
        pattern=r"^\S{1,300}$",
        description="yours, of deploy/Containerfile",
    )
    engine_image: str = Field("vllm/vllm-openai:v0.32.0", pattern=r"^\S{1,300}$")
    gateways: int = Field(2, ge=1, le=100)
    longest_generation: Duration = Field(600.0, ge=1, le=86_400, description="of the longest answer")
    settle: Duration = Field(
        15.0, ge=1, le=300, description="until everybody knows that a pod is about to go"
    )
    hpa_tolerance: bool = Field(
        False,
        description="cluster and KEDA know `tolerance` of an HPA (Kubernetes 1.35, by feature gate 1.33)",
    )
    model: Model = Model()
    gpu: Gpu = Gpu()
    pools: dict[Name, Pool] = Field(
        {"short": Pool(context=8_192, usual=1_536), "long": Pool(context=32_768, usual=12_288)},
        min_length=1,
        max_length=100,
    )
    configuration: dict[str, Any] = Field(
        {}, description="laid over the generated controlplane.yaml: mappings key by key, all else as a whole"
    )

    @model_validator(mode="after")
    def _namespaces_of_our_own(self) -> Self:
        """Both are made here, and held to run without privilege, which other people's pods may need."""
        others = {"monitoring": self.monitoring, "keda": self.keda, "gpu_operator": self.gpu_operator}
        for key, name in {"namespace": self.namespace, "serving": self.serving}.items():
            if name in _SYSTEM:
                raise ValueError(f"{key} ({name}) is the cluster's: give it one of its own")
            same = next((other for other, theirs in others.items() if theirs == name), None)
            if same is not None:
                raise ValueError(f"{key} and {same} are the same ({name}): give it one of its own")
        if self.namespace == self.serving:
            raise ValueError(f"namespace and serving are the same ({self.serving}): give each its own")
        return self


class ManifestSettingsError(ValueError):
    """Settings that cannot be used; the text is a sentence that names the file and the place."""


def load(path: Path) -> ManifestSettings:
    """Raises ManifestSettingsError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_BYTES + 1)
        if len(raw) > _LARGEST_BYTES:
            raise ManifestSettingsError(f"{path} is over {_LARGEST_BYTES} bytes")
        found = yaml.safe_load(raw)
        return ManifestSettings.model_validate({} if found is None else found)
    except OSError as error:
        raise ManifestSettingsError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestSettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['msg'].removeprefix('Value error, ')}"
            for one in error.errors()
        )
        raise ManifestSettingsError(f"{path}: {'; '.join(problems)}") from None
