"""Order statistics of measured samples. Pure functions; no unit is assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a result keeps of a list of samples, in the samples' own unit."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], q: float) -> float:
    """The `q`-th percentile (0 to 100) of samples in ascending order, linear between neighbours (NumPy's default).

    Raises ValueError for no samples or a `q` outside 0..100.
    """
    if not ordered:
        raise ValueError("a percentile needs at least one sample")
    if not 0 <= q <= 100:
        raise ValueError(f"q must be within 0..100, got {q}")
    position = (len(ordered) - 1) * q / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(samples: Sequence[float]) -> Distribution | None:
    """Summary of `samples`, or None if there are none. `std` is the sample deviation (0 for one sample).

    Raises ValueError if a sample is not finite: a NaN would otherwise land anywhere in the order.
    """
    if not samples:
        return None
    if not all(math.isfinite(sample) for sample in samples):
        raise ValueError("samples must be finite")
    ordered = sorted(samples)
    mean = math.fsum(ordered) / len(ordered)
    # statistics.stdev computes with fractions: seconds for the gaps of a large run.
    variance = math.fsum((sample - mean) ** 2 for sample in ordered) / max(1, len(ordered) - 1)
    return Distribution(
        count=len(ordered),
        mean=mean,
        std=math.sqrt(variance),
        min=ordered[0],
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def poisson_offsets(rate: float, count: int, rng: random.Random) -> list[float]:
    """`count` arrival times in seconds from 0, exponential gaps of mean `1 / rate`; the first arrival is at 0.

    Raises ValueError unless `rate` (arrivals a second) is positive.
    """
    if not rate > 0:
        raise ValueError(f"rate must be positive, got {rate}")
    offsets: list[float] = []
    now = 0.0
    for _ in range(count):
        offsets.append(now)
        now += rng.expovariate(rate)
    return offsets
