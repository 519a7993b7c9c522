"""The `fleet` of a scenario: which engines run where."""

from typing import Any, Self, TypeVar

import msgspec
from pydantic import Field, model_validator

from controlplane.signals.units import duration_text
from controlplane.simulator.constants import EngineModel, engine_model
from controlplane.simulator.scenario.strict import Interval, LongerThanNothing, Name, Seconds, Strict
from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw

S = TypeVar("S", bound=msgspec.Struct)

_OF_ENGINE_SETTINGS = {field.name for field in msgspec.structs.fields(EngineSettings)}


class EngineGroup(Strict):
    """Like engines: `replicas` of the engine model `engine`, called `name`-1, `name`-2, ..., of one `pool`.

    `options` are vLLM's (see `EngineSettings`), `constants` those of the step law under the names and in the
    units of constants.toml; both replace what the model has. Every `replicas_per_node` replicas share a node,
    `name`-node-1 and so on. A process that starts anew answers after a cold start: log-normal around
    `cold_start` with coefficient of variation `cold_start_cv`. At second 0 the first `started` of them are
    there (None: all); the others can be asked for.
    """

    engine: str
    replicas: int = Field(1, ge=1, le=1000)
    started: int | None = Field(None, ge=0, le=1000)
    name: Name | None = None
    pool: Name = "default"
    options: dict[str, Any] = Field(default_factory=dict)
    constants: dict[str, Any] = Field(default_factory=dict)
    replicas_per_node: int = Field(1, ge=1)
    cold_start: LongerThanNothing = 180.0
    cold_start_cv: float = Field(0.3, ge=0, le=2)

    @model_validator(mode="after")
    def _usable(self) -> Self:
        self._model  # noqa: B018 - raises ValueError for what is no engine
        self.settings  # noqa: B018
        return self

    @property
    def law(self) -> StepLaw:
        return self._model.law

    @property
    def settings(self) -> EngineSettings:
        own = {**msgspec.structs.asdict(self._model.settings), **self.options}
        return _converted(own, EngineSettings, "options")

    @property
    def replica_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name or self.engine}-{i + 1}" for i in range(self.replicas))

    @property
    def absent_names(self) -> tuple[str, ...]:
        """Replicas that are not there at second 0."""
        return () if self.started is None else self.replica_names[self.started :]

    @property
    def nodes(self) -> dict[str, tuple[str, ...]]:
        """Replicas by node."""
        names, size = self.replica_names, self.replicas_per_node
        starts = range(0, len(names), size)
        return {
            f"{self.name or self.engine}-node-{i + 1}": names[start : start + size]
            for i, start in enumerate(starts)
        }

    @property
    def _model(self) -> EngineModel:
        model = engine_model(self.engine)
        options = sorted(_OF_ENGINE_SETTINGS.intersection(self.constants))
        if options:
            raise ValueError(f"constants: {options[0]} is an option of the engine, it belongs under options")
        return _converted({**msgspec.structs.asdict(model), **self.constants}, EngineModel, "constants")


class Scrapes(Strict):
    """How the daemon polls the engines; a page that takes longer than `timeout` is lost."""

    interval: Interval = 5.0
    timeout: LongerThanNothing = 4.0
    seconds: Seconds = 0.005

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.timeout >= self.interval:
            raise ValueError(
                f"timeout ({duration_text(self.timeout)}) is not under interval "
                f"({duration_text(self.interval)}): no daemon starts so"
            )
        return self


def _converted(value: dict[str, Any], kind: type[S], name: str) -> S:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:  # which also wraps what a struct itself refuses
        raise ValueError(f"{name}: {str(error).replace('`', '')}") from None
