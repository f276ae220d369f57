"""What a report says of load levels: throughput, latencies, quality, failures. Any summary of the schema will do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from denizen.bench.report.figures import figure_sections
from denizen.bench.report.quantities import (
    COLUMNS,
    MISSING,
    Quantity,
    cell,
    is_distribution,
    is_scalar,
    number,
    quantity,
)
from denizen.bench.report.tables import Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.report.result import Level, Result

#: Said by other columns, or of use to a program only.
_HIDDEN = {
    "requests",
    "failed",
    "client_cpu",
    "client_saturated",
    "full_load.seconds",
    "full_load.output_tokens",
}
_LAGS = ("lag", "loop_lag")
#: Shown where there are any.
_RARE = ("unchecked", "cancelled", "slow", "slow_cut")
#: Requests that are in none of the other numbers.
_APART = ("cancelled", "slow")
#: At the end of a row, in this order: what matters least.
_LAST = ("prompt_tokens", "output_tokens", "audio_seconds", "unchecked", "wall")


CLIENT_NOTE = "How late the load generator itself was, and the share of a CPU that its busiest process used."


def sections(results: Sequence[Result]) -> list[Section]:
    """Everything that the results say, in the order of a report. Several results share the tables of their levels."""
    found = load_sections(results)
    for result in results:
        for section in figure_sections(result.figures):
            if len(results) > 1:
                section.title = f"{result.name}: {section.title}".removesuffix(": ")
            found.append(section)
    return found


def load_sections(results: Sequence[Result]) -> list[Section]:
    rows = [(result, level) for result in results for level in result.levels]
    if not rows:
        return []
    found = [Section("Load", [throughput(rows, len(results) > 1)], notes(rows, len(results) > 1))]
    if latencies := latency(rows, len(results) > 1):
        found.append(Section("Latency and other distributions", [latencies]))
    if strain := client(rows, len(results) > 1):
        found.append(Section("Client", [strain], [CLIENT_NOTE]))
    if objective := goodput(rows, len(results) > 1):
        found.append(Section("Service level objective", [objective]))
    for name in dict.fromkeys(key for _, level in rows for key in level.summary):
        tables = nested(rows, name, len(results) > 1)
        if tables:
            found.append(Section(quantity(name).label.capitalize() if name.islower() else name, tables))
    return found


def throughput(rows: Sequence[tuple[Result, Level]], several: bool) -> Table:
    """One row a level: how much was asked, how much failed, and the rates."""
    flat = [_scalars(level.summary) for _, level in rows]
    names = [name for name in dict.fromkeys(key for values in flat for key in values) if name not in _HIDDEN]
    names = [name for name in names if any(values.get(name) not in (None, "") for values in flat)]
    names = [name for name in names if name not in _RARE or any(values.get(name) for values in flat)]
    names.sort(key=lambda name: (_LAST.index(name) + 1 if name in _LAST else 0, not name.endswith("_per_s")))
    body = []
    for (result, level), values in zip(rows, flat, strict=True):
        failed = level.summary.get("failed", 0)
        apart = sum(level.summary.get(name) or 0 for name in _APART)
        ok = level.summary["requests"] - failed - apart if "requests" in level.summary else None
        warm_up = "warm-up" if level.failures and not failed else cell(failed)
        cells = [quantity(name).show(values.get(name)) for name in names]
        body.append([*_stub(result, level, several), cell(ok), warm_up, *cells])
    return Table(
        [*_stub_header(several), "ok", "failed", *(quantity(name).heading for name in names)], body, 1 + several
    )


def metrics(levels: Sequence[Level]) -> list[str]:
    """The distributions of the answers that any level has, the whole request last; not those of the client itself."""
    found = dict.fromkeys(name for level in levels for name in level.distributions() if name not in _LAGS)
    return sorted(found, key=lambda name: name == "e2e")


def latency(rows: Sequence[tuple[Result, Level]], several: bool) -> Table | None:
    """One row a metric and level."""
    # A metric without samples at one level stays in the table, beside the levels that have some.
    body = []
    for metric in metrics([level for _, level in rows]):
        shown = quantity(metric, sampled=True)
        for result, level in rows:
            if metric not in level.summary:
                continue
            found = level.summary[metric]
            values = [shown.show(found.get(column)) for column in COLUMNS] if found else [MISSING] * len(COLUMNS)
            body.append([shown.heading, *_stub(result, level, several), *values])
    return Table(["", *_stub_header(several), *COLUMNS], body, 2 + several) if body else None


def goodput(rows: Sequence[tuple[Result, Level]], several: bool) -> Table | None:
    """One row a level that has an objective: what each bound came to, and how many requests kept them all."""
    found = [(result, level, level.summary["goodput"]) for result, level in rows if level.summary.get("goodput")]
    bounds = list(dict.fromkeys((name, limit) for _, _, value in found for name, limit in value["bounds"].items()))
    body = []
    for result, level, value in found:
        kept = [
            _bound(name).show(value["values"].get(name)) if value["bounds"].get(name) == limit else MISSING
            for name, limit in bounds
        ]
        broken = [
            *value["misses"],
            *([level.stopped.partition(":")[0]] if level.stopped else []),
            *(["failures"] if level.failures else []),
        ]
        verdict = f"broken: {', '.join(broken)}" if broken else "kept"
        good = [number(100 * value["share"]), number(value["requests_per_s"])]
        body.append([*_stub(result, level, several), *kept, *good, verdict])
    header = [f"{_bound(name).heading} ≤ {limit * _bound(name).scale:g}" for name, limit in bounds]
    return Table([*_stub_header(several), *header, "good %", "good req/s", "SLO"], body, 1 + several) if body else None


def _bound(name: str) -> Quantity:
    """Of `ttft_p99` and the like."""
    metric, _, statistic = name.rpartition("_")
    shown = quantity(metric, sampled=True)
    return replace(shown, label=f"{shown.label} {statistic}")


def client(rows: Sequence[tuple[Result, Level]], several: bool) -> Table | None:
    """One row a level: the client's own lateness and CPU use."""
    if not any(is_distribution(level.summary.get(name)) for _, level in rows for name in _LAGS):
        return None
    columns = [(name, column) for name in _LAGS for column in ("p50", "p99", "max")]
    body = []
    for result, level in rows:
        values = [
            quantity(name, sampled=True).show((level.summary.get(name) or {}).get(column)) for name, column in columns
        ]
        body.append(
            [*_stub(result, level, several), *values, quantity("client_cpu").show(level.summary.get("client_cpu"))]
        )
    header = [f"{quantity(name, sampled=True).heading} {column}" for name, column in columns]
    return Table([*_stub_header(several), *header, quantity("client_cpu").heading], body, 1 + several)


