"""A result as reports see it: the JSON of one run, read from a file or from the run that has just ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError
from denizen.bench.report.quantities import is_distribution, level_name
from denizen.bench.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from denizen.bench.schema import Attempt, Report

RESULT, RECORDS = "result.json", "records.jsonl"
#: Records with one of these are in no latency.
_APART = ("error", "cancelled", "slow")
_AGAIN = "measure again, or give the file that denizen-bench wrote with --out or --json"


@dataclass(frozen=True, slots=True)
class Level:
    """One load level."""

    load: dict[str, Any]
    summary: dict[str, Any]
    failures: list[str]
    stopped: str | None = None
    """Why it ended early."""

    @property
    def name(self) -> str:
        return level_name(self.load)

    @property
    def record_label(self) -> str:
        """What the lines of `records.jsonl` call this level, unless they call it by its own name."""
        if self.load.get("mode") == "closed":
            return f"c={self.load.get('concurrency')}"
        return f"{self.load.get('rate', 0):g}/s"

    def distributions(self) -> dict[str, dict[str, float]]:
        """Those of the summary that have samples, by name."""
        return {name: value for name, value in self.summary.items() if is_distribution(value)}


@dataclass(slots=True)
class Result:
    """`records` are the lines of `records.jsonl`, if there are any."""

    raw: dict[str, Any]
    label: str
    records: list[dict[str, Any]] = field(default_factory=list)
    levels: list[Level] = field(init=False)

    def __post_init__(self) -> None:
        self.levels = [
            Level(entry["load"], entry["summary"], entry.get("failures") or [], entry.get("stopped"))
            for entry in self.raw["results"]
        ]

    @property
    def kind(self) -> str:
        return str(self.raw["kind"])

    @property
    def valid(self) -> bool:
        return bool(self.raw["valid"]) and not self.problems

    @property
    def problems(self) -> list[str]:
        return [str(problem) for problem in self.raw["problems"]]

    @property
    def figures(self) -> dict[str, Any]:
        return dict(self.raw["figures"])

    @property
    def environment(self) -> dict[str, Any]:
        return dict(self.raw["environment"])

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.raw["options"])

    @property
    def data(self) -> dict[str, Any]:
        return dict(self.raw["data"])

    @property
    def name(self) -> str:
        """For legends: an invalid result must be known as such wherever it is drawn."""
        return self.label if self.valid else f"{self.label} (INVALID)"

    def samples(self, level: Level, metric: str) -> list[float]:
        """Every measured sample of a metric in the unit of the file; empty if the records do not tell."""
        label = level.name
        if all(record.get("level") != label for record in self.records):
            label = level.record_label
            if sum(other.record_label == label for other in self.levels) > 1:
                return []
        found: list[float] = []
        for record in self.records:
            if record.get("level") != label or not record.get("measured_pass") or any(map(record.get, _APART)):
                continue
            value = record.get("gaps" if metric == "itl" else metric)
            if isinstance(value, list):
                found.extend(value)
            elif isinstance(value, int | float):
                found.append(value)
        return found


def live(report: Report, label: str, records: Sequence[Attempt] = ()) -> Result:
    """A run that has just ended, as its files would be read: their objects have texts for keys, and no tuples."""
    return Result(json.loads(json.dumps(report.to_json())), label, [record.to_json() for record in records])


def read(path: Path, label: str | None = None, records: Path | None = None) -> Result:
    """A result file, or the folder that holds `result.json`, with its records: those given, or those beside it.

    Raises BenchError naming the file and what to do.
    """
    raw = read_raw(path)
    file = _file(path)
    beside = file.with_name(RECORDS)
    lines = read_records(records) if records else read_records(beside) if beside.is_file() else []
    return Result(raw, label or _label(file), lines)


def read_raw(path: Path) -> dict[str, Any]:
    """The JSON of a result file, or of the folder that holds `result.json`. Raises BenchError likewise."""
    file = _file(path)
    raw = _object(file)
    schema = raw.get("schema")
    if not isinstance(schema, str) or schema.partition(".")[0] != "denizen" or "/" not in schema:
        raise BenchError(f"{file} is no result of denizen-bench (no schema in it): {_AGAIN}")
    if schema.split(".")[:2] != SCHEMA.split(".")[:2]:
        raise BenchError(f"{file} has the schema {schema}, this version reads {SCHEMA}: use the version that wrote it")
    for key, kind in _KEYS.items():
        if not isinstance(raw.get(key), kind):
            raise BenchError(f"{file} is damaged: {key} is missing or not {_NAMES[kind]}; {_AGAIN}")
    for number, entry in enumerate(raw["results"]):
        for key in ("load", "summary"):
            if not isinstance(entry, dict) or not isinstance(entry.get(key), dict):
                raise BenchError(f"{file} is damaged: results[{number}] has no {key}; {_AGAIN}")
    return raw


def _file(path: Path) -> Path:
    return path / RESULT if path.is_dir() else path


_KEYS: dict[str, type] = {
    "valid": bool,
    "kind": str,
    "environment": dict,
    "options": dict,
    "data": dict,
    "results": list,
    "figures": dict,
    "problems": list,
}
_NAMES = {bool: "true or false", str: "a text", dict: "an object", list: "a list"}


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a records file. Raises BenchError naming the file and line."""
    rows = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise BenchError(f"{path}, line {number}: no record; give the file that --records or --out wrote")
                rows.append(row)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; --records takes what --records or --out wrote") from error
    except ValueError as error:
        raise BenchError(
            f"{path}, line {len(rows) + 1}: not JSON ({error}); give the file that --records or --out wrote"
        ) from error
    return rows


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"{file}: {error.strerror}; {_AGAIN}") from error
    except ValueError as error:
        raise BenchError(f"{file} is not JSON ({error}); {_AGAIN}") from error
    if not isinstance(value, dict):
        raise BenchError(f"{file} is no result of denizen-bench: {_AGAIN}")
    return value


def _label(file: Path) -> str:
    """The file's name, or its folder's where all files have the same name."""
    return file.resolve().parent.name if file.name == RESULT else file.stem
