"""The HTML report: one file that asks for nothing from elsewhere."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from denizen.bench.report.figures import all_phases, comparison, figure_quantity
from denizen.bench.report.markdown import machine, source
from denizen.bench.report.plots.canvas import DARK, LIGHT
from denizen.bench.report.quantities import cell, is_distribution, number, quantity, words
from denizen.bench.report.sections import sections
from denizen.bench.report.tables import Table
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from denizen.bench.report.plots.canvas import Plot, Theme
    from denizen.bench.report.result import Level, Result

_HERE = Path(__file__).parent
#: Throughput, the first that a result has; latencies, those of them that it has.
_RATES = ("output_tokens_per_s", "audio_seconds_per_s", "requests_per_s")
_LATENCIES = (("first_playable", "p95"), ("first_audible", "p95"), ("ttft", "p95"), ("itl", "p99"), ("e2e", "p95"))
_MOST_TILES = 8


@dataclass(frozen=True)
class Tile:
    """A key figure."""

    label: str
    value: str
    unit: str
    note: str
    bad: bool = False


def write(results: Sequence[Result], plots: Sequence[Plot], path: Path) -> None:
    """Writes the page of one result or several."""
    loader = jinja2.FileSystemLoader(_HERE)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    html = environment.get_template("page.html").render(
        title=_title(results),
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        light=Markup(_variables(LIGHT)),
        dark=Markup(_variables(DARK)),
        heads=[_head(result) for result in results],
        invalid=[result for result in results if not result.valid],
        plots=[(plot, Markup(plot.svg())) for plot in plots],
        sections=sections(results),
        environment=environment_table(results),
        options=options_table(results),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def _title(results: Sequence[Result]) -> str:
    name = " · ".join(dict.fromkeys(f"denizen-bench {result.kind}" for result in results))
    return name if all(result.valid for result in results) else f"INVALID · {name}"


def _variables(theme: Theme) -> str:
    """A theme as CSS custom properties."""
    plain = {"text": theme.text, "muted": theme.muted, "grid": theme.grid, "bad": theme.bad}
    series = {f"series-{number}": colour for number, colour in enumerate(theme.series)}
    return "".join(f"--{name}:{colour};" for name, colour in (plain | series).items())


def _head(result: Result) -> dict[str, Any]:
    environment = result.environment
    return {
        "result": result,
        "machine": machine(environment),
        "source": source(environment),
        "started": str(environment.get("started", "")).replace("T", " "),
        "command": command(environment),
        "tiles": tiles(result),
    }


def command(environment: dict[str, Any]) -> str:
    """What repeats the run, for a shell; the path of the program is of no use elsewhere."""
    words_of_it = [str(word) for word in environment.get("command") or []]
    if not words_of_it:
        return ""
    return shlex.join([Path(words_of_it[0]).name.replace("__main__.py", "denizen-bench"), *words_of_it[1:]])


def tiles(result: Result) -> list[Tile]:
    """The few numbers that a reader looks for first."""
    found = list(_comparison(result)) or list(_of_load(result))
    if not found:
        found = [*_of_phases(result), *_of_figures(result)]
    return found[:_MOST_TILES]


def _comparison(result: Result) -> Iterator[Tile]:
    for row in comparison(result.figures):
        low, high, verdict = row.get("low"), row.get("high"), str(row["verdict"])
        interval = "" if low is None or high is None else f"; 95 %: {low:.3f} … {high:.3f}"
        label = f"{figure_quantity(row['figure']).label}, B / A"
        yield Tile(label, f"{row['ratio']:.3f}", "×", f"{verdict} at {row['load']}{interval}", verdict == "worse")


def _of_load(result: Result) -> Iterator[Tile]:
    if not result.levels:
        return
    # Levels that were measured alike compete; those of a mix are of several kinds.
    kinds: dict[frozenset[str], list[Level]] = {}
    for level in result.levels:
        kinds.setdefault(frozenset(level.summary), []).append(level)
    for levels in kinds.values():
        most = len(_LATENCIES) if len(kinds) == 1 else 1
        yield from _best(levels, most)
    yield _requests(result.levels)


def _best(levels: Sequence[Level], latencies: int) -> Iterator[Tile]:
    """Of the level with most throughput: that, so many latencies, and the word error rate."""
    rate = next((name for name in _RATES if any(level.summary.get(name) for level in levels)), None)
    best = max(levels, key=lambda level: level.summary.get(rate or "") or 0)
    if rate is not None:
        shown = quantity(rate)
        yield Tile(f"highest {shown.label}", shown.show(best.summary[rate]), "", f"at {best.name}")
    found = [(name, column) for name, column in _LATENCIES if name in best.distributions()]
    for name, column in found[:latencies]:
        shown = quantity(name, sampled=True)
        value = best.distributions()[name][column]
        yield Tile(f"{shown.label} {column}", shown.show(value), shown.unit, f"at {best.name}")
    wer = ((best.summary.get("quality") or {}).get("wer") or {}).get("rate")
    if wer is not None:
        yield Tile("word error rate", number(100 * wer), "%", f"at {best.name}")


def _requests(levels: Sequence[Level]) -> Tile:
    total = sum(level.summary.get("requests") or 0 for level in levels)
    failed = sum(level.summary.get("failed") or 0 for level in levels)
    note = f"of {number(total)} measured requests, {len(levels)} load level{'s' if len(levels) > 1 else ''}"
    return Tile("failed", number(failed), "", note, failed > 0)


def _of_phases(result: Result) -> Iterator[Tile]:
    for groups in all_phases(result.figures).values():
        for label, group in groups.items():
            if iteration := group["us"].get("iteration"):
                yield Tile("iteration p50", number(iteration["p50"]), "µs", label)


def _of_figures(result: Result) -> Iterator[Tile]:
    for name, value in result.figures.items():
        shown = quantity(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield Tile(shown.label or words(name), shown.show(value), shown.unit, "")
        elif isinstance(value, dict):
            for key, part in value.items():
                if is_distribution(part):
                    yield Tile(f"{shown.label} p50", shown.show(part["p50"]), shown.unit, words(key))
            if isinstance(value.get("median"), int | float):
                note = f"{cell(value.get('min'))} … {cell(value.get('max'))} over the rounds"
                yield Tile(words(name), number(value["median"]), "×", note)


def environment_table(results: Sequence[Result]) -> Table:
    """Where the results were measured, side by side."""
    columns = [dict(_facts(result)) for result in results]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    return Table(["", *(result.name for result in results)], rows)


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    for name, value in result.environment.items():
        if name == "command":
            continue
        if name in ("gpus", "gpus_after"):
            for number_of_it, gpu in enumerate(value or []):
                what = f"GPU {number_of_it}" + (" after the run" if name == "gpus_after" else "")
                for key, text in gpu.items():
                    yield f"{what}: {key}", cell(text or None)
            if name == "gpus" and not value:
                yield "GPUs", "none"
        elif name == "server" and isinstance(value, list):
            yield name, shlex.join(map(str, value))
        elif name == "memory_bytes" and value:
            yield "memory", f"{value / 2**30:.1f} GiB"
        elif isinstance(value, dict):
            for key, text in value.items():
                yield f"{'package' if name == 'packages' else 'variable'} {key}", cell(text)
        else:
            yield words(name), cell(value)
    for name, value in result.data.items():
        yield f"data: {words(name)}", _brief(value)


def _brief(value: Any) -> str:
    if is_distribution(value):
        return f"mean {number(value['mean'])}, {number(value['min'])} … {number(value['max'])}"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {cell(part)}" for key, part in value.items())
    return cell(value)


def options_table(results: Sequence[Result]) -> Table:
    columns = [{words(name): _brief(value) for name, value in result.options.items()} for result in results]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    return Table(["", *(result.name for result in results)], rows)
