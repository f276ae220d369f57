"""Command-line pieces that sub-commands share: value parsers, report options, the end of a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from denizen.bench import environment
from denizen.bench.errors import BenchError
from denizen.bench.launch import DENIZEN
from denizen.bench.levels import INTERRUPTED
from denizen.bench.load import ClosedLoop, OpenLoop
from denizen.bench.report import output
from denizen.bench.report.result import live
from denizen.bench.schema import write_records
from denizen.bench.slo import Bound, bound
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


def share_of(text: str) -> tuple[float, int]:
    """`SHARE:NUMBER`, a share of requests and a whole number that concerns them."""
    left, colon, right = text.partition(":")
    try:
        share = float(left)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1 or not colon:
        raise argparse.ArgumentTypeError(f"expected a share of requests and a number, such as 0.2:8, got '{text}'")
    return share, positive_int(right)


def json_field(text: str) -> tuple[str, Any]:
    """`NAME=JSON`."""
    name, equals, value = text.partition("=")
    try:
        if not name or not equals:
            raise ValueError
        return name, json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected NAME=JSON, such as top_k=20, got '{text}'") from error


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Where requests go, and the server that is started for them."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", default="http://127.0.0.1:8000", help="base URL (default: %(default)s)")
    group.add_argument("--model", help="model name (default: the only one that the server offers)")
    group.add_argument("--api-key", help="sent as a bearer token")
    group.add_argument("--timeout", type=positive_float, default=600.0, metavar="S", help="default: %(default)g s")
    group.add_argument(
        "--launch",
        nargs="?",
        const=DENIZEN,
        metavar="CMD",
        help="start a server for this run and stop it afterwards: a command line in which {port} stands for a free "
        f"port; without {{port}} it is expected at --url (without CMD: {DENIZEN})",
    )
    group.add_argument("--launch-log", type=new_file, metavar="FILE", help="keep here what that server prints")
    group.add_argument(
        "--ready-timeout",
        type=positive_float,
        default=300.0,
        metavar="S",
        help="for its start (default: %(default)g s)",
    )


def add_arrival_options(parser: argparse.ArgumentParser, record: type[Attempt]) -> None:
    """Levels of load, and what is asked of the server at each; `record` is what requests become."""
    group = parser.add_argument_group("load")
    load = group.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=positive_int, nargs="+", metavar="N", help="closed loop: users at once (default: 1)"
    )
    load.add_argument(
        "--rate",
        type=positive_float,
        nargs="+",
        metavar="R",
        help="open loop: Poisson requests/s; a level ends early when the server falls behind ever further",
    )
    add_slo_option(group, record, required=False)


def add_slo_option(group: argparse._ArgumentGroup, record: type[Attempt], *, required: bool) -> None:
    group.add_argument(
        "--slo",
        type=bound,
        nargs="+",
        default=[],
        required=required,
        metavar="BOUND",
        help=f"bounds in s, such as {record.measures[0]}_p99=0.5: {', '.join(record.measures)} with _mean, _max "
        "or a percentile such as _p95; reports goodput, the requests that keep them all",
    )


def add_soak_options(parser: argparse.ArgumentParser) -> None:
    """Long runs."""
    group = parser.add_argument_group("soak")
    group.add_argument(
        "--soak", type=positive_float, metavar="S", help="repeat passes until a level has lasted so many seconds"
    )
    group.add_argument(
        "--max-growth",
        type=positive_float,
        metavar="MIB",
        help="an hour by which the memory of a launched server may grow, with --soak; more makes the result invalid",
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Passes, and the client that makes them."""
    group = parser.add_argument_group("client")
    group.add_argument(
        "--passes", type=positive_int, default=2, help="the first warms up and is dropped (default: %(default)s)"
    )
    group.add_argument(
        "--processes", type=positive_int, default=1, metavar="N", help="that generate the load (default: %(default)s)"
    )
    group.add_argument(
        "--max-client-lag",
        type=positive_float,
        default=20.0,
        metavar="MS",
        help="p99 of the client's own lag from which on the result is invalid (default: %(default)g)",
    )
    group.add_argument("--seed", type=int, default=0, help="of requests, lengths, arrivals, sampling (default: 0)")


def check_passes(options: argparse.Namespace) -> None:
    if options.passes < 2:
        raise BenchError("--passes must be at least 2: the first pass warms up and is dropped")


def load_levels(options: argparse.Namespace) -> list[Arrivals]:
    if options.rate:
        return [OpenLoop(rate, options.seed) for rate in options.rate]
    return [ClosedLoop(concurrency) for concurrency in options.concurrency or [1]]


def add_json_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", type=new_file, metavar="OUT", help="write the result here")


def add_out_options(parser: argparse._ActionsContainer) -> None:
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
    group = parser.add_argument_group("result")
    add_out_options(group)
    add_json_option(group)
    if records:
        group.add_argument("--records", type=new_file, metavar="OUT", help="write one JSON line a request here")
    group.add_argument("--quiet", action="store_true", help="no progress bar")


def folder(text: str) -> Path:
    """A folder to write to; that it cannot be one is said before a run, not after it."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a file; name a folder")
    return _writable(path)


def new_file(text: str) -> Path:
    """A file to write; likewise."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a folder; name a file")
    return _writable(path)


def _writable(path: Path) -> Path:
    """What is there of it already can be written."""
    there = next(part for part in (path, *path.absolute().parents) if part.exists())
    if not os.access(there, os.W_OK) or (there != path and not there.is_dir()):
        raise argparse.ArgumentTypeError(f"'{path}' cannot be written: {there} is no folder that can")
    return path


def progress(total: int | None, unit: str, options: argparse.Namespace) -> tqdm[NoReturn]:
    """The progress bar: on a terminal only, and not with --quiet."""
    hidden = options.quiet or not sys.stderr.isatty()
    return tqdm(total=total, unit=unit, disable=hidden, dynamic_ncols=True)


def shown(options: argparse.Namespace) -> dict[str, Any]:
    """The options as a result keeps them: no functions, no secrets."""
    hidden = {"run", "command", "api_key"}

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, Bound):
            return f"{value.name}={value.limit:g}"
        if isinstance(value, str):
            return environment.redact_text(value)
        return str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in vars(options).items() if name not in hidden}


def finish(report: Report, options: argparse.Namespace, body: str = "", records: Sequence[Attempt] = ()) -> int:
    """Prints the report and writes what was asked for; `body` is what the report's tables cannot say.

    Returns the exit status. Raises BenchError naming the option whose file cannot be written.
    """
    environment.finish(report.environment)
    # What is printed may go to a pipe that breaks, so files come first; and it is printed whatever becomes of them.
    written: list[str] = []
    failure: BenchError | None = None
    try:
        for flag, write in (("json", report.write), ("records", partial(write_records, records=records))):
            if path := getattr(options, flag, None):
                try:
                    write(path)
                except OSError as error:
                    raise BenchError(f"--{flag} {path}: {error.strerror}; choose a place to write to") from error
                written.append(f"written to {path}")
        if out := getattr(options, "out", None):
            written += output.write_folder(out, report, records)
    except BenchError as error:
        failure = error
    markdown = getattr(options, "markdown", False)
    print("\n".join([output.text(live(report, report.kind), markdown=markdown, closing=body), *written]))
    if failure is not None:
        raise failure
    if any(INTERRUPTED in problem for problem in report.problems):
        return 130
    return 0 if report.valid else 1
