"""All laws and all states, as one type each: for the configuration, the journal and whoever runs any law."""

from typing import Annotated, TypeAlias

from pydantic import Field

from controlplane.policy.limits.aimd import Aimd, AimdState
from controlplane.policy.limits.envoy_gradient import EnvoyGradient, EnvoyGradientState
from controlplane.policy.limits.fixed import Fixed, FixedState
from controlplane.policy.limits.gradient import Gradient, GradientState
from controlplane.policy.limits.gradient2 import Gradient2, Gradient2State
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
