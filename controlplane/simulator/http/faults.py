"""What is broken on purpose in a replica: the state of its faults, and what they do to its pages."""

import re
from typing import Annotated, Any, Literal

import msgspec

from controlplane.simulator.http.errors import bad_request

Factor = Annotated[float, msgspec.Meta(ge=1.0, le=1000.0)]
Delay = Annotated[float, msgspec.Meta(ge=0.0, le=600.0)]
Xid = Annotated[int, msgspec.Meta(ge=0, le=9999)]

_GAUGE = re.compile(
    rb"^(vllm:(?:num_requests_running|num_requests_waiting|num_requests_waiting_by_reason"
    rb"|kv_cache_usage_perc)\{[^}\n]*\}) (\S+)$",
    re.MULTILINE,
)


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All faults of one replica; the defaults are a sound one.

    - `wedged`: no step ends and none begins, while /health stays 200 and the page is served.
    - `slow_factor`: every step takes so many times as long, and nothing else shows it.
    - `thermal_factor`: the same by a GPU that is too hot, which DCGM shows.
    - `gauges_frozen`: running, waiting and KV usage stay as they were when it was switched on.
    - `scrape`: /metrics has NaN for its gauges, is cut off in the middle, or answers 500.
    - `scrape_delay_seconds`: /metrics takes so long.
    - `warming_up`: no step begins, also after a restart, while port, /health, models and page are there.
    - `health`: /health answers 503, as vLLM does where its engine is dead; `health_delay_seconds`: so late.
    - `xid`: the last XID of each GPU of the replica, by its number on the node; 0 is none.
    """

    wedged: bool = False
    slow_factor: Factor = 1.0
    thermal_factor: Factor = 1.0
    gauges_frozen: bool = False
    scrape: Literal["good", "nan", "cut", "error"] = "good"
    scrape_delay_seconds: Delay = 0.0
    warming_up: bool = False
    health: Literal["good", "error"] = "good"
    health_delay_seconds: Delay = 0.0
    xid: dict[str, Xid] = {}

    def changed(self, change: dict[str, Any]) -> "Faults":
        """These faults with some of them changed. Raises ApiError for what cannot be."""
        try:
            return msgspec.convert(msgspec.structs.asdict(self) | change, Faults)
        except msgspec.ValidationError as error:
            raise bad_request(str(error)) from None


class Interruption(msgspec.Struct, frozen=True):
    """What is done once: connections dropped, or the server gone and back after so long a time of loading."""

    drop_connections: bool = False
    restart_seconds: Annotated[float, msgspec.Meta(ge=0.0, le=86400.0)] | None = None


def gauges(page: bytes) -> dict[bytes, bytes]:
    """The values of the load gauges on a page, by name and labels."""
    return dict(_GAUGE.findall(page))


def with_gauges(page: bytes, values: dict[bytes, bytes]) -> bytes:
    """The page with other values of these gauges; NaN where there is none."""
    return _GAUGE.sub(lambda found: b"%b %b" % (found[1], values.get(found[1], b"NaN")), page)
