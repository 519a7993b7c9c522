"""Random histories of GPU fleets, with and without a hardware fault, and what a careful operator would do.

The incidents are those that people have reported of their fleets. Each is written from what the sources show
while it happens; what is right is stated here, by hand, and never looked up in the product's tables.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec
from quarantine_fleet import Fleet

from controlplane.signals.gpu import Answer, NodeReport, NodeSample, Pod

POLL = 30.0
RESET, REBOOT, REPLACE = "drain-and-reset", "drain-and-reboot", "cordon-and-replace"


@dataclass
class Plan:
    """One incident: what happens when, and what should come of it.

    `steps` are done at their second. `node` must be taken for one of `remedies`, not later than `within`
    seconds after the fault can first be seen (`visible_at`); None: no node may be taken. `repair` mends it.
    `quiet`: nothing may even be taken for suspect at the end.
    """

    name: str
    node: str | None = None
    remedies: tuple[str, ...] = ()
    within: float = 0.0
    visible_at: float = 0.0
    steps: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    repair: Callable[[], None] | None = None
    lasts: float = 1800.0


class History:
    """A fleet with its noise, and one incident in it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.source = random.choice(("dcgm", "nvml"))
        self.fleet = Fleet(
            nodes=random.randint(3, 9), gpus=random.randint(1, 4), source=self.source, cluster=True
        )
        self.lost_ratio = random.choice((0.0, 0.0, 0.02, 0.1))
        self.missed: dict[str, int] = {}
        self.flickers: dict[tuple[str, int], float] = {}
        self._frozen: dict[str, dict[str, float]] = {}
        self.start = self.fleet.now
        for name in self.fleet.names:
            for index in range(len(self.fleet.cards[name])):
                card = self.fleet.card(name, index)
                card.numbers = {
                    "xid": 0.0,
                    "temperature_celsius": random.uniform(30, 80),
                    "throttle_reasons": float(random.choice((0, 1, 4, 5))),
                    "ecc_uncorrectable_total": float(random.choice((0, 0, 0, 2))),
                    "remapped_rows_uncorrectable_total": float(random.choice((0, 0, 1))),
                    "row_remap_failure": 0.0,
                    "row_remap_pending": float(random.random() < 0.05),
                    "pcie_replays_total": float(random.randint(0, 50)),
                    "throttled_hw_thermal_seconds_total": random.uniform(0, 1e4),
                }
                if self.source == "nvml" or random.random() < 0.3:
                    card.numbers["recovery_action"] = 0.0
        incident = random.choice(INCIDENTS)
        self.plan = incident(self)

    # -- words for incidents -----------------------------------------------------------------------

    def somewhere(self) -> str:
        return self.random.choice(self.fleet.names)

    def gpu(self, node: str) -> int:
        return self.random.randrange(len(self.fleet.cards[node]))

    def at(self, low: float = 300.0, high: float = 900.0) -> float:
        return self.random.uniform(low, high)

    def asks(self, node: str, index: int, action: int) -> None:
        """The driver says what it wants, where the source can tell."""
        if "recovery_action" in (self.fleet.card(node, index).numbers or {}):
            self.fleet.show(node, index, recovery_action=float(action))

    def xid(self, node: str, code: int, index: int = 0) -> None:
        self.fleet.raise_xid(node, code, index)

    def lose(self, node: str, index: int) -> None:
        """The GPU answers nothing any more: gone from DCGM's page, lost for NVML."""
        card = self.fleet.card(node, index)
        if self.source == "dcgm":
            self._frozen[f"{node}/{index}"] = dict(card.numbers or {})
            card.numbers = None
        else:
            card.answer = Answer.LOST
            card.numbers = {}

    def boot(self, node: str) -> None:
        """The node comes back from a reboot, well."""
        fleet = self.fleet
        fleet.boots[node] = f"boot-{fleet.now}"
        fleet.xid_events[node].clear()
        for index in range(len(fleet.cards[node])):
            card = fleet.card(node, index)
            numbers = card.numbers or self._frozen.get(f"{node}/{index}") or {"temperature_celsius": 35.0}
            card.answer = Answer.VALUES
            card.numbers = {
                **numbers,
                "xid": 0.0,
                "ecc_uncorrectable_total": 0.0,
                "row_remap_pending": 0.0,
                "throttle_reasons": 1.0,
            }
            if "recovery_action" in numbers:
                card.numbers["recovery_action"] = 0.0

    def exchange(self, node: str, index: int) -> None:
        """A person puts another card in, and boots the node."""
        fleet = self.fleet
        old = fleet.uuid(node, index)
        cards = {(f"{u[:-4]}ffff" if u == old else u): c for u, c in fleet.cards[node].items()}
        fleet.cards[node] = cards
        self.boot(node)
        fleet.show(node, index, row_remap_failure=0.0, xid=0.0)

    def crash(self, node: str, seconds: float = 120.0) -> list[tuple[float, Callable[[], None]]]:
        return [
            (0.0, lambda: self.fleet.serve(node, failing=True, ready=False)),
            (seconds, lambda: self.fleet.serve(node, failing=False, ready=True)),
        ]

    # -- running -----------------------------------------------------------------------------------

    def samples(self) -> tuple[NodeSample, ...]:
        """What arrives in this poll: some reports are lost, some pages lack a GPU for a moment."""
        random, arrived = self.random, []
        for name in self.fleet.names:
            sample = self.fleet.sample(name)
            if random.random() < self.lost_ratio:
                self.missed[name] = self.missed.get(name, 0) + 1
                continue
            if isinstance(sample, NodeReport) and len(sample.gpus) > 1 and random.random() < 0.005:
                left = dict(list(sample.gpus.items())[:-1])
                sample = msgspec.structs.replace(sample, gpus=left)
            arrived.append(sample)
        return tuple(arrived)

    def noise(self) -> None:
        """What goes on in every fleet: clocks flicker for a moment, counters creep."""
        random, fleet = self.random, self.fleet
        for (name, index), bits in self.flickers.items():
            shown = fleet.card(name, index).numbers
            if shown and shown.get("throttle_reasons", 0) in (0x8, 0x9, 0x20, 0x48, 0x80):
                fleet.show(name, index, throttle_reasons=bits)
        self.flickers.clear()
        for name in fleet.names:
            for index in range(len(fleet.cards[name])):
                numbers = fleet.card(name, index).numbers
                bits = (numbers or {}).get("throttle_reasons", 0x40)
                if bits < 0x40 and random.random() < 0.05:
                    self.flickers[name, index] = bits
                    fleet.show(
                        name, index, throttle_reasons=float(random.choice((0x8, 0x9, 0x20, 0x48, 0x80)))
                    )
                if numbers and random.random() < 0.02:
                    replays = numbers.get("pcie_replays_total", 0.0) + random.randint(1, 5)
                    fleet.show(name, index, pcie_replays_total=replays)


