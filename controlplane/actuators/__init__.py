"""What carries decisions out: each actuator a file, all with the same small interface."""

from controlplane.actuators.actuator import Actuator

__all__ = ["NAMES", "Actuator"]

NAMES: tuple[str, ...] = (
    "autoscaler",
    "envoy",
    "eviction",
    "gateway",
    "node",
    "objects",
    "pod",
    "scale",
    "webhook",
)
"""The actuators that this version has; a mode may be given to these only."""
