"""Taking in what came: nodes, facts, reports, and the XIDs that are news."""

import msgspec

from controlplane.policy.quarantine import blame, sight
from controlplane.policy.quarantine.bench import Bench, where
from controlplane.policy.quarantine.memory import NodeMemory, ProgramXid
from controlplane.policy.quarantine.words import FaultClass, Finding, Remedy
from controlplane.policy.quarantine.xid_news import XidNews
from controlplane.policy.quarantine.xids import Xid, meaning
from controlplane.signals.decision import RESTART_WORKLOAD, Severity

_AGREED_SECONDS = 600.0  # an engine over an old XID must fail for so long: a crash alone is over sooner
Found = dict[str, dict[str, list[Finding]]]
"""Findings by node and GPU."""


def set_nodes(bench: Bench) -> None:
    """The nodes that are watched, and what the cluster says of them."""
    watched = bench.observation.watched
    if watched is not None:
        for name in [name for name in bench.nodes if name not in watched and name not in bench.quarantines]:
            del bench.nodes[name]
        for name in watched:
            bench.nodes.setdefault(name, NodeMemory(bench.now))
    else:
        for sample in bench.observation.samples:
            bench.nodes.setdefault(sample.node, NodeMemory(bench.now))
    for name, facts in bench.facts.items():
        if name in bench.nodes and facts.rack != bench.nodes[name].rack:
            bench.nodes[name] = msgspec.structs.replace(bench.nodes[name], rack=facts.rack)
    running: dict[str, dict[str, None]] = {}
    for replica in bench.observation.serving:
        running.setdefault(replica.node, {})[replica.pool] = None
    for name, pools in running.items():
        node = bench.nodes.get(name)
        if node is not None and node.pools != tuple(pools):
            bench.nodes[name] = msgspec.structs.replace(node, pools=tuple(pools))


def take_samples(bench: Bench) -> Found:
    """Take in the reports; the findings are of XIDs alone."""
    found: Found = {}
    for sample in bench.observation.samples:
        name = sample.node
        node = bench.nodes.get(name)
        if node is None:  # left the fleet while its report was under way
            continue
        after, news = sight.take(node, sample, bench.settings.throttled_over)
        for uuid, gpu in after.gpus.items():
            before = node.gpus.get(uuid)
            if gpu.old_xid and gpu.old_xid != (before.old_xid if before is not None else 0):
                found.setdefault(name, {}).setdefault(uuid, []).extend(_old(bench, name, uuid, gpu.old_xid))
        bench.nodes[name] = after
        for one in news:
            found.setdefault(name, {}).setdefault(one.uuid, []).extend(_new(bench, one))
    for name in bench.nodes:
        _notice_boot(bench, name)
    bench.programs = blame.kept(bench.programs, bench.now)
    return found


def _notice_boot(bench: Bench, name: str) -> None:
    """A node that has booted anew has no events any more: what is still wrong shows itself again."""
    node, before = bench.nodes[name], bench.memory.nodes.get(name)
    facts = bench.facts.get(name)
    boot_id = (facts.boot_id if facts is not None else "") or node.boot_id
    if boot_id != node.boot_id:
        node = msgspec.structs.replace(node, boot_id=boot_id)
    if before is not None and before.boot_id and boot_id and boot_id != before.boot_id:
        node = msgspec.structs.replace(node, faults=tuple(f for f in node.faults if not f.finding.stays))
        bench.programs = tuple(xid for xid in bench.programs if xid.node != name)
        bench.event("node-booted", name, f"node {name} has booted anew", Severity.INFO)
    bench.nodes[name] = node


def _old(bench: Bench, node: str, uuid: str, code: int) -> list[Finding]:
    """An XID that was there before we watched: told, and a hint that something else must agree with."""
    row = meaning(code, bench.settings.xids)
    bench.event(
        "xid-before-us",
        node,
        f"{where(node, uuid)} shows XID {code} ({row.reason}) from before we watched: no ground by itself",
    )
    if not row.remedy.takes_node or "xid" in bench.settings.disabled_checks:
        return []
    return [
        Finding(
            f"xid-{code}",
            row.fault_class,
            row.remedy,
            f"XID {code}, from before we watched: {row.reason}",
            _AGREED_SECONDS,
            proves=False,
            stays=True,
        )
    ]


def _new(bench: Bench, news: XidNews) -> list[Finding]:
    """What one new XID asks for."""
    row = meaning(news.code, bench.settings.xids)
    pods = [f"{pod.namespace}/{pod.name}" for pod in news.pods]
    on = f", used by {', '.join(pods)}" if pods else ""
    quiet = row.remedy is Remedy.NOTE and row.fault_class is not FaultClass.UNKNOWN
    bench.event(
        "xid",
        news.node,
        f"XID {news.code} on {where(news.node, news.uuid)}{on}: {row.reason} "
        f"({row.fault_class.value}, {row.remedy.value}; {row.source})",
        Severity.INFO if quiet else Severity.WARNING,
    )
    if "xid" in bench.settings.disabled_checks:
        return []
    if row.fault_class is FaultClass.APPLICATION:
        _remember_program(bench, news, pods)
    if row.remedy is Remedy.RESTART_WORKLOAD:
        _restart(bench, news, row, pods)
    if not row.remedy.takes_node:
        return []
    return [
        Finding(
            f"xid-{news.code}",
            row.fault_class,
            row.remedy,
            f"XID {news.code}: {row.reason}",
            bench.settings.hold_down,
            stays=True,
            at=news.at,
        )
    ]


def _remember_program(bench: Bench, news: XidNews, pods: list[str]) -> None:
    known = _by_pod(bench)
    pods = pods or [one.pod for one in bench.observation.serving if one.pod and news.uuid in one.gpus]
    # Where several pods share the GPU, the XID may be of any of them.
    for pod in pods or [""]:
        owner = known.get(pod, "") or (blame.owner_of(pod) if pod else "")
        xid = ProgramXid(news.at, news.code, news.node, news.uuid, pod, owner)
        bench.programs = (*bench.programs, xid)


def _by_pod(bench: Bench) -> dict[str, str]:
    return {one.pod: one.owner for one in bench.observation.serving if one.pod and one.owner}


def _restart(bench: Bench, news: XidNews, row: Xid, pods: list[str]) -> None:
    """Ask for a restart of what ran on the GPU, once in a while, where it is known and alone."""
    names = pods or [
        one.replica for one in bench.observation.serving if one.node == news.node and news.uuid in one.gpus
    ]
    if len(names) != 1:
        return
    target = names[0]
    if any(target not in (one.pod, one.replica) for one in bench.on(news.node, news.uuid)):
        return
    last = bench.restarted.get(target)
    if last is not None and bench.now - last < bench.settings.restart_at_most_every:
        return
    bench.restarted[target] = bench.now
    bench.decide(
        RESTART_WORKLOAD,
        target,
        f"xid-{news.code}",
        f"{target} should be restarted if it does not come back by itself: XID {news.code}, {row.reason}",
    )
