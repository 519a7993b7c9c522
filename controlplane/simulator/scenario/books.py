"""Laws that hold in every run, whatever happens in it; a run that breaks one is worth nothing and stops.

- Nothing is lost: what was sent is finished, refused, failed, given up, or still in the system.
- Little's law, exactly: the requests in the system, summed over time, are the times that requests spent
  there, summed over requests. It ties the moments at which clients send and learn of an end to the counting
  of what is in the system in between.
- Little's law, as statistics: over a window in which little changes, the mean number in the system is the
  arrival rate times the mean stay of those that left. `little_ratio` says how nearly; where the window is
  steady (it ends as full as it began, with as long stays behind those inside) it has to be 1.
- Work conservation: an engine is busy just while it has work (`replica.py`), and nobody waits before the
  engines while a slot is free (`gateway.py`).
"""

import msgspec

_STEADY = 0.02  # of what passed through, what stood at the ends may differ by
_TOLERANCE = 0.05
_ROUNDING = 1e-6


class Books:
    """The accounts of one run, told of every arrival and end in order of time."""

    def __init__(self) -> None:
        self.offered = 0
        self.ended = 0
        self.inside = 0
        self._area = 0.0
        self._stays = 0.0
        self._at = 0.0

    def arrived(self, now: float) -> None:
        self._pass(now)
        self.inside += 1
        self.offered += 1

    def left(self, came: float, now: float) -> None:
        """A request that came at `came` is out of the system, however."""
        self._pass(now)
        self.inside -= 1
        self.ended += 1
        self._stays += now - came

    def _pass(self, now: float) -> None:
        self._area += self.inside * (now - self._at)
        self._at = now

    def mark(self, now: float, elapsed: float) -> "Mark":
        """The state at `now`, to tell of a window later; asserts Little's law. `elapsed` is how long those
        inside have been there, all together."""
        self._pass(now)
        stays = self._stays + elapsed
        assert abs(stays - self._area) <= _ROUNDING * max(1.0, self._area), (
            f"Little's law: {self._area} request seconds in the system, {stays} by the requests' own times"
        )
        return Mark(self.offered, self.ended, self.inside, self._area, self._stays, elapsed)

    def check(self, now: float, in_flight: int, queued: int, at_engines: int) -> None:
        """Assert conservation. `in_flight` is what the clients wait for, `queued` and `at_engines` where that
        should be."""
        inside = self.offered - self.ended
        assert inside == self.inside == in_flight == queued + at_engines, (
            f"at {now} s {inside} requests should be in the system: clients wait for {in_flight}, "
            f"{queued} are queued and {at_engines} at engines"
        )


class Mark(msgspec.Struct, frozen=True):
    """The books at one time. `area` and `stays` are sums until then, of requests inside over time and of the
    times of those that left."""

    offered: int
    ended: int
    inside: int
    area: float
    stays: float
    elapsed: float


def little_ratio(start: Mark, end: Mark) -> float | None:
    """Mean number in the system over arrival rate times mean stay, between two marks; None of nothing.

    AssertionError where the window is steady and the ratio is not 1.
    """
    arrivals, left = end.offered - start.offered, end.ended - start.ended
    stays, area = end.stays - start.stays, end.area - start.area
    if not arrivals or stays <= 0:
        return None
    ratio = area * left / (arrivals * stays)
    steady = (
        abs(end.inside - start.inside) <= _STEADY * arrivals
        and abs(end.elapsed - start.elapsed) <= _STEADY * stays
    )
    assert not steady or abs(ratio - 1) <= _TOLERANCE, f"Little's law is {ratio} off 1 in a steady window"
    return ratio
