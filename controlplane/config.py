"""The configuration: one YAML file, put together from the settings that each room owns.

All that is wrong with a file is told at once, each as one sentence with file, line and the offending
value. What stands where a secret belongs is never shown.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from controlplane.api.settings import ApiSettings
from controlplane.daemon.settings import ANY_POOL, DaemonSettings
from controlplane.gateway.settings import GatewayProcessSettings
from controlplane.policy.settings import PolicySettings, PoolPolicy, Slo
from controlplane.signals.units import duration_text
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.settings import GatewaySettings, ScrapeSettings, TargetSettings
from controlplane.sources.urls import shown
from controlplane.yaml_model import ModelReader, SettingsError, parse_mapping, read_text
from controlplane.yaml_text import Place

DEFAULT_PATH = Path("controlplane.yaml")
DEFAULT_POOL = "default"
_MAY_BE_SECRET = {
    "auth",
    "keys",
    "bearer",
    "basic",
    "password",
    "token",
    "gateways",
    "token_file",
    "token_env",
}
_MOST_INTERVALS_A_TICK = 3  # the poller keeps the pages of four
NOT_IN_POLICY = ("pools", "poll_interval")  # of PolicySettings: they come from the other sections

M = TypeVar("M", bound=BaseModel)


ConfigError = SettingsError  # what is raised for a configuration that cannot be used


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolSettings(_Strict):
    """One pool: where its replicas are, and its objective. Without `targets`, Prometheus knows them."""

    targets: TargetSettings | None = None
    slo: Slo = Slo()


PoolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]


class _File(_Strict):
    """The file as it is written, but for `policy`, which needs values of other sections."""

    pools: dict[PoolName, PoolSettings] = {}
    scrape: ScrapeSettings = ScrapeSettings()
    daemon: DaemonSettings = DaemonSettings()
    api: ApiSettings = ApiSettings()
    prometheus: PrometheusSettings | None = None
    gateways: tuple[GatewaySettings, ...] = ()
    gateway: GatewayProcessSettings = GatewayProcessSettings()
    policy: dict[str, Any] = Field(default_factory=dict)


SECTIONS: dict[str, Any] = {name: field.annotation for name, field in _File.model_fields.items()}
SECTIONS["policy"] = PolicySettings
"""The sections of the file and their types; `policy` without NOT_IN_POLICY."""


class Config(_Strict):
    """The whole configuration. `path` is its file, None where there is none."""

    path: Path | None
    pools: dict[str, PoolSettings]
    scrape: ScrapeSettings
    policy: PolicySettings
    daemon: DaemonSettings
    api: ApiSettings
    prometheus: PrometheusSettings | None
    gateways: tuple[GatewaySettings, ...]
    gateway: GatewayProcessSettings


def load(path: Path) -> Config:
    """The configuration in the file at `path`. Raises ConfigError."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> Config:
    """The configuration in `text`, as if it stood in the file at `path`. Raises ConfigError."""
    raw, lines = parse_mapping(text, str(path))
    reader = _Reader(str(path), raw, lines)
    file = reader.read(_File, raw, ())
    if file:
        reader.look_across(file)
    scrape = file.scrape if file else reader.quietly(ScrapeSettings, raw.get("scrape", {}))
    policy = reader.policy(file, scrape or ScrapeSettings())
    if reader.problems or file is None or policy is None:
        raise ConfigError(*reader.sentences())
    config: Config = _resolved(_whole(file, policy, path), path.parent)
    return config


def without_file(targets: tuple[str, ...], listen: str | None = None) -> Config:
    """The configuration of one pool with these target URLs, and defaults for all else. Raises ConfigError.

    `listen` is where the API listens, None for the default.
    """
    raw: dict[str, Any] = {"pools": {DEFAULT_POOL: {"targets": {"static": targets}}}}
    if listen is not None:
        raw["api"] = {"listen": listen}
    reader = _Reader(None, raw, {})
    file = reader.read(_File, raw, ())
    if file is None:
        raise ConfigError(*reader.sentences())
    policy = reader.policy(file, file.scrape)
    assert policy is not None
    return _whole(file, policy, None)


def _whole(file: _File, policy: PolicySettings, path: Path | None) -> Config:
    parts = {name: getattr(file, name) for name in _File.model_fields if name != "policy"}
    return Config(path=path, policy=policy, **parts)


class _Reader(ModelReader):
    """Reads the file section by section; never shows what may be a secret."""

    def quietly(self, model: type[M], value: object) -> M | None:
        """As `read`, for what has been read and complained of before."""
        try:
            return model.model_validate(value)
        except ValidationError:
            return None

    def look_across(self, file: _File) -> None:
        """Complain of what no section can see alone."""
        if not file.pools and file.prometheus is None:
            self.problem((), "there is nothing to watch: neither pools nor prometheus is given")
        for name, pool in file.pools.items():
            if pool.targets is None and file.prometheus is None:
                why = f"pool {name} has no targets, and there is no prometheus to know them"
                self.problem(("pools", name), why)
        tick, interval = file.daemon.tick, file.scrape.interval
        if tick > _MOST_INTERVALS_A_TICK * interval:
            why = f"daemon.tick ({duration_text(tick)}) is over {_MOST_INTERVALS_A_TICK} x scrape.interval "
            self.problem(("daemon", "tick"), f"{why}({duration_text(interval)}): pages would be lost")
        for actuator, modes in file.daemon.modes.items():
            for name in modes:
                if name != ANY_POOL and name not in file.pools:
                    place = ("daemon", "modes", actuator, name)
                    self.problem(place, f"daemon.modes.{actuator}: there is no pool {name!r}")

    def policy(self, file: _File | None, scrape: ScrapeSettings) -> PolicySettings | None:
        section = self.value(("policy",)) or {}
        if not isinstance(section, dict):
            return None  # told with the rest of the file
        for key in (key for key in NOT_IN_POLICY if key in section):
            self.unknown_key(PolicySettings, key, ("policy",))
        given = {key: value for key, value in section.items() if key not in NOT_IN_POLICY}
        pools = {name: PoolPolicy(slo=pool.slo) for name, pool in file.pools.items()} if file else {}
        interval = scrape.model_dump(mode="json")["interval"]
        # Where nothing is said about policy, the interval is what does not go with its defaults.
        place = ("policy",) if section else ("scrape", "interval")
        return self.read(PolicySettings, {**given, "pools": pools, "poll_interval": interval}, place)

    def got(self, place: Place) -> str:
        return "" if _MAY_BE_SECRET.intersection(map(str, place)) else super().got(place)

    def shown(self, value: object) -> str:
        if isinstance(value, str) and ("@" in value or "://" in value):
            value = shown(value)
        return super().shown(value)

    def known_keys(self, model: type[BaseModel], under: Place) -> list[str]:
        names = super().known_keys(model, under)
        return [name for name in names if under != ("policy",) or name not in NOT_IN_POLICY]

    def wrong_key(self, place: Place) -> str:
        return "a pool's name is made of letters, digits and . _ - inside"


def _resolved(value: Any, base: Path) -> Any:
    """The same settings with all relative paths taken from `base`."""
    match value:
        case Path():
            return base / value
        case TargetSettings(file_sd=patterns) if patterns is not None:
            return value.model_copy(update={"file_sd": tuple(str(base / p) for p in patterns)})
        case BaseModel():
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            changed = {name: _resolved(old, base) for name, old in fields.items() if name != "path"}
            return value.model_copy(update=changed)
        case dict():
            return {key: _resolved(item, base) for key, item in value.items()}
        case tuple():
            return tuple(_resolved(item, base) for item in value)
        case _:
            return value
