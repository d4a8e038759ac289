"""Series of times with a known true median."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from commbench.stats.series import Series


def ar1_lognormal(
    rng: Generator, rho: float, count: int, length: int, sigma: float = 0.1
) -> Series:
    """[count, length] times around a true median of 1 ms; neighbours' logarithms correlate by
    rho."""
    noise = rng.standard_normal((length, count))
    level = noise[0]
    logs = [level]
    for step in noise[1:]:
        level = rho * level + math.sqrt(1 - rho**2) * step
        logs.append(level)
    return np.asarray(1e-3 * np.exp(sigma * np.array(logs).T))
