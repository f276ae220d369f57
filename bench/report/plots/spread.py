"""Distributions that are not of a load: round trips, latencies side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from denizen.bench.report.figures import is_phases
from denizen.bench.report.plots.canvas import Plot, scale, style
from denizen.bench.report.quantities import is_distribution, quantity, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from denizen.bench.report.plots.canvas import Theme
    from denizen.bench.report.result import Result
    from matplotlib.axes import Axes


def plots(results: Sequence[Result]) -> list[Plot]:
    """One a set of distributions: the sets of the same name of several results share one."""
    sets: dict[str, dict[str, tuple[Result, dict[str, float]]]] = {}
    for result in results:
        for name, values in _sets("", result.figures):
            for key, found in values.items():
                label = words(key) if len(results) == 1 else f"{result.name}\n{words(key)}"
                sets.setdefault(name, {})[label] = (result, found)
    return [_plot(name, found) for name, found in sets.items()]


def _sets(name: str, value: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if is_phases(value):
        return
    samples = {key: part for key, part in value.items() if is_distribution(part)}
    if samples:
        yield name or "figures", samples
    for key, part in value.items():
        if isinstance(part, dict) and key not in samples:
            yield from _sets(f"{name}-{key}" if name else key, part)


def _plot(name: str, found: dict[str, tuple[Result, dict[str, float]]]) -> Plot:
    shown = quantity(name)

    def draw(axes: Axes, theme: Theme) -> None:
        values: list[float] = []
        for row, (_, part) in enumerate(found.values()):
            colour, _, _ = style(0, theme)
            ends = [part[key] * shown.scale for key in ("min", "p50", "p95", "p99", "max")]
            values += ends
            axes.plot([ends[0], ends[4]], [row, row], color=theme.muted, linewidth=1, marker="|", label="min … max")
            axes.plot([ends[1], ends[3]], [row, row], color=colour, linewidth=3, alpha=0.55, label="p50 … p99")
            axes.plot([ends[1]], [row], color=colour, marker="o", markersize=8, linestyle="", label="p50")
            axes.plot([ends[2]], [row], color=style(1, theme)[0], marker="D", linestyle="", label="p95")
        for line in axes.lines[4:]:
            line.set_label(f"_{line.get_label()}")
        axes.set_yticks(range(len(found)), list(found), fontsize=9)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        scale(axes, "x", values)
        axes.set_xlabel(shown.unit or shown.label)

    invalid = any(not result.valid for result, _ in found.values())
    title = f"{(shown.label or words(name)).capitalize()}: spread"
    return Plot(f"spread-{name.replace('_', '-').replace(' ', '-')}", title, "", draw, invalid, rows=2 * len(found))
