"""The end of a run: what is printed, and the folder with everything that `--out` asks for."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from denizen.bench.errors import BenchError
from denizen.bench.report.flat import to_csv
from denizen.bench.report.markdown import to_markdown
from denizen.bench.report.result import RECORDS, RESULT, live
from denizen.bench.report.sections import sections
from denizen.bench.schema import write_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from denizen.bench.report.result import Result
    from denizen.bench.schema import Attempt, Report

LEVELS, ROW, PAGE, PLOTS = "levels.csv", "row.md", "report.html", "plots"


def text(result: Result, *, markdown: bool = False, closing: str = "") -> str:
    """What a run prints: tables, the Markdown rows if asked for, `closing` words that no table can say, and at the very
    end whether the numbers count."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    blocks = [section.text(width) for section in sections([result])] or ["nothing was measured"]
    if markdown:
        blocks.append(to_markdown(result).rstrip())
    return "\n\n".join([*blocks, *([closing] if closing else []), verdict(result)])


def verdict(result: Result) -> str:
    """The last lines: valid, or why not."""
    if result.valid:
        return "valid"
    heading = "INVALID: do not use these numbers"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        heading = f"\033[1;41;97m {heading} \033[0m"
    return "\n".join([heading, *(f"  - {problem}" for problem in result.problems)])


def write_folder(folder: Path, report: Report, records: Sequence[Attempt]) -> list[str]:
    """Writes the result in every form there is; returns what to tell the user. Files of an earlier run are replaced.

    Raises BenchError if the folder cannot be written.
    """
    result = live(report, folder.resolve().name, records)
    try:
        _clear(folder)
        report.write(folder / RESULT)
        if records:
            write_records(folder / RECORDS, records)
        (folder / LEVELS).write_text(to_csv([result]), encoding="utf-8")
        (folder / ROW).write_text(to_markdown(result), encoding="utf-8")
        return [f"written to {folder}", *draw([result], folder)]
    except OSError as error:
        raise BenchError(f"--out {folder}: {error}; choose a folder that can be written") from error


def draw(results: Sequence[Result], folder: Path, *, must: bool = False) -> list[str]:
    """Writes plots and HTML page. Without their packages that is said, or raised if it `must` be."""
    try:
        from denizen.bench.report import page, plots
    except ModuleNotFoundError as missing:
        # A machine that only measures may lack them; the result can be drawn elsewhere.
        if must or (missing.name or "").partition(".")[0] not in ("matplotlib", "jinja2"):
            raise
        return [
            f"no plots and no {PAGE}: {missing.name} is not installed; draw them with `denizen-bench plot {folder}`"
        ]
    drawn = plots.plots(results)
    plots.write_png(drawn, folder / PLOTS)
    page.write(results, drawn, folder / PAGE)
    return []


def _clear(folder: Path) -> None:
    """What an earlier run left would be taken for a part of this one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, RECORDS, LEVELS, ROW, PAGE):
        (folder / name).unlink(missing_ok=True)
    for old in (folder / PLOTS).glob("*.png"):
        old.unlink()