def nested(rows: Sequence[tuple[Result, Level]], name: str, several: bool) -> list[Table]:
    """Tables of what a summary keeps under `name`, if that is more than numbers of the load: quality, say."""
    found = [(result, level, level.summary.get(name)) for result, level in rows]
    objects = [(result, level, value) for result, level, value in found if isinstance(value, dict)]
    if name in ("full_load", "goodput") or not objects or any(is_distribution(value) for _, _, value in objects):
        return []
    tables = []
    flat = [(result, level, _flatten(value)) for result, level, value in objects]
    names = list(dict.fromkeys(key for _, _, values in flat for key in values))
    names = [key for key in names if any(values.get(key) is not None for _, _, values in flat)]
    if names:
        body = [
            [*_stub(result, level, several), *(quantity(key).show(values.get(key)) for key in names)]
            for result, level, values in flat
        ]
        tables.append(Table([*_stub_header(several), *map(_heading, names)], body, 1 + several))
    samples = {key for _, _, value in objects for key, part in value.items() if is_distribution(part)}
    for key in sorted(samples):
        shown = quantity(key, sampled=True)
        body = [
            [*_stub(result, level, several), *(shown.show((value.get(key) or {}).get(column)) for column in COLUMNS)]
            for result, level, value in objects
        ]
        tables.append(Table([*_stub_header(several), *COLUMNS], body, 1 + several, shown.heading))
    for key in dict.fromkeys(key for _, _, value in objects for key, part in value.items() if _is_rows(part)):
        tables.append(_list_table(objects, key, several))
    return tables


def notes(rows: Sequence[tuple[Result, Level]], several: bool) -> list[str]:
    """What a reader must know about the levels: failures, counts that nobody confirmed."""
    lines = []
    for result, level in rows:
        name = ", ".join(_stub(result, level, several))
        lines += [f"{name}: failed: {failure}" for failure in level.failures]
        lines += [f"{name}: {level.stopped}"] if level.stopped else []
    apart = {name: sum(level.summary.get(name) or 0 for _, level in rows) for name in (*_APART, "slow_cut")}
    if apart["cancelled"] or apart["slow"]:
        lines.append(
            f"not in these numbers: {apart['cancelled']} requests cancelled, {apart['slow']} read slowly "
            f"({apart['slow_cut']} of them cut off by the server)"
        )
    if unchecked := sum(level.summary.get("unchecked") or 0 for _, level in rows):
        lines.append(f"{unchecked} answers had no usage: their numbers of tokens are unchecked")
    return lines


def _stub(result: Result, level: Level, several: bool) -> list[str]:
    return [result.name, level.name] if several else [level.name]


def _stub_header(several: bool) -> list[str]:
    return ["result", "load"] if several else ["load"]


def _heading(name: str) -> str:
    """Of a nested number, with what it belongs to: `WER words`."""
    parent, _, _ = name.rpartition(".")
    own, above = quantity(name), quantity(parent).label if parent else ""
    return own.heading if not above or own.label.startswith(above) else f"{above} {own.heading}"


def _scalars(summary: dict[str, Any]) -> dict[str, Any]:
    """Plain numbers of a summary, and those of its full load."""
    flat = {name: value for name, value in summary.items() if is_scalar(value) and name != "full_load"}
    # A null may stand for a distribution without samples; it is no number of the load in any case.
    flat = {name: value for name, value in flat.items() if value is not None}
    if isinstance(full := summary.get("full_load"), dict):
        flat |= {f"full_load.{name}": value for name, value in full.items() if is_scalar(value)}
    return flat


def _flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Plain values under dotted names; no distributions and no lists of objects."""
    flat: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, dict) and not is_distribution(part):
            flat |= _flatten(part, f"{prefix}{name}.")
        elif is_scalar(part) or (isinstance(part, list) and part and all(map(is_scalar, part))):
            flat[prefix + name] = part
    return flat


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _list_table(objects: Sequence[tuple[Result, Level, Any]], key: str, several: bool) -> Table:
    listed = [(result, level, row) for result, level, value in objects for row in value.get(key) or []]
    columns = list(dict.fromkeys(name for _, _, row in listed for name in row))
    body = [
        [*_stub(result, level, several), *(quantity(name).show(row.get(name)) for name in columns)]
        for result, level, row in listed
    ]
    header = [*_stub_header(several), *(quantity(name).heading for name in columns)]
    return Table(header, body, 1 + several, key, words=True)
