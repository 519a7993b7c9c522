"""What the daemon can be told: where its state lives, how long it is kept, and what may be acted on."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from controlplane import actuators
from controlplane.signals.decision import Mode
from controlplane.signals.units import Duration, duration_text

ANY_POOL = "*"


class DaemonSettings(BaseModel):
    """Settings of the daemon. Relative paths are relative to the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    journal: Path = Field(Path("var/journal.db"), description="the SQLite file of samples and decisions")
    hold_file: Path | None = Field(
        None, description="while this file exists nothing is acted on; default: `hold` next to the journal"
    )
    tick: Duration = Field(1.0, ge=0.1, le=60.0, description="time from one tick to the next")
    keep_samples: Duration = Field(6 * 3600.0, description="samples older than this are dropped")
    keep_decisions: Duration = Field(30 * 86400.0, description="decisions and events older than this go")
    journal_limit: ByteSize = Field(
        ByteSize(1 << 30),
        description="samples beyond this size of the journal are dropped, and of decisions and events what "
        "is beyond a quarter of it each",
    )
    modes: dict[str, dict[str, Mode]] = Field(
        {}, description="`observe` or `enforce` by actuator and pool; `*` is every other pool"
    )

    @field_validator("journal_limit")
    @classmethod
    def _room_for_something(cls, limit: ByteSize) -> ByteSize:
        if limit < 1 << 20:
            raise ValueError(f"the journal needs at least 1MiB (got {int(limit)} bytes)")
        return limit

    @field_validator("modes")
    @classmethod
    def _known_actuators(cls, modes: dict[str, dict[str, Mode]]) -> dict[str, dict[str, Mode]]:
        for name in modes:
            if name not in actuators.NAMES:
                there = f"it has {', '.join(actuators.NAMES)}" if actuators.NAMES else "it only observes"
                raise ValueError(f"this version has no actuator {name!r}: {there}")
        return modes

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        shortest = 120.0
        if self.keep_samples < shortest:
            raise ValueError(
                f"keep_samples ({duration_text(self.keep_samples)}) is under {duration_text(shortest)}: "
                "the journal could not be replayed from one checkpoint to the next"
            )
        return self

    def mode(self, actuator: str, pool: str | None) -> Mode:
        """Whether `actuator` may act on `pool` (None: on something that belongs to no pool)."""
        by_pool = self.modes.get(actuator, {})
        default = by_pool.get(ANY_POOL, Mode.OBSERVE)
        return default if pool is None else by_pool.get(pool, default)

    @property
    def hold_path(self) -> Path:
        return self.hold_file or self.journal.with_name("hold")

    @property
    def overrides_path(self) -> Path:
        return self.journal.with_name("overrides.json")
