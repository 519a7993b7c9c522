"""The `policy` of a scenario: which law sets the limits, and the short names of laws."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from controlplane.policy.boundary.law import Boundary
from controlplane.policy.limits.aimd import Aimd
from controlplane.policy.limits.envoy_gradient import EnvoyGradient
from controlplane.policy.limits.fixed import Fixed
from controlplane.policy.limits.gradient import Gradient
from controlplane.policy.limits.gradient2 import Gradient2
from controlplane.policy.limits.laws import AnyLaw
from controlplane.policy.limits.none import NoLimit
from controlplane.policy.limits.slo_gradient import SloGradient
from controlplane.policy.limits.thresholds import Thresholds
from controlplane.policy.limits.vegas import Vegas
from controlplane.policy.limits.windowed import Windowed
from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.policy.settings import Slo
from controlplane.simulator.scenario.strict import Interval, Strict

_BY_NAME: dict[str, Callable[[], AnyLaw]] = {
    "none": NoLimit,
    "gradient": Gradient,
    "gradient2": Gradient2,
    "gradient2-windowed": lambda: Windowed(inner=Gradient2()),
    "vegas": Vegas,
    "aimd": Aimd,
    "envoy": EnvoyGradient,
    "thresholds": Thresholds,
    "slo": SloGradient,
}
POLICY_NAMES = (*_BY_NAME, "fixed:N")


def law_named(name: str) -> AnyLaw:
    """The law called `name` with its defaults; ValueError with the known names otherwise."""
    if name.startswith("fixed:"):
        number = name.removeprefix("fixed:")
        if number.isdecimal() and int(number) >= 1:
            return Fixed(limit=int(number))
        raise ValueError(f"a fixed limit is a whole number from 1 on (got {name!r})")
    if name not in _BY_NAME:
        raise ValueError(f"no policy is called {name!r}; there are {', '.join(POLICY_NAMES)}")
    return _BY_NAME[name]()


def _read_law(value: Any) -> Any:
    return law_named(value) if isinstance(value, str) else value


class Policy(Strict):
    """A short name of a law or its parameters; `interval` is how long its windows are.

    `gauges` says how the law sees KV usage and the engine's queue: by the daemon's scrapes, or by a look of
    its own at the engine at the end of every window. `round_trip` is what laws of the round trip are told: a
    request until its end, or until its first token. Where it `sees` scrapes only, the daemon is told nothing
    by the gateway, as if it were none of ours. `max_num_seqs` is what users tell the daemon of the engines;
    most tell nothing. With `kv_budget` the gateway also reserves KV memory, of which there is `overcommit`
    times as much as the engine says. Without `enforce` it only observes. With the law "none" it passes
    everything on and reserves nothing, like any load balancer. `boundary` is the law of the boundary, where
    the scenario's gateway has two pools. With `scale` the daemon asks for replicas in each pool, and gets
    them.
    """

    law: Annotated[AnyLaw, BeforeValidator(_read_law)] = SloGradient()
    interval: Interval = 1.0
    gauges: Literal["scrapes", "looks"] = "scrapes"
    round_trip: Literal["end", "first-token"] = "end"
    sees: Literal["gateway", "scrapes"] = "gateway"
    max_num_seqs: int | None = Field(None, ge=1)
    kv_budget: bool = True
    overcommit: float = Field(1.0, gt=0)
    enforce: bool = True
    boundary: Boundary = Boundary()
    scale: ScaleSettings | None = None

    @property
    def controls(self) -> bool:
        """Whether anything is controlled at all."""
        return not isinstance(self.law, NoLimit)

    def for_slo(self, slo: Slo) -> AnyLaw:
        """The law, with the objectives of the scenario where it has none of its own."""
        law = self.law
        if not isinstance(law, SloGradient):
            return law
        own = {"ttft": slo.ttft, "tpot": slo.tpot}
        given = {name: getattr(law, name) for name in law.model_fields_set}
        return SloGradient.model_construct(**{**law.model_dump(), **own, **given})


def policy_named(name: str) -> Policy:
    """The law called `name`, run as its makers run it; ValueError with the known names otherwise."""
    law = law_named(name)
    if isinstance(law, EnvoyGradient):
        return Policy.model_validate({"law": law, "interval": "100ms"})
    if isinstance(law, Thresholds):  # llm-d reads the gauges every 50 ms and trusts them for 200
        return Policy.model_validate({"law": law, "interval": "100ms", "gauges": "looks"})
    return Policy(law=law)


def _read_policy(value: Any) -> Any:
    return policy_named(value) if isinstance(value, str) else value


NamedPolicy: TypeAlias = Annotated[Policy, BeforeValidator(_read_policy)]
