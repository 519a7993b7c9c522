"""The configuration: one YAML file, put together from the settings that each room owns.

All that is wrong with a file is told at once, each as one sentence with file, line and the offending
value. What stands where a secret belongs is never shown.
"""

import difflib
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from controlplane.api.settings import ApiSettings
from controlplane.daemon.settings import ANY_POOL, DaemonSettings
from controlplane.policy.settings import PolicySettings, PoolPolicy, Slo
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.settings import GatewaySettings, ScrapeSettings, TargetSettings
from controlplane.sources.urls import shown
from controlplane.yaml_text import Place, YamlError, read_yaml

DEFAULT_PATH = Path("controlplane.yaml")
DEFAULT_POOL = "default"
_LARGEST_BYTES = 1 << 20
_SHOWN_CHARS = 80
_MAY_BE_SECRET = {"auth", "bearer", "basic", "password", "token", "gateways", "token_file", "token_env"}
_PLAIN_WORDS = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "path_type": "a path",
}
_NOT_IN_POLICY = ("pools", "poll_interval")  # of PolicySettings: they come from the other sections

M = TypeVar("M", bound=BaseModel)


class ConfigError(Exception):
    """The configuration cannot be used; `sentences` say why, each on its own."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


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
    policy: dict[str, Any] = Field(default_factory=dict)


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


def load(path: Path) -> Config:
    """The configuration in the file at `path`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_BYTES:
        raise ConfigError(f"{path}: larger than {_LARGEST_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: byte {error.start}") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Config:
    """The configuration in `text`, as if it stood in the file at `path`. Raises ConfigError."""
    try:
        raw, lines = read_yaml(text)
    except YamlError as error:
        raise ConfigError(*(_sentence(path, line, problem) for line, problem in error.problems)) from None
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError(_sentence(path, 1, "a mapping of sections is needed at the top"))
    # A section whose keys are all commented out is as good as none.
    raw = {key: value for key, value in raw.items() if value is not None}
    reader = _Reader(path, raw, lines)
    file = reader.read(_File, raw, ())
    if file:
        reader.look_across(file)
    scrape = file.scrape if file else reader.quietly(ScrapeSettings, raw.get("scrape", {}))
    policy = reader.policy(file, scrape or ScrapeSettings())
    if reader.problems or file is None or policy is None:
        raise ConfigError(*dict.fromkeys(reader.sentences()))
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