def _fault(
    history: History,
    name: str,
    codes: tuple[int, ...],
    remedies: tuple[str, ...],
    *,
    action: int = 0,
    lost: bool = False,
    within: float = 60.0,
    numbers: dict[str, float] | None = None,
    exchange: bool = False,
) -> Plan:
    node, at = history.somewhere(), history.at()
    index = history.gpu(node)

    def strike() -> None:
        for code in codes:
            history.xid(node, code, index)
        if numbers:
            history.fleet.show(node, index, **numbers)
        if action:
            history.asks(node, index, action)

    plan = Plan(name, node, remedies, within, at, [(at, strike)])
    if lost:
        plan.steps.append((at + 45.0, lambda: history.lose(node, index)))
    mend = (lambda: history.exchange(node, index)) if exchange else (lambda: history.boot(node))
    plan.repair = mend
    return plan


def fallen_off_the_bus(h: History) -> Plan:
    return _fault(h, "79 and gone", (79,), (REBOOT, RESET), action=2, lost=True)


def gone_without_a_word(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    if len(h.fleet.cards[node]) == 1:
        return fallen_off_the_bus(h)  # with its only GPU gone nobody can see the node
    index = h.gpu(node)
    plan = Plan("gone without an XID", node, (REBOOT,), 120.0 if h.source == "dcgm" else 60.0, at)
    plan.steps.append((at, lambda: h.lose(node, index)))
    plan.repair = lambda: h.boot(node)
    return plan


def double_bit(h: History) -> Plan:
    return _fault(
        h, "48", (48,), (RESET,), action=h.random.choice((1, 4)), numbers={"ecc_uncorrectable_total": 9.0}
    )


def uncontained(h: History) -> Plan:
    return _fault(h, "95", (95,), (RESET,), action=4)


def remap_failed(h: History) -> Plan:
    return _fault(
        h,
        "64 and the failure flag",
        (64,),
        (REPLACE, RESET),
        action=1,
        numbers={"row_remap_failure": 1.0},
        exchange=True,
    )


def failure_flag_alone(h: History) -> Plan:
    return _fault(h, "failure flag", (), (REPLACE,), numbers={"row_remap_failure": 1.0}, exchange=True)


def firmware_hangs(h: History) -> Plan:
    return _fault(h, "119", (h.random.choice((119, 120)),), (RESET, REBOOT), action=1)


def driver_asks(h: History) -> Plan:
    if h.source == "dcgm":
        for name in h.fleet.names:
            for index in range(len(h.fleet.cards[name])):
                h.fleet.show(name, index, recovery_action=0.0)
    action, remedy = h.random.choice(((1, RESET), (2, REBOOT), (4, RESET), (7, REBOOT)))
    return _fault(h, f"driver asks for {action}", (), (remedy,), action=action)


def link_fails(h: History) -> Plan:
    return _fault(h, "74", (74,), (RESET,), action=1)


def overheats(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    index = h.gpu(node)
    bits = h.random.random() < 0.5
    for name in h.fleet.names:
        for i in range(len(h.fleet.cards[name])):
            card = h.fleet.card(name, i)
            assert card.numbers is not None
            if bits:
                card.numbers.pop("throttled_hw_thermal_seconds_total")
    plan = Plan("overheats for long", node, (REPLACE,), 840.0, at, lasts=2400.0)
    # Slowed down for nine tenths of the time, in pieces.
    for n in range(60):

        def step(n: int = n) -> None:
            card = h.fleet.card(node, index)
            if card.numbers is None:
                return
            hot = n % 10 != 0
            card.numbers = card.numbers | {"throttle_reasons": float(0x68 if hot else 0x0)}
            if not bits:
                old = card.numbers["throttled_hw_thermal_seconds_total"]
                card.numbers = card.numbers | {
                    "throttled_hw_thermal_seconds_total": old + (27.0 if hot else 0.0)
                }

        plan.steps.append((at + n * POLL, step))
    plan.repair = lambda: h.exchange(node, index)
    return plan


def silent_memory_errors(h: History) -> Plan:
    """An exporter without an XID family; memory errors rise and the engine does not come back."""
    if h.source != "dcgm":
        return uncontained(h)
    for name in h.fleet.names:
        for index in range(len(h.fleet.cards[name])):
            numbers = h.fleet.card(name, index).numbers
            assert numbers is not None
            for gone in ("xid", "recovery_action"):
                numbers.pop(gone, None)
    node, at = h.somewhere(), h.at()
    plan = Plan("errors without an XID", node, (RESET,), 360.0, at)
    for n in range(40):
        plan.steps.append(
            (at + n * POLL, lambda n=n: h.fleet.show(node, 0, ecc_uncorrectable_total=10.0 + n))  # type: ignore[misc]
        )
    plan.steps.append((at, lambda: h.fleet.serve(node, failing=True, ready=False)))

    def mend() -> None:
        h.boot(node)
        h.fleet.serve(node, failing=False, ready=True)

    plan.repair = mend
    return plan


def narrow_link(h: History) -> Plan:
    node, at = h.somewhere(), h.at()

    def strike() -> None:
        h.fleet.show(node, 0, pcie_link_width=4.0, pcie_link_width_max=16.0)
        h.fleet.serve(node, slow=True)

    plan = Plan("link with lanes missing, replica slow", node, (REBOOT,), 300.0, at, [(at, strike)])

    def mend() -> None:
        h.boot(node)
        h.fleet.show(node, 0, pcie_link_width=16.0)
        h.fleet.serve(node, slow=False)

    plan.repair = mend
    return plan


def bad_multiprocessor(h: History) -> Plan:
    """Program after program dies on one GPU, each well elsewhere."""
    node, at = h.somewhere(), h.at()
    index = h.gpu(node)
    plan = Plan("13 by many programs on one GPU", node, (RESET,), 60.0, at + 4 * 300.0, lasts=2700.0)
    for n in range(6):

        def strike(n: int = n) -> None:
            card = h.fleet.card(node, index)
            card.pods = (Pod("batch", f"job{n}-0"),)
            if h.source == "dcgm":
                h.fleet.show(node, index, xid=0.0)

        def raise_it() -> None:
            h.xid(node, 13, index)

        plan.steps += [(at + n * 300.0 - 100.0, strike), (at + n * 300.0, raise_it)]

    def mend() -> None:
        h.fleet.card(node, index).pods = ()
        h.boot(node)

    plan.repair = mend
    plan.visible_at = at + 4 * 300.0
    return plan


# -- no hardware fault ---------------------------------------------------------------------------------


def nothing(h: History) -> Plan:
    return Plan("nothing")


def programs_fail(h: History) -> Plan:
    plan = Plan("one-off XIDs of programs")
    for _ in range(h.random.randint(1, 5)):
        node, code = h.somewhere(), h.random.choice((13, 31, 43, 45, 69, 8))
        at = h.at(120, 1700)
        index = h.gpu(node)
        plan.steps.append((at, lambda n=node, c=code, i=index: h.xid(n, c, i)))  # type: ignore[misc]
        if h.random.random() < 0.5:
            plan.steps += [(at + after, step) for after, step in h.crash(node)]
    return plan


def one_program_everywhere(h: History) -> Plan:
    plan = Plan("one program fails on node after node")
    for n, node in enumerate(h.random.sample(h.fleet.names, min(4, len(h.fleet.names)))):
        at = 300.0 + n * 240.0

        def place(node: str = node, n: int = n) -> None:
            h.fleet.card(node, 0).pods = (Pod("batch", f"train-6c7d8f9b-{'bcdfgh'[n]}x2k9"),)

        plan.steps += [(at - 60, place), (at, lambda node=node: h.xid(node, 31, 0))]  # type: ignore[misc]
    return plan


def contained(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    plan = Plan("94, contained")

    def strike() -> None:
        h.xid(node, 94)
        h.fleet.show(node, 0, ecc_uncorrectable_total=7.0, row_remap_pending=1.0)

    plan.steps = [(at, strike), *((at + after, step) for after, step in h.crash(node, 90.0))]
    return plan


def remap_recorded(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    plan = Plan("63, a success")
    plan.steps.append((at, lambda: (h.xid(node, 63), h.fleet.show(node, 0, row_remap_pending=1.0))[0]))
    return plan


def old_code(h: History) -> Plan:
    if h.source != "dcgm":
        return nothing(h)
    plan = Plan("a code from before we watched")
    node = h.somewhere()
    h.fleet.show(node, 0, xid=float(h.random.choice((79, 48, 95, 119))))
    if h.random.random() < 0.5:  # much later the engine crashes for another reason
        plan.steps += [(1200.0 + after, step) for after, step in h.crash(node, 300.0)]
    return plan


def old_code_and_restart(h: History) -> Plan:
    plan = old_code(h)
    plan.name = "an old code, and the daemon starts anew"
    plan.steps.append((h.at(), lambda: h.fleet.restart_daemon(keep=h.random.random() < 0.5)))
    return plan


def exporters_restart(h: History) -> Plan:
    plan = Plan("exporters restart")
    for node in h.fleet.names:
        at = h.at(200, 1500)
        plan.steps += [
            (at, lambda node=node: h.fleet.silent.add(node)),  # type: ignore[misc]
            (at + h.random.uniform(20, 300), lambda node=node: h.fleet.silent.discard(node)),  # type: ignore[misc]
        ]
    return plan


def new_exporter_reports_everywhere(h: History) -> Plan:
    plan = Plan("a new exporter shows a fault on all nodes")
    code = h.random.choice((79, 48, 95))
    for node in h.fleet.names:
        at = 600.0 + h.random.uniform(0, 60)
        plan.steps.append((at, lambda node=node: h.xid(node, code)))  # type: ignore[misc]
    if len(h.fleet.names) < 3:
        return nothing(h)
    return plan


def driver_upgrade(h: History) -> Plan:
    """Node after node goes blind, and comes back with another driver and from another boot."""
    plan = Plan("driver upgrade", lasts=2700.0)
    for n, node in enumerate(h.fleet.names):
        at = 300.0 + n * h.random.choice((20.0, 120.0))

        def back(node: str = node) -> None:
            h.fleet.silent.discard(node)
            h.fleet.drivers[node] = "590.2"
            h.boot(node)

        plan.steps += [
            (at, lambda node=node: h.fleet.silent.add(node)),  # type: ignore[misc]
            (at + h.random.uniform(120, 400), back),
        ]
    return plan


def rack_power_brake(h: History) -> Plan:
    plan = Plan("power brake on a rack", lasts=2400.0)
    size = max(3, len(h.fleet.names) // 2)
    for node in h.fleet.names[:size]:
        for n in range(50):

            def brake(node: str = node) -> None:
                for index in range(len(h.fleet.cards[node])):
                    h.fleet.show(node, index, throttle_reasons=float(0x88))

            plan.steps.append((400.0 + n * POLL, brake))
    return plan


def agent_hangs(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    plan = Plan("a source says nothing for ten minutes")
    plan.steps = [(at, lambda: h.fleet.silent.add(node)), (at + 600.0, lambda: h.fleet.silent.discard(node))]
    return plan


def short_heat(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    plan = Plan("hot for a few minutes")
    for n in range(7):

        def step() -> None:
            card = h.fleet.card(node, 0)
            assert card.numbers is not None
            total = card.numbers.get("throttled_hw_thermal_seconds_total", 0.0) + 25.0
            card.numbers = card.numbers | {
                "throttle_reasons": 64.0,
                "throttled_hw_thermal_seconds_total": total,
            }

        plan.steps.append((at + n * POLL, step))
    plan.steps.append((at + 240.0, lambda: h.fleet.show(node, 0, throttle_reasons=0.0)))
    return plan


def driver_says_none(h: History) -> Plan:
    """The table would reset the GPU; the driver, which knows better, asks for nothing."""
    node, at = h.somewhere(), h.at()
    for name in h.fleet.names:
        for index in range(len(h.fleet.cards[name])):
            h.fleet.show(name, index, recovery_action=0.0)
    plan = Plan("109 or 46, and the driver asks for nothing")
    plan.steps.append((at, lambda: h.xid(node, h.random.choice((109, 46)))))
    return plan


def one_bad_page(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    plan = Plan("one page shows nonsense")
    number = h.random.choice(("row_remap_failure", "sram_threshold_exceeded"))
    plan.steps = [
        (at, lambda: h.fleet.show(node, 0, **{number: 1.0})),
        (at + POLL, lambda: h.fleet.show(node, 0, **{number: 0.0})),
    ]
    return plan


def card_exchanged(h: History) -> Plan:
    node, at = h.somewhere(), h.at()
    plan = Plan("a person exchanges a card")
    plan.steps = [
        (at, lambda: h.fleet.silent.add(node)),
        (at + 400.0, lambda: (h.exchange(node, 0), h.fleet.silent.discard(node))[1]),
    ]
    return plan


FAULTS = (
    fallen_off_the_bus, gone_without_a_word, double_bit, uncontained, remap_failed, failure_flag_alone,
    firmware_hangs, driver_asks, link_fails, overheats, silent_memory_errors, narrow_link, bad_multiprocessor,
)  # fmt: skip
HARMLESS = (
    nothing, programs_fail, one_program_everywhere, contained, remap_recorded, old_code, old_code_and_restart,
    exporters_restart, new_exporter_reports_everywhere, driver_upgrade, rack_power_brake, agent_hangs,
    short_heat, driver_says_none, one_bad_page, card_exchanged,
)  # fmt: skip
INCIDENTS = FAULTS + HARMLESS
