"""`denizen-bench phases`: where a step's time goes, from the phase timers that workers write.

The files are described in `docs/design/engine.md`; a worker writes them with DENIZEN_PHASES=FOLDER in its environment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import environment
from denizen.bench.errors import BenchError
from denizen.bench.options import add_json_option, add_out_options, finish, positive_int, shown
from denizen.bench.schema import Report
from denizen.bench.stats import distribution

if TYPE_CHECKING:
    import argparse

#: Phases of the plan thread begin so; their sum over a step is shown too.
_PLAN = "plan_"
_PLAN_THREAD = "plan thread"
_DEVICE = "device_work"


@dataclass(frozen=True, order=True)
class Group:
    """Steps that are alike."""

    worker: int
    walk: str
    bucket: int
    resident: bool

    @property
    def label(self) -> str:
        planned = "resident" if self.resident else "host-planned"
        return f"worker {self.worker}, {self.walk}, bucket {self.bucket}, {planned}"


Steps = dict[str, list[float]]
"""Microseconds of each step, by phase."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "phases",
        help="where a step's time goes, from the workers' phase timers",
        description="Start the server with DENIZEN_PHASES=FOLDER in its environment, put load on it, stop it, then "
        "give the folder here.",
    )
    parser.add_argument("folder", type=Path, help="what DENIZEN_PHASES named")
    parser.add_argument(
        "--skip", type=int, default=20, metavar="N", help="first steps of each bucket to drop (default: %(default)s)"
    )
    parser.add_argument(
        "--min-steps", type=positive_int, default=20, metavar="N", help="fewer are not shown (default: %(default)s)"
    )
    add_out_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    report = Report("phases", environment.describe(), shown(options))
    report.figures = summarize(options.folder, max(0, options.skip), options.min_steps)
    if not report.figures:
        raise BenchError(f"{options.folder}: no bucket has {options.min_steps} steps after the first {options.skip}")
    return finish(report, options)


def summarize(folder: Path, skip: int, min_steps: int) -> dict[str, dict[str, Any]]:
    """Of each group with `min_steps` steps after the first `skip`: `steps`, and `us`: a distribution a phase."""
    figures = {}
    for group, steps in sorted(read(folder, skip).items()):
        if (count := max(len(values) for values in steps.values())) >= min_steps:
            us = {name: found for name, values in steps.items() if (found := distribution(values)) is not None}
            figures[group.label] = {"steps": count, "us": us}
    return figures


def host_time(figures: dict[str, dict[str, Any]], walk: str, bucket: int) -> dict[str, float]:
    """Median µs of planning and of launching and delivering, and their sum, in resident steps; empty if unknown."""
    found = figures.get(Group(0, walk, bucket, resident=True).label)
    if not found or not {_PLAN_THREAD, _DEVICE} <= set(found["us"]):
        return {}
    medians = {name: float(found["us"][name].p50) for name in (_PLAN_THREAD, _DEVICE)}
    return {**medians, "sum": sum(medians.values())}


def read(folder: Path, skip: int = 0) -> dict[Group, Steps]:
    """All steps but the first `skip` of each group and file, with the sum of the plan thread's phases as one more.

    Raises BenchError for a folder without timings, or naming the file and line that cannot be read.
    """
    files = sorted(folder.glob("phases-*.jsonl"))
    if not files:
        raise BenchError(
            f"{folder} holds no phases-*.jsonl; start the server with DENIZEN_PHASES={folder}, and stop it before this"
        )
    groups: dict[Group, Steps] = {}
    for file in files:
        seen: dict[Group, int] = {}
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                group, names, rows = _block(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                why = f"{type(error).__name__}: {error}"
                raise BenchError(f"{file}, line {number}: no block of steps ({why})") from error
            first = max(0, skip - seen.get(group, 0))
            seen[group] = seen.get(group, 0) + len(rows)
            steps = groups.setdefault(group, {_PLAN_THREAD: [], **{name: [] for name in names}})
            for row in rows[first:]:
                _add(steps, names, row)
    return groups


def _block(value: dict[str, Any]) -> tuple[Group, list[str], list[list[float | None]]]:
    group = Group(int(value["worker"]), str(value["walk"]), int(value["bucket"]), bool(value["resident"]))
    names = [str(name) for name in value["phases"]]
    rows = [[None if us is None else float(us) for us in row] for row in value["us"]]
    if any(len(row) != len(names) for row in rows):
        raise ValueError("a row has not one number a phase")
    return group, names, rows


def _add(steps: Steps, names: list[str], row: list[float | None]) -> None:
    planned = [us for name, us in zip(names, row, strict=True) if name.startswith(_PLAN) and us is not None]
    if planned:
        steps[_PLAN_THREAD].append(sum(planned))
    for name, us in zip(names, row, strict=True):
        if us is not None:
            steps.setdefault(name, []).append(us)
