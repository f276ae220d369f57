"""The result as rows of a Markdown table: for a README, an issue, a lab book."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from denizen.bench.report.quantities import MISSING, cell, number, quantity
from denizen.bench.report.sections import metrics, sections, throughput
from denizen.bench.report.tables import Table

if TYPE_CHECKING:
    from denizen.bench.report.result import Result

#: Nobody pastes more than this into a table.
_PERCENTILES = ("p50", "p95", "p99")


def to_markdown(result: Result) -> str:
    """One row a load level, or the tables of a result that has none; then where it was measured, and if it counts."""
    blocks = [_levels(result).markdown()] if result.levels else [part.markdown() for part in sections([result])]
    return "\n\n".join([*blocks, _origin(result)]) + "\n"


def _levels(result: Result) -> Table:
    rates = throughput([(result, level) for level in result.levels], several=False)
    keep = [0, *(i for i, name in enumerate(rates.header) if name in ("ok", "failed") or name.endswith("/s"))]
    answers = metrics(result.levels)
    header = ["", "valid", *(rates.header[i] for i in keep)]
    header += [f"{quantity(name, sampled=True).heading} {' / '.join(_PERCENTILES)}" for name in answers]
    body = []
    for level, row in zip(result.levels, rates.rows, strict=True):
        cells = [result.options.get("model") or result.label, "yes" if result.valid else "**INVALID**"]
        cells += [row[i] for i in keep]
        cells += [_percentiles(name, level.summary.get(name)) for name in answers]
        body.append(cells)
    return Table(header, body)


def _percentiles(name: str, found: dict[str, Any] | None) -> str:
    if not found:
        return MISSING
    return " / ".join(quantity(name, sampled=True).show(found[column]) for column in _PERCENTILES)


def machine(environment: dict[str, Any]) -> str:
    """The machine in a few words."""
    gpus = [str(gpu.get("name")) for gpu in environment.get("gpus") or []]
    counted = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    memory = environment.get("memory_bytes")
    parts = [*counted, f"{cell(environment.get('cpus'))} CPUs ({cell(environment.get('cpu'))})"]
    return ", ".join([*parts, *([f"{number(round(memory / 2**30))} GiB"] if memory else [])])


def source(environment: dict[str, Any]) -> str:
    """The commit that was measured."""
    commit = environment.get("commit")
    if not commit:
        return "commit unknown"
    return f"commit {str(commit)[:12]}" + (" with local changes" if environment.get("dirty") else "")


def _origin(result: Result) -> str:
    parts = [result.kind, machine(result.environment), source(result.environment)]
    parts.append(str(result.environment.get("started", ""))[:10])
    line = "; ".join(part for part in parts if part)
    if result.valid:
        return line
    return "\n".join([line, "", "**INVALID, do not use these numbers:**", "", *(f"- {why}" for why in result.problems)])
