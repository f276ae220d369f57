"""Command-line pieces that sub-commands share: value parsers, report options, the end of a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from denizen.bench import environment
from denizen.bench.errors import BenchError
from denizen.bench.load import ClosedLoop, OpenLoop
from denizen.bench.report import output
from denizen.bench.report.result import Result
from denizen.bench.schema import write_records
from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.load import Arrivals
    from denizen.bench.schema import Attempt, Report


def positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got '{text}'")
    return value


def positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, got '{text}'")
    return value


def lengths(text: str) -> tuple[int, int]:
    """`MIN:MAX`, or one number for both."""
    low, _, high = text.partition(":")
    pair = positive_int(low), positive_int(high or low)
    if pair[0] > pair[1]:
        raise argparse.ArgumentTypeError(f"expected MIN:MAX with MIN ≤ MAX, got '{text}'")
    return pair


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL (default: %(default)s)")
    parser.add_argument("--model", help="model name (default: the only one that the server offers)")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--timeout", type=positive_float, default=600.0, metavar="S", help="default: %(default)g s")


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Arrivals, passes, and the client that makes them."""
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=positive_int, nargs="+", metavar="N", help="closed loop: users at once (default: 1)"
    )
    load.add_argument("--rate", type=positive_float, nargs="+", metavar="R", help="open loop: Poisson requests/s")
    parser.add_argument(
        "--passes", type=positive_int, default=2, help="the first warms up and is dropped (default: %(default)s)"
    )
    parser.add_argument(
        "--processes", type=positive_int, default=1, metavar="N", help="that generate the load (default: %(default)s)"
    )
    parser.add_argument(
        "--max-client-lag",
        type=positive_float,
        default=20.0,
        metavar="MS",
        help="p99 of the client's own lag from which on the result is invalid (default: %(default)g)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of requests, lengths, arrivals, sampling (default: 0)")


def check_passes(options: argparse.Namespace) -> None:
    if options.passes < 2:
        raise BenchError("--passes must be at least 2: the first pass warms up and is dropped")


def load_levels(options: argparse.Namespace) -> list[Arrivals]:
    if options.rate:
        return [OpenLoop(rate, options.seed) for rate in options.rate]
    return [ClosedLoop(concurrency) for concurrency in options.concurrency or [1]]


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result here")


def add_out_options(parser: argparse.ArgumentParser) -> None:
    """The folder with everything, and Markdown."""
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="write everything there: result.json, records.jsonl, levels.csv, row.md, plots/*.png, report.html",
    )
    parser.add_argument("--markdown", action="store_true", help="print the result as rows of a Markdown table too")


def add_report_options(parser: argparse.ArgumentParser, *, records: bool = True) -> None:
    """How the result is kept and shown; `records` for sub-commands that have some."""
    add_out_options(parser)
    add_json_option(parser)
    if records:
        parser.add_argument("--records", type=Path, metavar="OUT", help="write one JSON line a request here")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def folder(text: str) -> Path:
    """A folder to write to: that a file has its name is said before a run, not after it."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a file; name a folder")
    return path


def progress(total: int, unit: str, options: argparse.Namespace) -> tqdm[NoReturn]:
    """The progress bar: on a terminal only, and not with --quiet."""
    hidden = options.quiet or not sys.stderr.isatty()
    return tqdm(total=total, unit=unit, disable=hidden, dynamic_ncols=True)


def shown(options: argparse.Namespace) -> dict[str, Any]:
    """The options as a result keeps them: no functions, no secrets."""
    hidden = {"run", "command", "api_key"}

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in vars(options).items() if name not in hidden}


def finish(report: Report, options: argparse.Namespace, body: str = "", records: Sequence[Attempt] = ()) -> int:
    """Prints the report and writes what was asked for; `body` is what the report's tables cannot say.

    Returns the exit status. Raises BenchError naming the option whose file cannot be written.
    """
    environment.finish(report.environment)
    if body:
        print(body, end="\n\n")
    print(output.text(Result(report.to_json(), report.kind), markdown=getattr(options, "markdown", False)))
    json_file, records_file = getattr(options, "json", None), getattr(options, "records", None)
    try:
        if json_file:
            report.write(json_file)
            print(f"written to {json_file}")
        if records_file:
            write_records(records_file, records)
    except OSError as error:
        raise BenchError(
            f"{error.filename}: {error.strerror}; --json and --records need a place to write to"
        ) from error
    if out := getattr(options, "out", None):
        print("\n".join(output.write_folder(out, report, records)))
    return 0 if report.valid else 1
