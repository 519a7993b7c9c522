"""Which two pools there are for one model, and the boundary that they start with."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PoolPair(BaseModel):
    """Two pools for one model: sequences of up to `boundary` tokens (prompt and answer) go to `short`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    short: str
    long: str
    boundary: int = Field(8192, ge=1, description="to begin with: the daemon moves it where it enforces")

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.short == self.long:
            raise ValueError(f"short and long must be two pools (got {self.short!r} twice)")
        return self
