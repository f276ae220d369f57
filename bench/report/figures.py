"""Tables of a result's `figures`: numbers that are not a load, whatever sub-command they come from.

What is told apart by its shape: distributions, phases of steps, a comparison, numbers in one or two dimensions.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from denizen.bench.report.quantities import (
    COLUMNS,
    MISSING,
    Quantity,
    cell,
    is_distribution,
    is_scalar,
    quantity,
    words,
)
from denizen.bench.report.tables import Section, Table

VERDICTS = ("better", "worse", "cannot tell")
#: More groups of steps than this share one table.
_PHASES_IN_FULL = 2


def figure_sections(figures: dict[str, Any]) -> list[Section]:
    if rows := comparison(figures):
        others = {name: value for name, value in figures.items() if name not in ("compare", "notes")}
        notes = [f"note: {note}" for note in figures.get("notes") or []]
        return [Section("B against A", [compare_table(rows)], notes), *figure_sections(others)]
    if is_phases(figures):
        return phase_sections("", figures)
    found: list[Section] = []
    plain = {name: value for name, value in figures.items() if _is_cell(value)}
    if plain:
        found.append(Section("Figures", [_pairs(plain)]))
    found += _alike(figures)
    shown = {name for name, value in figures.items() if _is_flat(value)} | plain.keys()
    for name, value in figures.items():
        if name not in shown:
            found += _walk(_label(name), name, value)
    return found


def comparison(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a comparison: one a load and figure; empty if the figures hold none."""
    rows = figures.get("compare")
    if not isinstance(rows, list):
        return []
    return [row for row in rows if isinstance(row, dict) and {"load", "figure", "ratio", "verdict"} <= row.keys()]


