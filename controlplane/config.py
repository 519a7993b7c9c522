"""The configuration: one YAML file, put together from the settings that each room owns.

All that is wrong with a file is told at once, each as one sentence with file, line and the offending
value. What stands where a secret belongs is never shown.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from controlplane.actuators.settings import ObjectsSettings, ScaleSection
from controlplane.api.settings import ApiSettings
from controlplane.daemon.settings import ANY_POOL, DaemonSettings
from controlplane.gateway.settings import GatewayProcessSettings
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.sections import EnvoySection, WebhookSection
from controlplane.signals.units import duration_text
from controlplane.sources.gpu_settings import GpuSettings, NodeAgentSettings
from controlplane.sources.kubernetes_settings import KubernetesSettings
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
    "autoscaling_token_file",
    "secret",
}
_MOST_INTERVALS_A_TICK = 3  # the poller keeps the pages of four
NOT_IN_POLICY = ("pools", "pair", "poll_interval")  # of PolicySettings: they come from the other sections

M = TypeVar("M", bound=BaseModel)


ConfigError = SettingsError  # what is raised for a configuration that cannot be used


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolSettings(PoolPolicy):
    """One pool: where its replicas are, its objective, and the law that limits each of its replicas.

    Without `targets`, Prometheus knows them. Of the laws, `slo-gradient` finds the limit that the objective
    allows, `fixed` keeps one number, and `none` sets no limit.
    """

    targets: TargetSettings | None = None

    @property
    def policy(self) -> PoolPolicy:
        """What policy is told of it."""
        return PoolPolicy(**{name: getattr(self, name) for name in PoolPolicy.model_fields})


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
    envoy: EnvoySection | None = None
    webhook: WebhookSection | None = None
    scale: ScaleSection | None = None
    objects: ObjectsSettings | None = None
    gpus: GpuSettings = GpuSettings()
    node_agent: NodeAgentSettings = NodeAgentSettings()
    kubernetes: KubernetesSettings | None = None
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
    envoy: EnvoySection | None
    webhook: WebhookSection | None
    scale: ScaleSection | None
    objects: ObjectsSettings | None
    gpus: GpuSettings
    node_agent: NodeAgentSettings
    kubernetes: KubernetesSettings | None


def load(path: Path) -> Config:
    """The configuration in the file at `path`. Raises ConfigError."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> Config:
    """The configuration in `text`, as if it stood in the file at `path`. Raises ConfigError."""
    raw, lines = parse_mapping(text, str(path))
    file, policy = _read(_Reader(str(path), raw, lines), raw)
    config: Config = _resolved(_whole(file, policy, path), path.parent)
    return config


def check_mapping(given: dict[str, Any], name: str) -> None:
    """See that `given`, which stands in no file of its own, is a configuration. Raises ConfigError.

    `name` is what messages call it.
    """
    raw = {key: value for key, value in given.items() if value is not None}
    _read(_Reader(name, raw, {}), raw)


def node_agent_settings(path: Path | None) -> NodeAgentSettings:
    """The section `node_agent` of the file at `path`; the rest of it may be anything. Raises ConfigError."""
    if path is None:
        return NodeAgentSettings()
    raw, lines = parse_mapping(read_text(path), str(path))
    reader = _Reader(str(path), raw, lines)
    settings = reader.read(NodeAgentSettings, raw.get("node_agent", {}), ("node_agent",))
    if settings is None or reader.problems:
        raise ConfigError(*reader.sentences())
    resolved: NodeAgentSettings = _resolved(settings, path.parent)
    return resolved


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


