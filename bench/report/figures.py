"""Tables of a result's `figures`: numbers that are not a load, whatever sub-command they come from.

What is told apart by its shape: distributions, phases of steps, a comparison, numbers in one or two dimensions.
"""

from __future__ import annotations

from typing import Any

from denizen.bench.report.quantities import (
    COLUMNS,
    MISSING,
    Quantity,
    cell,
    is_distribution,
    is_scalar,
    number,
    quantity,
    words,
)
from denizen.bench.report.tables import Section, Table

VERDICTS = ("better", "worse", "cannot tell")
#: More groups of steps than this are shown by their medians alone.
_PHASES_IN_FULL = 2


def figure_sections(figures: dict[str, Any]) -> list[Section]:
    if is_comparison(figures):
        return [compare_section(figures), *figure_sections(_beside_the_comparison(figures))]
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


def is_comparison(figures: Any) -> bool:
    metrics = figures.get("metrics") if isinstance(figures, dict) else None
    return isinstance(metrics, dict) and any(isinstance(found, dict) and "ratio" in found for found in metrics.values())


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


def _beside_the_comparison(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name not in ("a", "b", "restarts", "metrics")}


def compare_section(figures: dict[str, Any]) -> Section:
    """B over A, a row a metric: ratio, interval, verdict."""
    rows = []
    for name, found in figures["metrics"].items():
        interval = [found.get("low"), found.get("high")]
        text = MISSING if None in interval else f"{interval[0]:.3f} … {interval[1]:.3f}"
        better = found.get("higher_is_better")
        direction = MISSING if better is None else "higher" if better else "lower"
        ratio = found.get("ratio")
        rows.append(
            [
                f"{words(name)} {found.get('unit') or ''}".strip(),
                _median(found.get("a")),
                _median(found.get("b")),
                MISSING if ratio is None else f"{ratio:.3f}",
                text,
                direction,
                str(found.get("verdict", MISSING)),
            ]
        )
    a, b = figures.get("a", "A"), figures.get("b", "B")
    restarts = figures.get("restarts")
    title = f"B against A{f', {restarts} restarts a side' if restarts else ''}"
    header = ["", "A median", "B median", "B / A", "95 % interval", "better is", "B is"]
    return Section(title, [Table(header, rows)], [f"A: {a}", f"B: {b}"])


def _median(values: Any) -> str:
    if not isinstance(values, list) or not values:
        return MISSING
    ordered = sorted(values)
    return number((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def phase_sections(title: str, groups: dict[str, Any]) -> list[Section]:
    """Microseconds a step: all percentiles of few groups, the medians of many."""
    if len(groups) > _PHASES_IN_FULL:
        names = list(dict.fromkeys(name for group in _fullest_first(groups) for name in group["us"]))
        rows = [
            [label, cell(group["steps"]), *(_p50(group["us"].get(name)) for name in names)]
            for label, group in groups.items()
        ]
        return [
            Section(_joined("Phases of a step", title), [Table(["µs a step, p50", "steps", *map(words, names)], rows)])
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


def _p50(values: dict[str, float] | None) -> str:
    return MISSING if values is None else f"{values['p50']:,.0f}"


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
