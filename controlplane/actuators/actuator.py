"""The interface of everything that acts on the world."""

from typing import Protocol

from controlplane.signals.decision import Decision


class Actuator(Protocol):
    """Carries out the decisions whose `action` is one of `actions`.

    It is asked only where a decision may be enforced; whether it may is decided before it, in one place
    (`daemon/dispatch.py`). `apply` must be safe to repeat: after a crash the same decision may come again.
    It returns when the world has been told and raises, with a sentence, when it could not be.
    """

    @property
    def name(self) -> str:
        """The name by which modes are given, like "gateway"."""
        ...

    @property
    def actions(self) -> frozenset[str]:
        """The actions it carries out; no two actuators share one."""
        ...

    async def apply(self, decision: Decision) -> None:
        """Do it. Raises any exception whose text says what failed."""
        ...
