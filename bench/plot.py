"""`denizen-bench plot`: plots and an HTML report from result files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from denizen.bench.errors import BenchError
from denizen.bench.options import folder
from denizen.bench.report import output
from denizen.bench.report.flat import to_csv
from denizen.bench.report.result import read

if TYPE_CHECKING:
    import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plot",
        help="plots and one HTML report from result files, several beside each other",
        description="Draws what the results have numbers for: latency distributions, rate against p95, throughput "
        "against speed a user, phases of a step, comparisons. Writes plots/*.png, levels.csv and report.html, which "
        "needs no other file. The exit status says whether all results are valid.",
    )
    parser.add_argument(
        "results", type=Path, nargs="+", metavar="RESULT", help="result.json, or the folder that --out wrote"
    )
    parser.add_argument(
        "--records",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="records.jsonl of each result, in their order (default: the one beside it, if there is one)",
    )
    parser.add_argument("--label", nargs="+", default=[], metavar="NAME", help="of each result (default: its file's)")
    parser.add_argument("--out", type=folder, required=True, metavar="DIR", help="where to write")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    count = len(options.results)
    for flag, values in (("--label", options.label), ("--records", options.records)):
        if values and len(values) != count:
            raise BenchError(f"{flag} has {len(values)} values for {count} results: give one for each, in their order")
    labels = options.label or [None] * count
    records = options.records or [None] * count
    results = [read(*given) for given in zip(options.results, labels, records, strict=True)]
    for number, result in enumerate(results):
        if any(result.label == other.label for other in results[:number]):
            result.label = f"{result.label} {number + 1}"
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        output.draw(results, options.out, must=True)
        (options.out / output.LEVELS).write_text(to_csv(results), encoding="utf-8")
    except OSError as error:
        raise BenchError(f"--out {options.out}: {error}; choose a folder that can be written") from error
    print(f"written to {options.out}: {output.PAGE}, {output.LEVELS}, {output.PLOTS}/")
    for result in results:
        print(f"{result.label}: {output.verdict(result)}")
    return 0 if all(result.valid for result in results) else 1