class _Reader:
    """Validates sections and collects what is wrong with them, with the lines."""

    def __init__(self, path: Path | None, raw: dict[str, Any], lines: dict[Place, int]) -> None:
        self.problems: list[tuple[int | None, str]] = []
        self._path, self._raw, self._lines = path, raw, lines

    def sentences(self) -> Iterator[str]:
        for line, problem in sorted(self.problems, key=lambda p: p[0] or 0):
            yield _sentence(self._path, line, problem)

    def read(self, model: type[M], value: object, place: Place) -> M | None:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                self._refuse(model, details, place)
            return None

    def quietly(self, model: type[M], value: object) -> M | None:
        """As `read`, for what has been read and complained of before."""
        try:
            return model.model_validate(value)
        except ValidationError:
            return None

    def look_across(self, file: _File) -> None:
        """Complain of what no section can see alone."""
        if not file.pools and file.prometheus is None:
            self._problem((), "there is nothing to watch: neither pools nor prometheus is given")
        for name, pool in file.pools.items():
            if pool.targets is None and file.prometheus is None:
                why = f"pool {name} has no targets, and there is no prometheus to know them"
                self._problem(("pools", name), why)
        for actuator, modes in file.daemon.modes.items():
            for name in modes:
                if name != ANY_POOL and name not in file.pools:
                    place = ("daemon", "modes", actuator, name)
                    self._problem(place, f"daemon.modes.{actuator}: there is no pool {name!r}")

    def policy(self, file: _File | None, scrape: ScrapeSettings) -> PolicySettings | None:
        section = self._raw.get("policy", {})
        if not isinstance(section, dict):
            return None  # told with the rest of the file
        for key in (key for key in _NOT_IN_POLICY if key in section):
            self._unknown_key(PolicySettings, key, ("policy",))
        given = {key: value for key, value in section.items() if key not in _NOT_IN_POLICY}
        pools = {name: PoolPolicy(slo=pool.slo) for name, pool in file.pools.items()} if file else {}
        interval = scrape.model_dump(mode="json")["interval"]
        # Where nothing is said about policy, the interval is what does not go with its defaults.
        place = ("policy",) if section else ("scrape", "interval")
        return self.read(PolicySettings, {**given, "pools": pools, "poll_interval": interval}, place)

    def _refuse(self, model: type[BaseModel], details: ErrorDetails, place: Place) -> None:
        loc = details["loc"]
        where = (*place, *(part for part in loc if part != "[key]"))
        if details["type"] == "extra_forbidden":
            self._unknown_key(_model_at(model, loc[:-1]), str(where[-1]), where[:-1])
            return
        name = ".".join(map(str, where))
        match details["type"]:
            case "missing":
                self._problem(where[:-1], f"{name} is missing")
            case "value_error":
                message = details["msg"].removeprefix("Value error, ")
                self._problem(self._blamed(where, message), f"{name}: {message}" if name else message)
            case kind:
                message = details["msg"].removeprefix("Input ")
                if "[key]" in loc:
                    message = "a pool's name is made of letters, digits and . _ - inside"
                elif kind in _PLAIN_WORDS:
                    message = f"should be {_PLAIN_WORDS[kind]}"
                self._problem(where, f"{name}: {message}{self._got(where)}")

    def _blamed(self, place: Place, message: str) -> Place:
        """The first key under `place` that the message names, else `place` itself."""
        section = self._value(place)
        keys = section if isinstance(section, dict) else ()
        named = next((key for key in keys if re.search(rf"\b{re.escape(key)}\b", message)), None)
        return place if named is None else (*place, named)

    def _unknown_key(self, model: type[BaseModel] | None, key: str, under: Place) -> None:
        known = (
            [name for name in model.model_fields if under != ("policy",) or name not in _NOT_IN_POLICY]
            if model
            else []
        )
        close = difflib.get_close_matches(key, known, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})" if known else ""
        where = f" under {'.'.join(map(str, under))}" if under else ""
        self._problem((*under, key), f"unknown key {key!r}{where}{hint}")

    def _problem(self, place: Place, sentence: str) -> None:
        nearest = (place[:n] for n in range(len(place), 0, -1) if place[:n] in self._lines)
        line = next((self._lines[known] for known in nearest), None)
        self.problems.append((line, sentence))

    def _got(self, place: Place) -> str:
        value = self._value(place)
        if _MAY_BE_SECRET.intersection(map(str, place)) or isinstance(value, dict | list | tuple | None):
            return ""
        text = shown(value) if isinstance(value, str) and ("@" in value or "://" in value) else value
        return f" (got {text!r})"[:_SHOWN_CHARS]

    def _value(self, place: Place) -> Any:
        """What was written at `place`; None where nothing was."""
        value: Any = self._raw
        for part in place:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def _sentence(path: Path | None, line: int | None, problem: str) -> str:
    before = (f"{path}: " if path else "") + (f"line {line}: " if line and path else "")
    return before + problem


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The settings model that stands at `loc` inside `model`."""
    found: Any = model
    for part in loc:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(str(part))
            found = field.annotation if field else None
        elif get_args(found):
            found = get_args(found)[-1 if get_origin(found) is dict else 0]
        found = _bare(found)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _bare(annotation: Any) -> Any:
    """An annotation without `| None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(arg for arg in get_args(annotation) if arg is not types.NoneType)
    return annotation


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
