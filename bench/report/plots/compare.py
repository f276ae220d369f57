"""B against A: how much each metric changed, with its interval and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.bench.report.figures import VERDICTS, change_name, is_comparison
from denizen.bench.report.plots.canvas import Plot, Theme, plain, style
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from denizen.bench.report.result import Result
    from matplotlib.axes import Axes


def plots(results: Sequence[Result]) -> list[Plot]:
    found = []
    for number, result in enumerate(results, 1):
        if is_comparison(result.figures):
            stem = "compare" if len(results) == 1 else f"compare-{number}"
            found.append(_plot(stem, result, len(results) > 1))
    return found


def _plot(stem: str, result: Result, several: bool) -> Plot:
    figures = result.figures
    metrics = {name: found for name, found in figures["metrics"].items() if found.get("ratio") is not None}

    def draw(axes: Axes, theme: Theme) -> None:
        colours = {"better": style(0, theme)[0], "worse": style(1, theme)[0]}
        ticks = []
        for row, (name, found) in enumerate(metrics.items()):
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
            ticks.append(_tick(name, found, verdict))
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

    title = "B against A" + (f": {result.name}" if several else "")
    caption = "Bar: ratio of the medians. Line: its 95 % interval; one that holds 0 says nothing."
    return Plot(stem, title, caption, draw, not result.valid, rows=2 * len(metrics))


def _tick(name: str, found: dict[str, Any], verdict: str) -> str:
    better = found.get("higher_is_better")
    direction = "" if better is None else ", higher is better" if better else ", lower is better"
    return f"{change_name(name)}{direction}\n{found['ratio']:.3f}: {verdict}"
