"""The table of XIDs: what each code means and asks for, with the reason and where that is known from.

It is the second word: where the driver says what the GPU needs, that counts. Vendors disagree on some codes,
so every one can be overridden (`quarantine.xids` in the configuration). The table is a constant of the
package like its code, which is why it may be read here.
"""

import csv
from functools import cache
from importlib.resources import files

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from controlplane.policy.quarantine.words import FaultClass, Remedy

LARGEST = 65_535


class Xid(msgspec.Struct, frozen=True):
    """One row of the table."""

    code: int
    name: str
    fault_class: FaultClass
    remedy: Remedy
    reason: str
    source: str


class XidOverride(BaseModel):
    """What stands in place of the table's row for one code."""

    # By name too: settings in the journal are written by name.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    fault_class: FaultClass | None = Field(None, alias="class", description="whose fault it is")
    action: Remedy | None = Field(None, description="what helps")
    reason: str = Field("", max_length=300, description="why, for the decision's sentence")


@cache
def table() -> dict[int, Xid]:
    """All rows, by code."""
    text = files(__package__).joinpath("xids.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        int(row["code"]): Xid(
            code=int(row["code"]),
            name=row["name"],
            fault_class=FaultClass(row["class"]),
            remedy=Remedy(row["action"]),
            reason=row["reason"],
            source=row["source"],
        )
        for row in rows
    }


def meaning(code: int, overrides: dict[int, XidOverride]) -> Xid:
    """What a code means; one that nobody knows is an alert and no more."""
    row = table().get(code) or Xid(
        code, "UNKNOWN", FaultClass.UNKNOWN, Remedy.NOTE, "a code that is not in the table", "none"
    )
    override = overrides.get(code)
    if override is None:
        return row
    return Xid(
        code,
        row.name,
        override.fault_class or row.fault_class,
        override.action or row.remedy,
        override.reason or row.reason,
        "configuration",
    )
