"""The interface of everything that acts on the world."""

from typing import Protocol, runtime_checkable

from controlplane.signals.decision import Decision


class Actuator(Protocol):
    """Carries out the decisions whose `action` is one of `actions`.

    It is asked only where a decision may be enforced; whether it may is decided before it, in one place
    (`daemon/dispatch.py`). `apply` must be safe to repeat: after a crash the same decision may come again.
    It returns when the world has been told and raises, with a sentence, when it could not be.

    Several actuators may share an action, each for pools of its own: the first that takes a target acts on
    it.
    """

    @property
    def name(self) -> str:
        """The name by which modes are given, like "gateway"."""
        ...

    @property
    def actions(self) -> frozenset[str]:
        """The actions it carries out."""
        ...

    def takes(self, target: str, pool: str | None) -> bool:
        """Whether `target`, which is in `pool` (None: in none, or not known in which), is its business."""
        ...

    async def apply(self, decision: Decision) -> None:
        """Do it. Raises any exception whose text says what failed."""
        ...


@runtime_checkable
class Repeating(Protocol):
    """An actuator whose values others write too, or lose: a lasting decision is given to it again
    `repeat_seconds` after it was done (0: with each tick), as long as it may be carried out, none is newer
    and it `is_undone`."""

    @property
    def repeat_seconds(self) -> float: ...

    def is_undone(self, decision: Decision) -> bool:
        """Whether what was done may stand no more, as far as can be told without asking anybody."""
        ...