def is_phases(value: Any) -> bool:
    """Whether a JSON value has, by the name of a group of steps, `steps` and `us`: a distribution a phase."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(group, dict) and {"steps", "us"} <= group.keys() for group in value.values())
    )


def all_phases(figures: dict[str, Any], name: str = "") -> dict[str, dict[str, Any]]:
    """Every set of groups of steps in the figures, by the names that lead to it."""
    if is_phases(figures):
        return {name: figures}
    found: dict[str, dict[str, Any]] = {}
    for key, value in figures.items():
        if isinstance(value, dict):
            found |= all_phases(value, f"{name}, {words(key)}" if name else words(key))
    return found


def compare_table(rows: list[dict[str, Any]]) -> Table:
    """B over A: medians of the restarts, their ratio, its interval and the verdict."""
    body = []
    for row in rows:
        shown = figure_quantity(row["figure"])
        low, high = row.get("low"), row.get("high")
        interval = MISSING if low is None or high is None else f"{low:.3f} … {high:.3f}"
        medians = [shown.show(statistics.median(row[side])) if row.get(side) else MISSING for side in "ab"]
        direction = "higher" if row.get("higher_is_better") else "lower"
        least = MISSING if row.get("least") is None else f"{100 * row['least']:.1f} %"
        ratio = f"{row['ratio']:.3f}"
        body.append([row["load"], shown.heading, *medians, ratio, interval, direction, row["verdict"], least])
    return Table(["load", "figure", "A", "B", "B / A", "95 % interval", "better is", "B is", "could tell"], body, 2)


def figure_quantity(name: str) -> Quantity:
    """Of `output_tokens_per_s`, or a statistic of samples: `ttft.p50`."""
    metric, _, statistic = name.partition(".")
    shown = quantity(metric, sampled=bool(statistic))
    return replace(shown, label=f"{shown.label} {statistic}".strip())


def phase_sections(title: str, groups: dict[str, Any]) -> list[Section]:
    """Microseconds a step: all percentiles of few groups, three numbers a phase of many."""
    if len(groups) > _PHASES_IN_FULL:
        names = list(dict.fromkeys(name for group in _fullest_first(groups) for name in group["us"]))
        rows = [
            [label, column, cell(group["steps"]), *(_whole(group["us"].get(name), column) for name in names)]
            for label, group in groups.items()
            for column in ("mean", "p50", "p95")
        ]
        return [
            Section(
                _joined("Phases of a step", title), [Table(["µs a step", "", "steps", *map(words, names)], rows, 2)]
            )
        ]
    found = []
    for label, group in groups.items():
        body = [
            [words(name), *(cell(values.get(column)) for column in COLUMNS)] for name, values in group["us"].items()
        ]
        heading = f"{label}: {cell(group['steps'])} steps"
        found.append(Section(_joined(title, heading), [Table(["µs a step", *COLUMNS], body)]))
    return found


def _fullest_first(groups: dict[str, Any]) -> list[Any]:
    # A group may lack a phase; the order is that of the group that has most.
    return sorted(groups.values(), key=lambda group: -len(group["us"]))


def _whole(values: dict[str, float] | None, column: str) -> str:
    return MISSING if values is None else f"{values[column]:,.0f}"


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def _is_cell(value: Any) -> bool:
    return is_scalar(value) or (isinstance(value, list) and all(map(is_scalar, value)))


def _is_flat(value: Any) -> bool:
    """An object of plain values only."""
    return isinstance(value, dict) and bool(value) and not is_distribution(value) and all(map(_is_cell, value.values()))


def _pairs(values: dict[str, Any], title: str = "") -> Table:
    return Table(
        ["", "value"], [[quantity(name).heading or name, _show(name, value)] for name, value in values.items()]
    )


def _show(name: str, value: Any) -> str:
    return quantity(name).show(value)


def _alike(figures: dict[str, Any]) -> list[Section]:
    """Flat objects; those with the same keys share one table."""
    by_keys: dict[tuple[str, ...], list[str]] = {}
    for name, value in figures.items():
        if _is_flat(value):
            by_keys.setdefault(tuple(value), []).append(name)
    found = []
    for keys, names in by_keys.items():
        if len(names) == 1:
            [name] = names
            shown = quantity(name)
            rows = [[_row_name(key), _show_as(shown, key, value)] for key, value in figures[name].items()]
            found.append(Section(_title(_label(name)), [Table(["", shown.unit or "value"], rows)]))
        else:
            rows = [[words(name), *(_show(key, figures[name][key]) for key in keys)] for name in names]
            found.append(Section("Figures", [Table(["", *(quantity(key).heading for key in keys)], rows)]))
    return found


def _show_as(parent: Quantity, key: str, value: Any) -> str:
    return quantity(key).show(value) if quantity(key).unit else parent.show(value)


def _label(name: str) -> str:
    """A heading: the unit stands in the table."""
    return quantity(name).label or words(name)


def _row_name(key: str) -> str:
    return quantity(key).heading or words(key)


def _walk(title: str, name: str, value: Any) -> list[Section]:
    if is_distribution(value):
        value = {name: value}
    if is_phases(value):
        return phase_sections("" if title == "phases" else title.removeprefix("phases, "), value)
    if isinstance(value, list):
        value = {str(index): part for index, part in enumerate(value, 1)}
    found: list[Section] = []
    unit = quantity(name)
    samples = {key: part for key, part in value.items() if is_distribution(part)}
    if samples:
        found.append(_samples(title, unit, samples))
    plain = {key: part for key, part in value.items() if _is_cell(part)}
    if plain:
        rows = [[_row_name(key), _show_as(unit, key, part)] for key, part in plain.items()]
        found.append(Section(_title(title), [Table(["", unit.unit or "value"], rows)]))
    rest = {key: part for key, part in value.items() if key not in samples and key not in plain}
    if rest and all(map(_is_flat, rest.values())):
        columns = list(dict.fromkeys(column for part in rest.values() for column in part))
        body = [[words(key), *(_show(column, part.get(column)) for column in columns)] for key, part in rest.items()]
        header = ["", *(quantity(column).heading or column for column in columns)]
        found.append(Section(_title(title), [Table(header, body)]))
        return found
    for key, part in rest.items():
        found += _walk(f"{title}, {_label(key)}", key, part)
    return found


def _samples(title: str, unit: Quantity, samples: dict[str, Any]) -> Section:
    rows = []
    for key, values in samples.items():
        own = quantity(key)
        show = own if own.unit else unit
        label = words(key) if not own.unit else own.heading
        rows.append([label, *(show.show(values.get(column)) for column in COLUMNS)])
    return Section(_title(title), [Table([unit.unit, *COLUMNS], rows)])


def _title(text: str) -> str:
    return text[:1].upper() + text[1:]
