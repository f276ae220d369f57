"""Command-line pieces that sub-commands share: value parsers, report options, the end of a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from denizen.bench.report import verdict
from tqdm import tqdm

if TYPE_CHECKING:
    from denizen.bench.schema import Report


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


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result here")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    parser.add_argument("--records", type=Path, metavar="OUT", help="write one JSON line a request here")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def progress(total: int, unit: str, options: argparse.Namespace) -> tqdm[NoReturn]:
    """The progress bar: on a terminal only, and not with --quiet."""
    hidden = options.quiet or not sys.stderr.isatty()
    return tqdm(total=total, unit=unit, disable=hidden, dynamic_ncols=True)


def shown(options: argparse.Namespace) -> dict[str, Any]:
    """The options as a result keeps them: no functions, no secrets."""
    hidden = {"run", "command", "api_key"}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name not in hidden
    }


def finish(report: Report, options: argparse.Namespace, body: str) -> int:
    """Prints the report, writes its JSON, returns the exit status."""
    print(body)
    print()
    print(verdict(report))
    if options.json:
        report.write(options.json)
        print(f"written to {options.json}")
    return 0 if report.valid else 1