def _read(reader: "_Reader", raw: dict[str, Any]) -> tuple[_File, PolicySettings]:
    """The sections and the policy that follows from them. Raises ConfigError."""
    file = reader.read(_File, raw, ())
    if file:
        reader.look_across(file)
    scrape = file.scrape if file else reader.quietly(ScrapeSettings, raw.get("scrape", {}))
    policy = reader.policy(file, scrape or ScrapeSettings())
    if reader.problems or file is None or policy is None:
        raise ConfigError(*reader.sentences())
    return file, policy


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
        if file.kubernetes is None:
            self._look_at_cluster(file)
        tick, interval = file.daemon.tick, file.scrape.interval
        if tick > _MOST_INTERVALS_A_TICK * interval:
            why = f"daemon.tick ({duration_text(tick)}) is over {_MOST_INTERVALS_A_TICK} x scrape.interval "
            self.problem(("daemon", "tick"), f"{why}({duration_text(interval)}): pages would be lost")
        self._look_at_actuators(file)
        for name in file.gateway.admission.objectives:
            if name not in file.pools:
                place = ("gateway", "admission", "objectives", name)
                self.problem(place, f"gateway.admission.objectives: there is no pool {name!r}")
        pair = file.gateway.admission.pools
        for key in ("short", "long") if pair is not None and file.prometheus is None else ():
            if getattr(pair, key) not in file.pools:
                place = ("gateway", "admission", "pools", key)
                self.problem(place, f"gateway.admission.pools: there is no pool {getattr(pair, key)!r}")
        for actuator, modes in file.daemon.modes.items():
            for name in modes:
                if name != ANY_POOL and name not in file.pools:
                    place = ("daemon", "modes", actuator, name)
                    self.problem(place, f"daemon.modes.{actuator}: there is no pool {name!r}")

    def _look_at_cluster(self, file: _File) -> None:
        """Complain of what needs the cluster that the file says nothing of."""
        for name, pool in file.pools.items():
            if pool.targets is not None and pool.targets.kubernetes is not None:
                why = "there is no section kubernetes; an empty one ({}) is the pod's own service account"
                self.problem(("pools", name, "targets", "kubernetes"), f"pool {name} has pods, but {why}")
        if file.gpus.in_cluster:
            self.problem(("gpus",), "gpus: pods tell of the GPUs, but there is no section kubernetes")

    def _look_at_actuators(self, file: _File) -> None:
        """Complain of actuators that cannot act, or would act on the same pool."""
        given = {name: getattr(file, name) for name in ("envoy", "webhook", "scale", "objects")}
        for name, section in given.items():
            if section is None and name in file.daemon.modes:
                self.problem(("daemon", "modes", name), f"daemon.modes.{name}: there is no section {name}")
        hooked = () if file.webhook is None else file.webhook.pools
        if hooked is None and file.gateways:
            why = "webhook.pools: say which pools are its business; the gateways limit all others"
            self.problem(("webhook",), why)
        for pool in hooked or ():
            if pool not in file.pools and file.prometheus is None:
                self.problem(("webhook", "pools"), f"webhook.pools: there is no pool {pool!r}")
        for i, cluster in enumerate(file.envoy.clusters if file.envoy is not None else ()):
            place = ("envoy", "clusters", i)
            if cluster.pool is not None and cluster.pool not in file.pools and file.prometheus is None:
                self.problem(place, f"cluster {cluster.name}: there is no pool {cluster.pool!r}")
            if file.webhook is not None and (hooked is None or cluster.pool in hooked):
                whose = cluster.pool or cluster.replica
                self.problem(place, f"cluster {cluster.name}: webhook sets the limits of {whose} already")
        self._look_at_objects(file)

    def _look_at_objects(self, file: _File) -> None:
        """Complain of objects of pools that there are not, or whose limits are set elsewhere already."""
        if file.kubernetes is None:
            for name in ("scale", "objects"):
                if getattr(file, name) is not None:
                    why = "there is no section kubernetes; an empty one ({}) is the pod's own service account"
                    self.problem((name,), f"{name} writes objects of a cluster, but {why}")
        for i, one in enumerate(() if file.scale is None else file.scale.workloads):
            if one.pool not in file.pools and file.prometheus is None:
                where = ("scale", "workloads", i, "pool")
                self.problem(where, f"{one.named}: there is no pool {one.pool!r}")
        enveloped = () if file.envoy is None else file.envoy.clusters
        elsewhere = {cluster.pool or cluster.replica: "envoy" for cluster in enveloped}
        hooked = () if file.webhook is None else file.webhook.pools
        elsewhere |= dict.fromkeys(hooked or (), "webhook")
        for i, field in enumerate(() if file.objects is None else file.objects.fields):
            place = ("objects", "fields", i)
            whose = field.pool or field.replica
            if field.pool is not None and field.pool not in file.pools and file.prometheus is None:
                self.problem(place, f"{field.named}: there is no pool {field.pool!r}")
            if hooked is None or whose in elsewhere:
                who = elsewhere.get(whose, "webhook")
                self.problem(place, f"{field.named}: {who} sets the limits of {whose} already")

    def policy(self, file: _File | None, scrape: ScrapeSettings) -> PolicySettings | None:
        section = self.value(("policy",)) or {}
        if not isinstance(section, dict):
            return None  # told with the rest of the file
        for key in (key for key in NOT_IN_POLICY if key in section):
            self.unknown_key(PolicySettings, key, ("policy",))
        given = {key: value for key, value in section.items() if key not in NOT_IN_POLICY}
        pools = {name: pool.policy for name, pool in file.pools.items()} if file else {}
        pair = file.gateway.admission.pools if file else None
        interval = scrape.model_dump(mode="json")["interval"]
        # Where nothing is said about policy, the interval is what does not go with its defaults.
        place = ("policy",) if section else ("scrape", "interval")
        others = {"pools": pools, "pair": pair, "poll_interval": interval}
        return self.read(PolicySettings, {**given, **others}, place)

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
