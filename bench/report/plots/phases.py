"""Where a step's time goes: the phases of its two threads as stacked bars, beside the whole iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from denizen.bench.report.figures import all_phases
from denizen.bench.report.plots.canvas import Plot, plain, style
from denizen.bench.report.quantities import words
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.report.plots.canvas import Theme
    from denizen.bench.report.result import Result
    from matplotlib.axes import Axes

#: Groups in one plot; those with most steps.
_MOST = 8
#: The sum of others, which are drawn one by one.
_SUMS = ("plan thread",)
_ITERATION = "iteration"


def plots(results: Sequence[Result]) -> list[Plot]:
    found = []
    for number, result in enumerate(results):
        for index, (name, groups) in enumerate(all_phases(result.figures).items()):
            parts = [result.name if len(results) > 1 else "", name.removeprefix("phases, ")]
            title = ": ".join(["Phases of a step", *(part for part in parts if part and part != "phases")])
            stem = "-".join(
                ["phases", *([str(number + 1)] if len(results) > 1 else []), *([str(index + 1)] if index else [])]
            )
            found.append(_plot(stem, title, groups, invalid=not result.valid))
    return found


def _plot(stem: str, title: str, groups: dict[str, Any], *, invalid: bool) -> Plot:
    labels = sorted(groups, key=lambda label: -groups[label]["steps"])[:_MOST]
    chosen = {label: groups[label]["us"] for label in groups if label in labels}
    names = list(dict.fromkeys(name for us in chosen.values() for name in us))
    colours = {name: index for index, name in enumerate(name for name in names if name not in (*_SUMS, _ITERATION))}

    def draw(axes: Axes, theme: Theme) -> None:
        ticks = []
        for row, (label, us) in enumerate(chosen.items()):
            ticks.append((row, label))
            for offset, prefix in ((-0.27, "plan_"), (0.0, "device_"), (0.0, "")):
                left = 0.0
                for name, values in us.items():
                    own = next((known for known in ("plan_", "device_") if name.startswith(known)), "")
                    if name in colours and own == prefix:
                        hatch = "" if colours[name] < len(theme.series) else "//"
                        axes.barh(
                            row + offset, values["mean"], 0.25, left, color=style(colours[name], theme)[0], hatch=hatch,
                            label=words(name), edgecolor=theme.grid, linewidth=0.5,
                        )  # fmt: skip
                        left += values["mean"]
            if whole := us.get(_ITERATION):
                axes.barh(
                    row + 0.27, whole["mean"], 0.25, fill=False, edgecolor=theme.text, linewidth=1.2, label=_ITERATION
                )
        axes.set_yticks([row for row, _ in ticks], [label.replace(", ", "\n", 1) for _, label in ticks], fontsize=9)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(plain())
        axes.set_xlabel("µs a step, mean")
        _once(axes)

    caption = "Above: the plan thread. Middle: the device thread. Outlined: the whole iteration."
    if len(groups) > len(chosen):
        caption += f" The {len(chosen)} groups with most steps of {len(groups)}; the table has all."
    return Plot(stem, title, caption, draw, invalid, rows=3 * len(chosen))


def _once(axes: Axes) -> None:
    """Every phase once in the legend, however many bars it has."""
    seen: set[str] = set()
    for container in axes.containers:
        label = str(container.get_label())
        if label in seen:
            container.set_label("_" + label)
        seen.add(label)
