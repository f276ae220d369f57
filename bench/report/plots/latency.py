"""How latencies are distributed: the share of samples up to each time."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from denizen.bench.report.plots.canvas import Plot, scale, style
from denizen.bench.report.quantities import quantity
from denizen.bench.report.sections import metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.report.plots.canvas import Theme
    from denizen.bench.report.result import Level, Result
    from matplotlib.axes import Axes

#: Have a table, and no plot.
_PLAIN = ("tpot", "audio_s", "leading_silence")
#: How the levels of a comparison begin: side and number of the restart.
_TURN = re.compile(r"^([AB])\d+, ")
#: More lines than this cannot be told apart.
MOST_SERIES = 24
_KNOWN = (("min", 0), ("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100))
#: Points of a line: enough for any screen, with the tail as fine as the middle.
_POINTS = np.unique(np.concatenate([np.linspace(0, 100, 301), 100 - np.geomspace(0.001, 5, 60)]))


def drawn(results: Sequence[Result]) -> list[str]:
    """The metrics that have plots: how long users wait. TPOT has none, being the mean of what ITL shows in full."""
    return [name for name in metrics([level for result in results for level in result.levels]) if name not in _PLAIN]


def plots(results: Sequence[Result]) -> list[Plot]:
    return [plot for metric in drawn(results) if (plot := _plot(results, metric)) is not None]


@dataclass(frozen=True)
class _Line:
    """One line of a plot: a level, or all restarts of one side at one load."""

    result: Result
    name: str
    levels: list[Level]


def _lines(results: Sequence[Result], metric: str) -> list[_Line]:
    found: dict[tuple[int, object], _Line] = {}
    for number, result in enumerate(results):
        turns = result.kind.startswith("compare ")
        for index, level in enumerate(result.levels):
            if metric in level.distributions():
                # Turns of a side belong together: a comparison's lines have no number of the restart.
                name = _TURN.sub(r"\1, ", level.name) if turns else level.name
                line = found.setdefault((number, name if turns else index), _Line(result, name, []))
                line.levels.append(level)
    return list(found.values())


def _plot(results: Sequence[Result], metric: str) -> Plot | None:
    shown = quantity(metric, sampled=True)
    lines = _lines(results, metric)
    left_out = max(0, len(lines) - MOST_SERIES)
    lines = lines[:MOST_SERIES]
    curves = [_curve(line, metric) for line in lines]
    if not curves:
        return None
    # Events that came in one read have no time between them: a log axis would be all theirs.
    middle = [level.distributions()[metric]["p50"] for line in lines for level in line.levels]
    lowest = min((value for value in middle if value > 0), default=0.0) / 20

    def draw(axes: Axes, theme: Theme) -> None:
        values: list[float] = []
        for index, (one, (x, y, exact)) in enumerate(zip(lines, curves, strict=True)):
            colour, line, marker = style(index, theme)
            times = [max(value, lowest) * shown.scale for value in x]
            values += times
            label = one.name if len(results) == 1 else f"{one.result.name}, {one.name}"
            axes.plot(times, y, color=colour, linestyle=line, marker="" if exact else marker, label=label)
        scale(axes, "x", values)
        axes.set_ylim(0, 101)
        axes.set_yticks([0, 25, 50, 75, 90, 100])
        axes.set_xlabel(shown.heading if not shown.unit else f"{shown.label}, {shown.unit}")
        axes.set_ylabel("samples up to it, %")

    pooled = any(len(one.levels) > 1 for one in lines)
    caption = "Every measured sample" + (" of all restarts of a side." if pooled else ".")
    if not all(exact for _, _, exact in curves):
        caption = "Drawn through minimum, p50, p90, p95, p99 and maximum; the run's records would give every sample."
    if left_out:
        caption += f" {left_out} more levels are left out."
    invalid = any(not one.result.valid for one in lines)
    title = f"{shown.label}: distribution"
    if len(lines) == 1:  # without a legend
        title += f", {lines[0].name}"
    return Plot(f"cdf-{metric.replace('_', '-')}", title, caption, draw, invalid)


def _curve(line: _Line, metric: str) -> tuple[list[float], list[float], bool]:
    """Values, percentages up to them, and whether they come from every sample."""
    parts = [line.result.samples(level, metric) for level in line.levels]
    if all(parts):
        samples = [sample for part in parts for sample in part]
        points = _POINTS if len(samples) > len(_POINTS) else np.linspace(0, 100, max(2, len(samples)))
        return [float(value) for value in np.percentile(samples, points)], [float(point) for point in points], True
    found = {
        name: statistics.median(level.distributions()[metric][name] for level in line.levels) for name, _ in _KNOWN
    }
    # A minimum far below says more of one odd sample than of the lower half.
    known = [(found[name], percent) for name, percent in _KNOWN if name != "min" or found["min"] > found["p50"] / 5]
    return [value for value, _ in known], [float(percent) for _, percent in known], False
