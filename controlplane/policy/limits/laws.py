"""All laws and all states, as one type each: for the configuration, the journal and whoever runs any law.

Three of them are for use: their windows can be made from what production has (`windows.py`). The others are
what they are measured against.
"""

from typing import Annotated, TypeAlias

from msgspec.structs import replace
from pydantic import Field

from controlplane.policy.limits.aimd import Aimd, AimdState
from controlplane.policy.limits.envoy_gradient import EnvoyGradient, EnvoyGradientState
from controlplane.policy.limits.fixed import Fixed, FixedState
from controlplane.policy.limits.gradient import Gradient, GradientState
from controlplane.policy.limits.gradient2 import Gradient2, Gradient2State
from controlplane.policy.limits.law import LimitReason, Window
from controlplane.policy.limits.none import NoLimit, NoneState
from controlplane.policy.limits.slo_gradient import SloGradient, SloGradientState
from controlplane.policy.limits.thresholds import Thresholds, ThresholdsState
from controlplane.policy.limits.vegas import Vegas, VegasState
from controlplane.policy.limits.windowed import Windowed, WindowedState

AnyLaw: TypeAlias = Annotated[
    NoLimit
    | Fixed
    | Aimd
    | Vegas
    | Gradient
    | Gradient2
    | Windowed
    | EnvoyGradient
    | Thresholds
    | SloGradient,
    Field(discriminator="law"),
]

AnyState: TypeAlias = (
    NoneState
    | FixedState
    | AimdState
    | VegasState
    | GradientState
    | Gradient2State
    | WindowedState
    | EnvoyGradientState
    | ThresholdsState
    | SloGradientState
)

KEPT = (SloGradient, Fixed, NoLimit)
KeptLaw: TypeAlias = Annotated[SloGradient | Fixed | NoLimit, Field(discriminator="law")]
KeptState: TypeAlias = SloGradientState | FixedState | NoneState


def resumed(law: KeptLaw, limit: float) -> KeptState:
    """The state of a law that goes on from a limit which was in force before it looked."""
    if not isinstance(law, SloGradient):
        return law.start()
    limit = min(limit, law.max_limit or limit)
    detail = f"goes on from {limit:.0f}, which was in force"
    state = replace(law.start(), limit=limit, reason=LimitReason.RESUMED, detail=detail)
    return replace(state, starting=False)


def ordered(law: KeptLaw, slots: int, detail: str) -> KeptState:
    """The state of a law whose limit people have set, whatever its own bounds are."""
    return replace(resumed(law, float(slots)), limit=float(slots), reason=LimitReason.ORDERED, detail=detail)


def fits(law: KeptLaw, state: KeptState) -> bool:
    """Whether the state is one of this law."""
    return type(state) is type(law.start())


def observe(law: KeptLaw, state: KeptState, window: Window) -> KeptState:
    """The state after one more window; `state` must fit the law."""
    match law, state:
        case SloGradient(), SloGradientState():
            return law.observe(state, window)
        case Fixed(), FixedState():
            return law.observe(state, window)
        case NoLimit(), NoneState():
            return law.observe(state, window)
    raise TypeError(f"a state of {type(state).__name__} does not go with {type(law).__name__}")
