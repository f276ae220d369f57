"""One CSV row a load level, with the same columns for the same kind of load whatever the run has measured."""

from __future__ import annotations

import csv
import dataclasses
import io
import types
import typing
from typing import TYPE_CHECKING, Any

from denizen.bench.schema import Summary
from denizen.bench.stats import Distribution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.report.result import Level, Result

#: What a level's row begins with; the summary follows, in the units of the result file, nested names dotted.
_HEAD = ("result", "kind", "valid", "started", "commit", "model", "level", "mode", "concurrency", "rate")


def level_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The rows as values; missing ones are None."""
    shapes = _shapes()
    rows = []
    for result in results:
        for level in result.levels:
            row = dict(zip(_HEAD, _head(result, level), strict=True))
            for name, value in level.summary.items():
                row |= _flatten(name, value, shapes)
            rows.append(row)
    return rows


def to_csv(results: Sequence[Result]) -> str:
    """The rows as CSV text with a header, which is all there is of results without load levels."""
    rows = level_rows(results)
    out = io.StringIO()
    columns = list(dict.fromkeys([*_HEAD, *(name for row in rows for name in row)]))
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _head(result: Result, level: Level) -> tuple[Any, ...]:
    environment, load = result.environment, level.load
    return (
        result.label,
        result.kind,
        result.valid,
        environment.get("started"),
        environment.get("commit"),
        result.options.get("model"),
        level.name,
        load.get("mode"),
        load.get("concurrency"),
        load.get("rate"),
    )


def _flatten(name: str, value: Any, shapes: dict[str, list[str]]) -> dict[str, Any]:
    """Plain values under dotted names. A null keeps the columns of what it stands for; lists are left out."""
    if isinstance(value, dict):
        flat: dict[str, Any] = {}
        for key, part in value.items():
            flat |= _flatten(f"{name}.{key}", part, shapes)
        return flat
    if value is None and name in shapes:
        return dict.fromkeys(shapes[name])
    return {} if isinstance(value, list) else {name: value}


def _shapes() -> dict[str, list[str]]:
    """Columns of every object in any summary, by its dotted name."""
    found: dict[str, list[str]] = {}
    pending: list[type[Summary]] = [Summary]
    while pending:
        kind = pending.pop()
        pending.extend(kind.__subclasses__())
        _collect("", kind, found)
    return found


def _collect(prefix: str, kind: type[Any], found: dict[str, list[str]]) -> list[str]:
    columns: list[str] = []
    # The schema imports the class for type checkers only.
    hints = typing.get_type_hints(kind, localns={"Distribution": Distribution})
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        part = _object(hints[field.name])
        if part is None:
            if typing.get_origin(hints[field.name]) is not list:
                columns.append(name)
        else:
            found[name] = _collect(f"{name}.", part, found)
            columns += found[name]
    return columns


def _object(hint: Any) -> type[Any] | None:
    """The dataclass that a field holds, also where it may be None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((kind for kind in options if dataclasses.is_dataclass(kind) and isinstance(kind, type)), None)
