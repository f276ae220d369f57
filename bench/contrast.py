"""Whether two sides differ, from one figure a restart: ratio, interval, verdict. Pure functions.

The unit of chance is the restart, not the request: a server that starts anew chooses kernels, memory and schedules
anew, and all its requests share them. Figures are compared by their logarithms, so that a difference is a ratio, and
noise that is a share of the figure has the same size on both sides.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["better", "worse", "cannot tell"]

#: Of the interval that is printed.
CONFIDENCE = 0.95
#: A verdict about one figure is wrong at most this often where the sides are equal, and any verdict of a comparison at
#: most `FAMILY` often: with 95 % alone one figure in twenty would be called different.
ERROR = 0.01
FAMILY = 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """The second side over the first, on the scale of logarithms."""

    log_ratio: float
    error: float
    """Standard error of `log_ratio`."""
    freedom: int
    """Degrees of freedom of `error`; 0 = nothing can be said."""
    parameters: int = 3
    """How many numbers were fitted: what the turns have more than that is `freedom`."""

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    def reach(self, confidence: float) -> float:
        """How far the interval goes from `log_ratio` to each side; infinite without a degree of freedom."""
        if self.freedom < 1:
            return math.inf
        return student_quantile((1 + confidence) / 2, self.freedom) * self.error

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The ratio's interval; None without a degree of freedom."""
        if self.freedom < 1:
            return None
        reach = self.reach(confidence)
        return math.exp(self.log_ratio - reach), math.exp(self.log_ratio + reach)

    def with_restarts(self, times: int) -> Estimate:
        """What to expect of `times` as many restarts whose scatter is the same."""
        turns = self.freedom + self.parameters
        return replace(self, error=self.error / math.sqrt(times), freedom=times * turns - self.parameters)


def interleaved(order: str, values: Sequence[float]) -> Estimate:
    """Estimate from turns in the order in which they were taken: `order[i]` ('A' or 'B') gave `values[i]`.

    Least squares of log value = level + side + drift · turn. A machine that grows slower or faster during the run does
    so for both sides: what is linear of it is taken out, at the price of one degree of freedom.
    """
    logs = np.log(np.asarray(values, dtype=float))
    turns = np.arange(len(logs), dtype=float)
    design = np.column_stack(
        [np.ones(len(logs)), [float(side == "B") for side in order], turns - turns.mean()],
    )
    freedom = len(logs) - int(np.linalg.matrix_rank(design))
    if freedom < 1 or len(set(order)) < 2 or np.linalg.matrix_rank(design) < 3:
        return Estimate(_mean_difference(order, logs.tolist()), math.inf, 0)
    solution, *_ = np.linalg.lstsq(design, logs, rcond=None)
    residual = logs - design @ solution
    variance = float(residual @ residual) / freedom
    spread = float(np.linalg.inv(design.T @ design)[1, 1])
    return Estimate(float(solution[1]), math.sqrt(variance * spread), freedom)


def independent(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Welch's estimate, from restarts whose order is not known (B. L. Welch, Biometrika 34, 1947).

    Degrees of freedom are rounded down.
    """
    logs = [[math.log(value) for value in values] for values in (first, second)]
    difference = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    if min(map(len, logs)) < 2:
        return Estimate(difference, math.inf, 0)
    parts = [statistics.variance(values) / len(values) for values in logs]
    total = sum(parts)
    if total == 0:
        return Estimate(difference, 0.0, min(map(len, logs)) - 1, parameters=2)
    freedom = total**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    return Estimate(difference, math.sqrt(total), max(1, math.floor(freedom)), parameters=2)


def judge(estimate: Estimate, *, higher_is_better: bool, smallest: float, figures: int) -> Verdict:
    """Whether the second side is better or worse than the first.

    It is if the interval does not hold 1, at the confidence that `ERROR` and `FAMILY` ask for with `figures` in the
    comparison, and the ratio is at least a share of `smallest` away from 1: less than that is nobody's concern.
    """
    if abs(estimate.log_ratio) <= estimate.reach(1 - error_of(figures)):
        return "cannot tell"
    if abs(estimate.log_ratio) < math.log1p(smallest):
        return "cannot tell"
    return "better" if (estimate.log_ratio > 0) is higher_is_better else "worse"


def error_of(figures: int) -> float:
    """How often a verdict about one of so many figures may be wrong."""
    return min(ERROR, FAMILY / figures)


def least(estimate: Estimate, *, smallest: float, figures: int) -> float | None:
    """The smallest difference, as a share, for which :func:`judge` would have had a verdict with this scatter.

    None where no difference would have been enough.
    """
    reach = estimate.reach(1 - error_of(figures))
    return None if math.isinf(reach) else max(smallest, math.expm1(reach))


def student_cdf(t: float, freedom: int) -> float:
    """Student's distribution for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    square, term, total = math.cos(theta) ** 2, 1.0, 0.0
    if freedom % 2:
        term = math.cos(theta)
        for number in range(1, freedom - 1, 2):
            total += term
            term *= square * (number + 1) / (number + 2)
        inside = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        for number in range(0, freedom - 1, 2):
            total += term
            term *= square * (number + 1) / (number + 2)
        inside = math.sin(theta) * total
    return (1 + inside) / 2


def student_quantile(p: float, freedom: int) -> float:
    """The `t` at which :func:`student_cdf` is `p`, for `p` of at least one half."""
    high = 1.0
    while student_cdf(high, freedom) < p:
        high *= 2
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        if student_cdf(middle, freedom) < p:
            low = middle
        else:
            high = middle
    return high


def _mean_difference(order: str, logs: Sequence[float]) -> float:
    sides = [[value for side, value in zip(order, logs, strict=True) if side == name] for name in "AB"]
    return statistics.fmean(sides[1]) - statistics.fmean(sides[0]) if all(sides) else 0.0
