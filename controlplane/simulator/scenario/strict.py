"""What all models of a scenario file have in common."""

from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from controlplane.signals.units import Duration, Share

T = TypeVar("T")

Several: TypeAlias = Annotated[tuple[T, ...], Field(strict=False)]  # YAML has lists only
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
Seconds: TypeAlias = Annotated[Duration, Field(ge=0)]
LongerThanNothing: TypeAlias = Annotated[Duration, Field(gt=0)]
SomeShare: TypeAlias = Annotated[Share, Field(gt=0)]


class Strict(BaseModel):
    """Nothing unknown, nothing converted, nothing changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
