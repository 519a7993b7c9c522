"""Troubles that last: each is told once when it begins and once when it is over, and visible between."""


class Troubles:
    """The troubles that stand, by name, each as a sentence."""

    def __init__(self) -> None:
        self._standing: dict[str, str] = {}

    def begin(self, name: str, sentence: str) -> bool:
        """Trouble `name` stands, in these words. Returns whether it is new and so to be told."""
        new = name not in self._standing
        self._standing[name] = sentence
        return new

    def end(self, name: str) -> bool:
        """Trouble `name` is over. Returns whether it stood, so that its end is to be told."""
        return self._standing.pop(name, None) is not None

    def sentences(self) -> tuple[str, ...]:
        return tuple(self._standing.values())
