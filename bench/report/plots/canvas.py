"""What all plots share: colours, axes, legends, and drawing to PNG and SVG."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


@dataclass(frozen=True)
class Theme:
    """Colours as `#rrggbb`. Each series has a line style and a marker besides, for those who cannot tell its colour."""

    text: str
    muted: str
    grid: str
    bad: str
    series: tuple[str, ...]


#: On white: at least 3 : 1 in contrast, and told apart with any of the three colour blindnesses (tests check both).
LIGHT = Theme(
    text="#1a1d21",
    muted="#5b636d",
    grid="#d9dde2",
    bad="#b3261e",
    series=("#0072b2", "#d55e00", "#222222", "#aa3377", "#332288", "#661100"),
)
#: The same on a dark page.
DARK = Theme(
    text="#e6e8eb",
    muted="#a3abb5",
    grid="#3a4048",
    bad="#ff8a80",
    series=("#b0a0ff", "#ee7733", "#ffffff", "#44bb99", "#f0e442", "#ffb77a"),
)
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Stand for colours in an SVG until the page's style sheet gives them: a page has two themes, a picture one.
_NAMES = ("text", "muted", "grid", "bad", *(f"series-{number}" for number in range(len(LIGHT.series))))
_PLACES = {name: f"#0102{number + 16:02x}" for number, name in enumerate(_NAMES)}
_PAGE = Theme(
    text=_PLACES["text"],
    muted=_PLACES["muted"],
    grid=_PLACES["grid"],
    bad=_PLACES["bad"],
    series=tuple(_PLACES[f"series-{number}"] for number in range(len(LIGHT.series))),
)
_WIDTH, _HEIGHT, _LEGEND_ROW, _BAR = 4.6, 3.2, 0.2, 0.24  # inches
_PIXELS_AN_INCH = 200
_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "denizen",
}


@dataclass(frozen=True)
class Plot:
    """`draw` puts the data on axes in a theme's colours; the legend is made from the labels that it gives."""

    name: str
    """The file's stem."""
    title: str
    caption: str
    draw: Callable[[Axes, Theme], None]
    invalid: bool = False
    """Whether an invalid result is in it: it is then marked all over."""
    rows: int = 0
    """Of a plot that grows with its bars."""

    def svg(self) -> str:
        """An `<svg>` element whose colours are CSS variables: `--text`, `--series-0` and so on."""
        out = io.StringIO()
        with matplotlib.rc_context(_SETTINGS):
            self._figure(_PAGE, title=False).savefig(out, format="svg", transparent=True)
        text = out.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        # Several pictures share a page: their ids must not meet.
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = re.sub(r'(href="#|url\(#)', rf"\g<1>{self.name}-", text)
        for name, place in _PLACES.items():
            text = text.replace(place, f"var(--{name})")
        return text.replace("<svg ", f'<svg role="img" aria-label="{escape(self.title)}" ', 1)

    def png(self, path: Path) -> None:
        with matplotlib.rc_context(_SETTINGS):
            self._figure(LIGHT, title=True).savefig(path, format="png", dpi=_PIXELS_AN_INCH, facecolor="white")

    def _figure(self, theme: Theme, *, title: bool) -> Figure:
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        self.draw(axes, theme)
        _paint(axes, theme)
        height = max(_HEIGHT, 0.9 + _BAR * self.rows)
        handles, labels = axes.get_legend_handles_labels()
        if len(labels) > 1:
            columns = max(1, min(len(labels), 54 // (max(map(len, labels)) + 7)))
            height += _LEGEND_ROW * math.ceil(len(labels) / columns)
            # Below the axes, where it covers no data.
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, labelcolor=theme.text)
        figure.set_size_inches(_WIDTH, height)
        if title:
            axes.set_title(self.title, color=theme.text)
        if self.invalid:
            figure.text(
                0.5, 0.5, "INVALID", color=theme.bad, alpha=0.3, fontsize=44, weight="bold", rotation=24,
                ha="center", va="center", zorder=10,
            )  # fmt: skip
        return figure


def write_png(plots: Sequence[Plot], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        plot.png(folder / f"{plot.name}.png")


def style(index: int, theme: Theme) -> tuple[str, str, str]:
    """Colour, line style and marker of a series."""
    colours = len(theme.series)
    return theme.series[index % colours], LINES[index // colours % len(LINES)], MARKERS[index % len(MARKERS)]


def scale(axes: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    """A log axis for values that span more than a factor of twenty, else a linear one, from zero if none is below."""
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    axes.margins(0.08)
    axes.autoscale_view()
    positive = [value for value in values if value > 0]
    if positive and min(values) >= 0:
        if max(positive) > 20 * min(positive):
            (axes.set_xscale if which == "x" else axes.set_yscale)("log")
            decades = math.log10(max(positive) / min(positive))
            axis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2.5 else (1.0, 2.0, 5.0)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(plain())
            return
        if which == "x":
            axes.set_xlim(left=0)
        else:
            axes.set_ylim(bottom=0)
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(plain())


def plain() -> FuncFormatter:
    """Numbers at ticks, without powers of ten."""
    return FuncFormatter(lambda value, _: f"{value:,.10g}")


def _paint(axes: Axes, theme: Theme) -> None:
    for spine in axes.spines.values():
        spine.set_color(theme.muted)
    axes.tick_params(colors=theme.muted, labelcolor=theme.text, grid_color=theme.grid)
    axes.xaxis.label.set_color(theme.text)
    axes.yaxis.label.set_color(theme.text)
