"""What load does to latency: rate against p95, and throughput against the speed that each user sees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from denizen.bench.report.plots.canvas import Plot, scale, style
from denizen.bench.report.plots.latency import drawn
from denizen.bench.report.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from denizen.bench.report.plots.canvas import Theme
    from denizen.bench.report.result import Level, Result
    from matplotlib.axes import Axes

#: Throughput, and the time that one unit of it takes a user.
_PARETO = (
    ("output_tokens_per_s", "tpot", "output tokens/s, all users", "tokens/s a user (1 / median TPOT)"),
    (
        "audio_seconds_per_s",
        "rtf",
        "audio seconds/s, all users",
        "audio seconds/s a user (1 / median RTF)",
    ),
)


#: The part of a level's name that says how much load it is.
_LOAD = re.compile(r"c=\d+|concurrency \d+|[\d.e+]+/s|rate [\d.e+]+ req/s")


@dataclass(frozen=True)
class _Point:
    x: float
    y: float
    load: float
    """Users, or requests/s."""
    failed: bool

    @property
    def label(self) -> str:
        return f"{self.load:.10g}"


def plots(results: Sequence[Result]) -> list[Plot]:
    found = [_against_rate(results, metric, mode) for mode in ("open", "closed") for metric in drawn(results)]
    found += [_pareto(results, *names) for names in _PARETO]
    return [plot for plot in found if plot is not None]


def _against_rate(results: Sequence[Result], metric: str, mode: str) -> Plot | None:
    """p95 over rate; of a metric with a bound the bound's own statistic, and the bound."""
    shown = quantity(metric, sampled=True)
    statistic, limit = _bound(results, metric, mode)

    def point(level: Level) -> _Point | None:
        found = level.distributions().get(metric)
        offered = level.load.get("rate") if mode == "open" else level.summary.get("requests_per_s")
        if level.load.get("mode") != mode or not found or statistic not in found or not offered:
            return None
        return _Point(offered, found[statistic] * shown.scale, _load(level), bool(level.failures))

    across = "offered rate, requests/s (Poisson)" if mode == "open" else "rate reached, requests/s"
    title = f"{shown.label} {statistic} against rate" + ("" if mode == "open" else ", closed loop")
    name = f"rate-{metric.replace('_', '-')}-{statistic}" + ("" if mode == "open" else "-closed")
    up = f"{shown.label} {statistic}" + (f", {shown.unit}" if shown.unit else "")
    bound = None if limit is None else limit * shown.scale
    return _chart(results, point, name, title, across, up, label=(6, -11) if mode == "closed" else None, bound=bound)


def _bound(results: Sequence[Result], metric: str, mode: str) -> tuple[str, float | None]:
    """Statistic and limit of the first bound on a metric that distributions have."""
    for result in results:
        for level in result.levels:
            if level.load.get("mode") != mode:
                continue
            for name, limit in ((level.summary.get("goodput") or {}).get("bounds") or {}).items():
                own, _, statistic = name.rpartition("_")
                if own == metric and statistic in (level.distributions().get(metric) or {}):
                    return statistic, limit
    return "p95", None


def _pareto(results: Sequence[Result], rate: str, each: str, up: str, across: str) -> Plot | None:
    def point(level: Level) -> _Point | None:
        found, total = level.distributions().get(each), level.summary.get(rate)
        if not found or not total or found["p50"] <= 0:
            return None
        return _Point(1 / found["p50"], total, _load(level), bool(level.failures))

    title = f"Throughput against speed a user, {rate.partition('_per')[0].replace('_', ' ')}"
    return _chart(
        results, point, f"pareto-{rate.partition('_per')[0].replace('_', '-')}", title, across, up, label=(5, 4)
    )


def _chart(
    results: Sequence[Result],
    point: Callable[[Level], _Point | None],
    name: str,
    title: str,
    across: str,
    up: str,
    *,
    label: tuple[int, int] | None,
    bound: float | None = None,
) -> Plot | None:
    """A line for each family of levels of each result; nothing for a single point, which the table says better."""
    families: dict[str, list[_Point]] = {}
    invalid = False
    for result in results:
        for level in result.levels:
            if (found := point(level)) is not None:
                own = _family(level)
                key = ", ".join(part for part in (result.name if len(results) > 1 or not own else "", own) if part)
                families.setdefault(key, []).append(found)
                invalid |= not result.valid
    for family in families.values():
        family.sort(key=lambda found: found.load)
    points = [found for family in families.values() for found in family]
    if len(points) < 2:
        return None

    def draw(axes: Axes, theme: Theme) -> None:
        for index, (family, found) in enumerate(families.items()):
            colour, line, marker = style(index, theme)
            if len({p.load for p in found}) < len(found):
                line = ""  # restarts at one load: no way leads from one to the next
            axes.plot(
                [p.x for p in found], [p.y for p in found], color=colour, linestyle=line, marker=marker, label=family
            )
        if failed := [p for p in points if p.failed]:
            axes.plot(
                [p.x for p in failed], [p.y for p in failed], color=theme.bad, marker="x", markersize=11,
                markeredgewidth=2.5, linestyle="", label="requests failed",
            )  # fmt: skip
        scale(axes, "x", [p.x for p in points])
        if bound is not None:
            axes.axhline(bound, color=theme.bad, linestyle=(0, (6, 2)), linewidth=1.2, label=f"SLO: {bound:g}")
        scale(axes, "y", [p.y for p in points] + ([] if bound is None else [bound]))
        if label is not None:
            _name(axes, points, label, theme)
        axes.set_xlabel(across)
        axes.set_ylabel(up)

    caption = "One point a load level" + (", with its users or its requests/s." if label is not None else ".")
    return Plot(name, title, caption, draw, invalid)


def _name(axes: Axes, points: Sequence[_Point], offset: tuple[int, int], theme: Theme) -> None:
    """Writes each point's load beside it, `offset` points of type away, but not over another one's."""
    taken: list[tuple[float, float]] = []
    for p in points:
        x, y = axes.transAxes.inverted().transform(axes.transData.transform((p.x, p.y)))
        if all(abs(x - other) > 0.07 or abs(y - height) > 0.06 for other, height in taken):
            axes.annotate(p.label, (p.x, p.y), offset, textcoords="offset points", fontsize=9, color=theme.muted)
            taken.append((x, y))


def _load(level: Level) -> float:
    value: float = level.load.get("concurrency") or level.load.get("rate") or 0
    return value


def _family(level: Level) -> str:
    """Levels whose names differ in numbers alone belong to one line; those without a name of their own to one too."""
    if "name" not in level.load:
        return ""
    parts = [part for part in str(level.load["name"]).split(", ") if not _LOAD.fullmatch(part)]
    return re.sub(r"\s*\d+(\.\d+)?", "", ", ".join(parts)).strip()
