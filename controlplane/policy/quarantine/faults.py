"""From findings to faults: hold-down before, hysteresis after, one clock for each GPU and check.

A state that nobody can see at the moment neither grows older nor clears. An event does not un-happen: it
stays until its node has booted anew, the driver asks for nothing, or a person has spoken.
"""

from collections.abc import Callable, Iterable

import msgspec

from controlplane.policy.quarantine.words import Fault, Finding

Agreement = tuple[bool | None, str]
"""Whether something else agrees (None: cannot be told), and what."""

_QUIET_SECONDS = 60.0  # a state that is gone for less goes on, so that flapping does not set its clock back
_EVENT_SECONDS = 3600.0  # an event that takes no node is shown for so long
_OLD_XID_SECONDS = 600.0  # an XID from before we watched must find agreement within this time
_NEVER_FLAPS = {"gpu-missing"}  # a GPU that is seen again is not missing


def settle(
    faults: Iterable[Fault],
    found: dict[str, tuple[Finding, ...]],
    seen: frozenset[str],
    agree: Callable[[str, Finding], Agreement],
    now: float,
) -> tuple[Fault, ...]:
    """The faults of one node after a look: `found` by GPU, `seen` the GPUs on which states can be judged."""
    old = {(fault.uuid, fault.finding.check): fault for fault in faults}
    new: list[Fault] = []
    for uuid, findings in found.items():
        for finding in findings:
            fault = old.pop((uuid, finding.check), None)
            new.append(_agreed(_held(fault, uuid, finding, now), agree, now))
    for fault in old.values():
        if fault.finding.stays:
            event = _agreed(fault, agree, now)
            if not _is_past(event, now):
                new.append(event)
        elif fault.uuid in seen:
            since = now if fault.clear_since is None else fault.clear_since
            if now - since < _QUIET_SECONDS and fault.finding.check not in _NEVER_FLAPS:
                new.append(msgspec.structs.replace(fault, clear_since=since))
        else:
            new.append(fault)
    return tuple(sorted(new, key=lambda fault: (fault.since, fault.uuid, fault.finding.check)))


def _held(fault: Fault | None, uuid: str, finding: Finding, now: float) -> Fault:
    told_at = now if finding.at is None else finding.at
    if fault is None:
        return Fault(finding, uuid, told_at, now if finding.stays else told_at)
    if finding.stays:  # once more: the clock of the first stays, but for what was settled meanwhile
        stronger = finding if finding.proves else fault.finding
        return msgspec.structs.replace(fault, finding=stronger, seen=now, excused="", clear_since=None)
    return msgspec.structs.replace(fault, finding=finding, seen=max(fault.seen, told_at), clear_since=None)


def _agreed(fault: Fault, agree: Callable[[str, Finding], Agreement], now: float) -> Fault:
    holds, what = agree(fault.uuid, fault.finding)
    if holds is None or holds == (fault.agreed_since is not None):
        return fault
    since = now if holds else None
    return msgspec.structs.replace(fault, agreed_since=since, agrees=what if holds else "")


def _is_past(fault: Fault, now: float) -> bool:
    """Whether an event need not be remembered any more."""
    if fault.clear_since is not None:
        return now - fault.clear_since >= _QUIET_SECONDS
    if not fault.finding.proves and fault.agreed_since is None:
        return now - fault.since >= _OLD_XID_SECONDS
    return not fault.finding.remedy.takes_node and now - fault.since >= _EVENT_SECONDS
