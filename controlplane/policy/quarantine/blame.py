"""XIDs that programs cause: is it the program, or the GPU under it?

One alone says nothing. The same workload that fails on several nodes carries the cause with it. Several pods
that fail on one GPU, and hardly anywhere else, have that GPU in common.
"""

import re
from collections.abc import Iterable

import msgspec

from controlplane.policy.quarantine.memory import ProgramXid
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.quarantine.words import FaultClass, Finding, Remedy

KEPT_SECONDS = 86_400.0
MOST_KEPT = 2_000

_CERTAIN_PODS = 5  # so many pods within KEPT_SECONDS on one GPU, and hardly anywhere else, are proof
_HARDLY = 2  # times as many pods there as on all other GPUs together
_HASH = r"(?:(?=[a-z]*\d)[a-z0-9]{4,10}|[bcdfghjklmnpqrstvwxz2456789]{6,10})"
_GENERATED = re.compile(rf"^(.+?)-{_HASH}-[a-z0-9]{{5}}$")  # of a Deployment's pod
_NUMBERED = re.compile(r"^(.+)-\d+$")  # of a StatefulSet's pod
_SUFFIXED = re.compile(r"^(.+)-[bcdfghjklmnpqrstvwxz2456789]{5}$")  # of a DaemonSet's or a Job's pod


class Blame(msgspec.Struct, frozen=True):
    """Workloads that fail wherever they run (their nodes by owner), and findings on GPUs by UUID."""

    owners: dict[str, tuple[str, ...]]
    gpus: dict[str, Finding]


def owner_of(pod: str) -> str:
    """What made a pod ("namespace/name"), by the form of its name; else the pod itself."""
    namespace, _, name = pod.rpartition("/")
    for form in (_GENERATED, _NUMBERED, _SUFFIXED):
        match = form.match(name)
        if match is not None:
            return f"{namespace}/{match[1]}"
    return pod


def judge(xids: Iterable[ProgramXid], settings: QuarantineSettings, now: float) -> Blame:
    """Who is to blame for the XIDs of programs of the last day."""
    known = [xid for xid in xids if xid.pod]
    recent = [xid for xid in known if now - xid.at <= settings.blame_window]
    gpus: dict[str, Finding] = {}
    excused: set[str] = set()
    for uuid in dict.fromkeys(xid.uuid for xid in known if xid.uuid):
        pods = _pods_that_point_to(uuid, recent)
        certain = _pods_that_point_to(uuid, known)
        proven = len(certain) >= max(_CERTAIN_PODS, settings.blame_pods)
        if len(pods) < settings.blame_pods and not proven:
            continue
        told = certain if proven else pods
        excused |= {xid.owner for xid in known if xid.uuid == uuid}
        codes = ", ".join(map(str, sorted({xid.code for xid in known if xid.uuid == uuid})))
        gpus[uuid] = Finding(
            "xid-repeats",
            FaultClass.HARDWARE_DEGRADED,
            Remedy.DRAIN_AND_RESET,
            f"{len(told)} pods raised XID {codes} on it and hardly elsewhere: the GPU is suspect",
            settings.hold_down,
            proves=proven,
        )
    nodes: dict[str, dict[str, None]] = {}
    for xid in recent:
        if xid.owner not in excused:
            nodes.setdefault(xid.owner, {})[xid.node] = None
    owners = {owner: tuple(found) for owner, found in nodes.items() if len(found) >= settings.blame_nodes}
    return Blame(owners, gpus)


def kept(xids: Iterable[ProgramXid], now: float) -> tuple[ProgramXid, ...]:
    """Those that still count, the newest of them."""
    return tuple(xid for xid in xids if now - xid.at <= KEPT_SECONDS)[-MOST_KEPT:]


def _pods_that_point_to(uuid: str, xids: Iterable[ProgramXid]) -> set[str]:
    """The pods that failed on this GPU, where their workloads failed hardly anywhere else; else none."""
    xids = list(xids)
    here = {xid.pod for xid in xids if xid.uuid == uuid}
    owners = {xid.owner for xid in xids if xid.uuid == uuid}
    elsewhere = {xid.pod for xid in xids if xid.uuid != uuid and xid.owner in owners}
    return here if len(here) >= _HARDLY * len(elsewhere) else set()
