"""Bytes per token as the gateway learns them: how far off after 50 requests, and what that misroutes.

The ratios are the paper's (English 4.48, code 3.52, CJK 2.01); each request's own ratio scatters around them.
Prompts are of given sizes, outputs are known, so whatever lands on the wrong side of the boundary does so by
its estimate alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from controlplane.gateway.admission.size_calibration import START_RATIO, Category, SizeCalibration

TRUE_RATIOS = {Category.PROSE: 4.48, Category.CODE: 3.52, Category.SCRIPT: 2.01}
LEARNED_FROM = 50
_TENANT = "acme"


class Calibrated(NamedTuple):
    """Of one category: relative error of the learned ratio (mean and P95 over many runs), and the share of
    requests on the wrong side of the boundary as the gateway estimates, of those that are sent to the short
    pool though they are long, and on the wrong side with a fixed 4 bytes a token."""

    mean_error: float
    p95_error: float
    misrouted: float
    misrouted_to_short: float
    misrouted_static: float


def calibrated(
    category: Category,
    prompts: NDArray[np.float64],
    outputs: NDArray[np.float64],
    boundary: int,
    *,
    beta: float = 0.95,
    gamma: float = 1.0,
    scatter: float = 0.05,
    runs: int = 100,
) -> Calibrated:
    """`scatter` is the coefficient of variation of the ratio from one request to the next."""
    true = TRUE_RATIOS[category]
    errors, wrong = [], []
    for seed in range(runs):
        rng = np.random.default_rng([seed, len(category)])
        calibration = SizeCalibration(beta=beta, gamma=gamma)
        plain = SizeCalibration(beta=beta, gamma=0.0)
        seen = rng.choice(prompts, LEARNED_FROM)
        for tokens, ratio in zip(seen, _ratios(true, scatter, LEARNED_FROM, rng), strict=True):
            for learner in (calibration, plain):
                learner.learn(category, _TENANT, round(tokens * ratio), int(tokens))
        errors.append(abs(plain.bytes_per_token(category, _TENANT) / true - 1))
        own = _ratios(true, scatter, len(prompts), rng)
        learned = calibration.bytes_per_token(category, _TENANT)
        wrong.append(_misrouted(prompts, outputs, boundary, own, learned))
    own = _ratios(true, scatter, len(prompts), np.random.default_rng(0))
    static, _ = _misrouted(prompts, outputs, boundary, own, START_RATIO)
    misrouted, to_short = np.mean(wrong, axis=0).tolist()
    return Calibrated(float(np.mean(errors)), float(np.percentile(errors, 95)), misrouted, to_short, static)


def _ratios(true: float, scatter: float, count: int, rng: Generator) -> NDArray[np.float64]:
    return true * np.exp(scatter * rng.standard_normal(count))


def _misrouted(
    prompts: NDArray[np.float64],
    outputs: NDArray[np.float64],
    boundary: int,
    ratios: NDArray[np.float64],
    taken: float,
) -> tuple[float, float]:
    """The share on the wrong side where `taken` bytes are taken for a token, and of those in the short
    pool."""
    sent_short = np.ceil(np.rint(prompts * ratios) / taken) + outputs <= boundary
    is_short = prompts + outputs <= boundary
    return float((sent_short != is_short).mean()), float((sent_short & ~is_short).mean())
