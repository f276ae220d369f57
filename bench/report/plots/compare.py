"""B against A: how much each metric changed, with its interval and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from denizen.bench.report.figures import VERDICTS, comparison, figure_quantity
from denizen.bench.report.plots.canvas import Plot, Theme, plain, style
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.report.result import Result
    from matplotlib.axes import Axes


def plots(results: Sequence[Result]) -> list[Plot]:
    """One plot a comparison and load level."""
    found = []
    for number, result in enumerate(results, 1):
        by_load: dict[str, list[dict[str, Any]]] = {}
        for row in comparison(result.figures):
            by_load.setdefault(row["load"], []).append(row)
        for index, (load, rows) in enumerate(by_load.items(), 1):
            parts = [number] * (len(results) > 1) + [index] * (len(by_load) > 1)
            stem = "-".join(["compare", *map(str, parts)])
            title = ": ".join([*([result.name] if len(results) > 1 else []), f"B against A, {load}"])
            found.append(_plot(stem, title, rows, invalid=not result.valid))
    return found


def _plot(stem: str, title: str, rows: list[dict[str, Any]], *, invalid: bool) -> Plot:
    def draw(axes: Axes, theme: Theme) -> None:
        colours = {"better": style(0, theme)[0], "worse": style(1, theme)[0]}
        ticks = []
        for row, found in enumerate(rows):
            verdict = str(found.get("verdict", ""))
            change = 100 * (found["ratio"] - 1)
            hatch = "" if verdict in colours else "///"
            axes.barh(
                row, change, 0.5, color=colours.get(verdict, theme.grid), hatch=hatch, edgecolor=theme.muted,
                label=f"B is {verdict}" if verdict in VERDICTS[:2] else verdict,
            )  # fmt: skip
            if found.get("low") is not None and found.get("high") is not None:
                low, high = (100 * (found[end] - 1) for end in ("low", "high"))
                axes.errorbar(
                    [change], [row], xerr=[[change - low], [high - change]], color=theme.text, capsize=4, linewidth=1.4
                )
            ticks.append(_tick(found, verdict))
        axes.axvline(0, color=theme.text, linewidth=1)
        axes.set_yticks(range(len(ticks)), ticks, fontsize=9)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(plain())
        axes.set_xlabel("change from A to B, %")
        axes.margins(x=0.12)
        seen: set[str] = set()
        for container in axes.containers:
            label = str(container.get_label())
            container.set_label("_" + label if label in seen else label)
            seen.add(label)

    caption = "Bar: the ratio. Line: its 95 % interval; one that holds 0 says nothing."
    return Plot(stem, title, caption, draw, invalid, rows=2 * len(rows))


def _tick(row: dict[str, Any], verdict: str) -> str:
    direction = "higher" if row.get("higher_is_better") else "lower"
    return f"{figure_quantity(row['figure']).label}, {direction} is better\n{row['ratio']:.3f}: {verdict}"
