"""The downhill simplex of Nelder and Mead (1965), for a handful of parameters and an error without noise."""

from collections.abc import Callable, Sequence

import numpy as np


def nelder_mead(
    error: Callable[[Sequence[float]], float], start: Sequence[float], step: Sequence[float], tries: int
) -> list[float]:
    """The best of about `tries` points, from `start` and the points `step` away from it on each axis."""

    def judged(point: np.ndarray) -> tuple[float, np.ndarray]:
        return error(point.tolist()), point

    first = np.array(start, float)
    simplex = [judged(first)] + [judged(first + axis) for axis in np.diag(step)]
    used = len(simplex)
    while used < tries:
        simplex.sort(key=lambda pair: pair[0])
        worst = simplex[-1]
        centre = np.mean([point for _, point in simplex[:-1]], axis=0)
        away = centre - worst[1]
        reflected = judged(centre + away)
        used += 1
        if reflected[0] < simplex[0][0]:
            expanded = judged(centre + 2 * away)
            used += 1
            simplex[-1] = min(expanded, reflected, key=lambda pair: pair[0])
        elif reflected[0] < simplex[-2][0]:
            simplex[-1] = reflected
        else:
            towards = 0.5 if reflected[0] < worst[0] else -0.5
            contracted = judged(centre + towards * away)
            used += 1
            if contracted[0] < min(reflected[0], worst[0]):
                simplex[-1] = contracted
            else:
                best = simplex[0][1]
                simplex[1:] = [judged(best + 0.5 * (point - best)) for _, point in simplex[1:]]
                used += len(simplex) - 1
    return min(simplex, key=lambda pair: pair[0])[1].tolist()
