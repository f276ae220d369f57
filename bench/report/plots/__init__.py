"""Plots of results: PNG files, and SVG for the HTML page that follows its colours.

Which plots there are is decided by what the results hold, not by the sub-command that they come from. Nothing here
needs a display: figures are drawn without pyplot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.bench.report.plots import compare, latency, load, phases, spread
from denizen.bench.report.plots.canvas import Plot, write_png

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.report.result import Result

__all__ = ["Plot", "plots", "write_png"]


def plots(results: Sequence[Result]) -> list[Plot]:
    """Every plot that the results have numbers for, several results in one plot where they share axes."""
    return [
        *compare.plots(results),
        *load.plots(results),
        *latency.plots(results),
        *phases.plots(results),
        *spread.plots(results),
    ]
