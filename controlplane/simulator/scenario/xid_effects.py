"""What comes with an XID in truth, as people have reported it of their fleets.

Written apart from the table by which the product judges: what it makes of a code is what a scenario shows.
"""

from typing import Literal

import msgspec

Engine = Literal["gone", "crashes", "hangs", "goes on"]
Repair = Literal["reset", "reboot", "exchange"]


class Effect(msgspec.Struct, frozen=True):
    """Of one code.

    `engine`: it is "gone" or "hangs" until the repair, or "crashes" and comes back after its cold start.
    `breaks`: the GPU must be repaired, and its node must go for it. `asks` is what the driver says that it
    needs, as NVML numbers it; `shows` are signals that change; `lost`: it falls off the bus.
    """

    engine: Engine
    breaks: bool = False
    asks: float = 0.0
    shows: dict[str, float] = {}
    lost: bool = False
    repair: Repair = "reset"


_ERRORS = "ecc_uncorrectable_total"
EFFECTS: dict[int, Effect] = {
    13: Effect("crashes"),  # a program's: an illegal instruction
    31: Effect("crashes"),  # a program's: an address that is not its own
    43: Effect("crashes"),  # a program's channel was reset
    48: Effect("gone", True, 1.0, {_ERRORS: 1.0}),  # two bits at once
    63: Effect("goes on", shows={"row_remap_pending": 1.0}),  # a row was remapped: a success
    64: Effect("goes on", True, 1.0, {"row_remap_failure": 1.0}, repair="exchange"),
    79: Effect("gone", True, 2.0, lost=True, repair="reboot"),  # off the bus
    94: Effect("crashes", shows={_ERRORS: 1.0, "row_remap_pending": 1.0}),  # contained
    95: Effect("gone", True, 4.0, {_ERRORS: 1.0}),  # uncontained
    119: Effect("hangs", True, 1.0),  # its firmware does not answer
    120: Effect("hangs", True, 1.0),
}
