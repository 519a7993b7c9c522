"""What all models of a scenario file have in common."""

from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from controlplane.signals.units import Duration, Share

T = TypeVar("T")

_LONGEST_SECONDS = 31 * 86400.0


def _not_empty(value: tuple[T, ...]) -> tuple[T, ...]:
    if not value:
        raise ValueError("at least one is needed")
    return value


Several: TypeAlias = Annotated[tuple[T, ...], Field(strict=False)]  # YAML has lists only
AtLeastOne: TypeAlias = Annotated[Several[T], AfterValidator(_not_empty)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
Seconds: TypeAlias = Annotated[Duration, Field(ge=0, le=_LONGEST_SECONDS)]
LongerThanNothing: TypeAlias = Annotated[Duration, Field(gt=0, le=_LONGEST_SECONDS)]
Interval: TypeAlias = Annotated[Duration, Field(ge=0.01, le=_LONGEST_SECONDS)]
SomeShare: TypeAlias = Annotated[Share, Field(gt=0)]


class Strict(BaseModel):
    """Nothing unknown, nothing converted, nothing changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
