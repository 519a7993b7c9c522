"""arXiv 2604.08075 from its own constants: what follows from its text, what does not, with the arithmetic.

instances of one pool   ceil(L / mu)
of two pools            ceil(alpha L / mu_short) + ceil((1 - alpha) L / mu_long)
saved                   alpha (1 - 1 / rho),   rho = mu_short / mu_long
"""

import math
from typing import NamedTuple

RATE = 1000.0
MU_LONG, MU_SHORT, SLOTS = 2.8, 11.2, 16
RHO = MU_SHORT / MU_LONG
PRINTED = {"Azure": (358, 208, 0.419), "LMSYS": (358, 246, 0.313)}
TEXT_ALPHA = (0.80, 0.95)
KV_BYTES_A_TOKEN = 2 * 80 * 8 * 128 * 2  # K and V, layers, KV heads, head dim, fp16
WEIGHT_BYTES = 140e9


class Claim(NamedTuple):
    """One figure: as printed, as it follows, whether they agree, and the arithmetic."""

    what: str
    printed: str
    follows: str
    agrees: bool
    arithmetic: str


def instances_of_one(rate: float = RATE, mu: float = MU_LONG) -> int:
    return math.ceil(rate / mu)


def instances_of_two(alpha: float, rate: float = RATE) -> tuple[int, int]:
    return math.ceil(alpha * rate / MU_SHORT), math.ceil((1 - alpha) * rate / MU_LONG)


def saved(alpha: float, rho: float = RHO) -> float:
    return alpha * (1 - 1 / rho)


def implied_alpha(saved_ratio: float, rho: float = RHO) -> float:
    """The share of short requests with which so much is saved."""
    return saved_ratio / (1 - 1 / rho)


def implied_rho(saved_ratio: float, alpha: float) -> float:
    """How many times faster a short instance is if so much is saved with a share `alpha`."""
    return 1 / (1 - saved_ratio / alpha)


def erlang_c(servers: int, load: float) -> float:
    """The probability that a request waits, of M/M/c with an offered load of `load` servers."""
    inverse_b = 1.0
    for k in range(1, servers + 1):
        inverse_b = 1.0 + inverse_b * k / load
    b = 1.0 / inverse_b
    return b / (1 - (load / servers) * (1 - b))


def p99_wait_seconds(servers: int, mean_seconds: float, rate: float) -> float:
    """P99 of the wait, by M/M/c."""
    load = rate * mean_seconds
    waits = erlang_c(servers, load)
    return max(0.0, math.log(waits / 0.01)) / (servers / mean_seconds - rate)


def claims() -> list[Claim]:
    found = [
        _claim(
            "instances of one pool", "358", instances_of_one(), f"ceil({RATE:g} / {MU_LONG:g}): no headroom"
        )
    ]
    for name, (_, two, ratio) in PRINTED.items():
        alpha = implied_alpha(ratio)
        short, long = instances_of_two(alpha)
        found.append(
            _claim(
                f"{name}: two pools",
                str(two),
                short + long,
                f"only with alpha = {ratio:.3f} / (1 - 1/{RHO:g}) = {alpha:.4f}: "
                f"ceil({alpha * RATE:.1f} / {MU_SHORT:g}) + ceil({(1 - alpha) * RATE:.1f} / {MU_LONG:g}) = "
                f"{short} + {long}",
            )
        )
    for name, (_, _, ratio) in PRINTED.items():
        low, high = (saved(alpha) for alpha in TEXT_ALPHA)
        found.append(
            Claim(
                f"{name}: saved, with the text's alpha",
                f"{ratio:.1%}",
                f"{low:.0%} to {high:.0%}",
                low <= ratio <= high,
                f"alpha {TEXT_ALPHA[0]:g} to {TEXT_ALPHA[1]:g} times (1 - 1/{RHO:g}); "
                f"{ratio:.1%} at alpha 0.8 would need rho = 1 / (1 - {ratio:.3f}/0.8) = "
                f"{implied_rho(ratio, 0.8):.2f}, not {RHO:g}",
            )
        )
    return [*found, *_other_claims()]


def _other_claims() -> list[Claim]:
    count = instances_of_one()
    busy = RATE / (count * MU_LONG)
    wait = p99_wait_seconds(count * SLOTS, SLOTS / MU_LONG, RATE)
    room = 2 * 80e9 * 0.9 - WEIGHT_BYTES
    sequence = 65_536 * KV_BYTES_A_TOKEN
    dollars = 150 * 2.21 * 24 * 360
    return [
        Claim(
            "one pool: P99 TTFT at 358 instances",
            "1.82 s",
            f"{wait:.2f} s of waiting alone",
            wait < 1.5,
            f"M/M/c, c = 358 x {SLOTS}, load {busy:.2%}: nothing is left for the prefill of the prompt",
        ),
        Claim(
            "slots of 64K tokens on 2 x A100-80GB",
            str(SLOTS),
            str(int(room // sequence)),
            room // sequence >= SLOTS,
            f"{KV_BYTES_A_TOKEN:,} bytes a token, {sequence / 2**30:.0f} GiB a sequence; 160 GB x 0.9 - "
            f"140 GB of weights = {room / 1e9:.0f} GB, {room / KV_BYTES_A_TOKEN:,.0f} tokens before "
            "activations",
        ),
        Claim(
            "slots of 64K and of 8K tokens in 65,536 blocks of 16",
            "16 and 128",
            f"{65_536 * 16 // 65_536} and {65_536 * 16 // 8_192}",
            True,
            "1,048,576 tokens, which eight such GPUs hold (640 GB x 0.9 - 140 GB = 436 GB, 1.33 M tokens)",
        ),
        Claim(
            "preempted of 1,000, with those slots",
            "47.3 and 8.7",
            "0 and 0",
            False,
            "16 x 65,536 and 128 x 8,192 tokens are all of these blocks and no more: every slot has its "
            "whole context, so nothing can be preempted; the text does not say what over-commits them",
        ),
        Claim(
            "saved a year, Azure",
            "$2.86M",
            f"${dollars / 1e6:.2f}M",
            round(dollars / 1e6, 2) == 2.86,
            "150 x $2.21 x 8,640 h: a year of 360 days, and one GPU an instance although they span two",
        ),
        Claim(
            "saved a year, MI300X",
            "$15.4M",
            f"${60 * 8 * 3.67 * 8760 / 1e6:.2f}M",
            True,
            "(197 - 137) nodes x 8 x $3.67 x 8,760 h: a year of 365 days",
        ),
    ]


def _claim(what: str, printed: str, follows: int, arithmetic: str) -> Claim:
    return Claim(what, printed, str(follows), printed == str(follows), arithmetic)
