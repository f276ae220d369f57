"""`denizen-bench compare`: is one server better than another? From restarts that take turns, or from result files."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import environment, launch
from denizen.bench.contrast import Estimate, error_of, independent, interleaved, judge, least
from denizen.bench.errors import BenchError
from denizen.bench.figures import Figure, figures_of
from denizen.bench.levels import INTERRUPTED
from denizen.bench.options import add_report_options, finish, positive_int, shown
from denizen.bench.report.figures import figure_quantity
from denizen.bench.report.result import read_raw
from denizen.bench.schema import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from denizen.bench.kind import Measured
    from denizen.bench.schema import Attempt

    class Comparable(Protocol):
        """A sub-command whose results can be compared (:class:`denizen.bench.kind.Kind`)."""

        @property
        def name(self) -> str: ...

        def fill(self, parser: argparse.ArgumentParser) -> None: ...

        def measure(self, options: argparse.Namespace) -> Measured: ...


_USAGE = """denizen-bench compare --a CMD --b CMD [--order ABBA] [--restarts 4] [options] KIND [options of KIND]
       denizen-bench compare A.json … --with B.json … [options]"""
SMALLEST = 0.01


def order(text: str) -> str:
    if not text or set(text) != {"A", "B"} or text.count("A") != text.count("B"):
        raise argparse.ArgumentTypeError(f"expected as many A as B, such as ABBA, got '{text}'")
    return text


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share such as 0.01, got '{text}'")
    return value


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], kinds: Sequence[Comparable]) -> None:
    names = ", ".join(kind.name for kind in kinds)
    parser = commands.add_parser(
        "compare",
        help="better, worse, or cannot tell: two servers over several restarts, or result files",
        usage=_USAGE,
        description="Starts two servers in turns, each time anew, puts the same load on each, and says of every figure "
        "whether B is better or worse than A, with the ratio's 95 % interval across restarts. Or does so from result "
        "files, one a restart.",
    )
    parser.add_argument("--a", metavar="CMD", help="command line of server A, as for --launch")
    parser.add_argument("--b", metavar="CMD", help="command line of server B")
    parser.add_argument("--order", type=order, default="ABBA", help="of the turns, repeated (default: %(default)s)")
    parser.add_argument(
        "--restarts", type=positive_int, default=4, metavar="N", help="of each server (default: %(default)s)"
    )
    _add_common(parser)
    add_report_options(parser)
    parser.add_argument(
        "what", nargs=argparse.REMAINDER, metavar="KIND …", help=f"{names}, with its own options; or result files"
    )
    parser.set_defaults(run=partial(_run, {kind.name: kind for kind in kinds}))


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--figures",
        nargs="+",
        metavar="NAME",
        help="to compare, such as output_tokens_per_s, ttft.p99 (default: throughput, and the median of each latency)",
    )
    parser.add_argument(
        "--smallest",
        type=share,
        default=SMALLEST,
        metavar="SHARE",
        help="difference that matters; below it the verdict is 'cannot tell' (default: %(default)g)",
    )


def _take_over(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What stands before KIND holds unless it stands behind it too."""
    names = ("figures", "smallest", "json", "records", "out", "markdown", "quiet")
    parser.set_defaults(**{name: getattr(options, name) for name in names})


def _run(kinds: Mapping[str, Comparable], options: argparse.Namespace) -> int:
    first = options.what[0] if options.what else ""
    if first in kinds:
        return _servers(kinds[first], options)
    if not options.a and not options.b and first:
        return _files(options)
    raise BenchError(f"compare --a CMD --b CMD KIND: KIND is one of {', '.join(kinds)}, got '{first}'")


def _servers(kind: Comparable, options: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser(prog=f"denizen-bench compare {kind.name}")
    kind.fill(parser)
    _add_common(parser)
    add_report_options(parser)
    _take_over(parser, options)
    inner = parser.parse_args(options.what[1:])
    if not options.a or not options.b:
        raise BenchError(f"compare {kind.name} needs the command lines of both servers: --a CMD --b CMD")
    if inner.launch is not None:
        raise BenchError("--launch: compare starts its servers with --a and --b")
    turns = turns_of(options.order, options.restarts)
    commands = {"A": options.a, "B": options.b}
    for command in commands.values():
        launch.parse(command, inner.url)
    report = Report(f"compare {kind.name}", environment.describe(), {**shown(inner), **shown(options)})
    report.options.pop("what", None)
    runs: list[Run] = []
    records: list[Attempt] = []
    for number, side in enumerate(turns):
        if not inner.quiet and sys.stderr.isatty():
            print(f"turn {number + 1} of {len(turns)}: {side}", file=sys.stderr)
        name = f"{side}{turns[: number + 1].count(side)}"
        try:
            measured = _turn(kind, inner, commands[side], name)
        except (BenchError, KeyboardInterrupt) as error:
            if not runs:
                raise
            # The turns before it took their time, and may say something.
            report.problems.append(f"{name}: {INTERRUPTED}" if isinstance(error, KeyboardInterrupt) else str(error))
            break
        run = Run(side, measured.report.to_json())
        records.extend(measured.records)
        report.data = measured.report.data
        report.problems.extend(f"{name}: {problem}" for problem in measured.report.problems)
        for result in measured.report.results:
            result.load["name"] = f"{name}, {_load_label(result.load)}"
            report.results.append(result)
        if any(result.stopped == INTERRUPTED for result in measured.report.results):
            break
        runs.append(run)
    return _conclude(report, runs, inner, partial(interleaved, "".join(run.side for run in runs)), records)


def turns_of(pattern: str, restarts: int) -> str:
    """The sides in the order in which they take turns. Raises BenchError if the pattern does not fit."""
    each = pattern.count("A")
    if restarts % each:
        raise BenchError(f"--restarts {restarts}: with --order {pattern} it must be a multiple of {each}")
    return pattern * (restarts // each)


def _turn(kind: Comparable, options: argparse.Namespace, command: str, name: str) -> Measured:
    mine = copy.copy(options)
    mine.launch, mine.json, mine.records = command, None, None
    if mine.launch_log is not None:
        mine.launch_log = mine.launch_log.with_name(f"{mine.launch_log.stem}-{name}{mine.launch_log.suffix}")
    try:
        measured = kind.measure(mine)
    except BenchError as error:
        raise BenchError(f"{name}: {error}") from error
    for record in measured.records:
        record.level = f"{name}, {record.level}"
    return measured


@dataclass
class Run:
    """One restart: its side, and its result as in the file."""

    side: str
    result: dict[str, Any]


def _files(options: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser(prog="denizen-bench compare", usage=_USAGE)
    parser.add_argument("files", type=Path, nargs="+", metavar="A.json", help="results of side A, one a restart")
    parser.add_argument("--with", dest="others", type=Path, nargs="+", required=True, metavar="B.json")
    _add_common(parser)
    add_report_options(parser, records=False)
    _take_over(parser, options)
    inner = parser.parse_args(options.what)
    runs = [Run(side, read_raw(path)) for side, paths in (("A", inner.files), ("B", inner.others)) for path in paths]
    kinds = sorted({run.result["kind"] for run in runs})
    if len(kinds) > 1:
        raise BenchError(f"results of different kinds cannot be compared: {', '.join(kinds)}")
    report = Report(f"compare {kinds[0]}", environment.describe(), shown(inner))
    for path, run in zip([*inner.files, *inner.others], runs, strict=True):
        if not run.result["valid"]:
            report.problems.append(f"{path} is not valid: {run.result['problems'][0]}")
    report.figures["notes"] = notes(runs)

    def estimate(values: Sequence[float]) -> Estimate:
        sides = [[value for run, value in zip(runs, values, strict=True) if run.side == side] for side in "AB"]
        return independent(*sides)

    return _conclude(report, runs, inner, estimate)


def notes(runs: Sequence[Run]) -> list[str]:
    """What else differs between the runs, and so may be the cause of a difference."""
    found = []
    if len({run.result["data"].get("sha256") for run in runs}) > 1:
        found.append("not all runs sent the same requests (data.sha256)")
    for key in ("cpu", "cpus", "gpus", "packages"):
        if len({json.dumps(run.result["environment"].get(key), sort_keys=True) for run in runs}) > 1:
            found.append(f"not all runs had the same {key}")
    own = {"url", "model", "json", "records", "quiet", "launch", "launch_log", "seed"}
    names = sorted({name for run in runs for name in run.result["options"]} - own)
    found.extend(
        f"not all runs had the same --{name.replace('_', '-')}"
        for name in names
        if len({json.dumps(run.result["options"].get(name)) for run in runs}) > 1
    )
    return found


@dataclass(kw_only=True)
class Row:
    """One figure at one level of load."""

    load: str
    figure: str
    a: list[float]
    b: list[float]
    ratio: float
    """B over A, as its interval and the verdict have it."""
    low: float | None
    high: float | None
    freedom: int
    verdict: str
    least: float | None
    """The smallest difference, as a share, that would have had a verdict; None if none would."""
    least_with_twice: float | None
    """The same of twice as many restarts that scatter as much."""
    higher_is_better: bool = field(default=False)


def rows_of(
    runs: Sequence[Run], chosen: Sequence[str] | None, smallest: float, estimate: Callable[[Sequence[float]], Estimate]
) -> list[Row]:
    """Every figure that all runs have, at every level that all have. Raises BenchError if there is none."""
    by_run = [{_load_label(entry["load"]): entry for entry in run.result["results"]} for run in runs]
    labels = [label for label in by_run[0] if all(label in levels for levels in by_run)]
    found: list[tuple[str, Figure, list[float]]] = []
    for label in labels:
        sets = [figures_of(levels[label], chosen) for levels in by_run]
        for name, figure in sets[0].items():
            values = [one[name].value for one in sets if name in one]
            # A figure of zero has no logarithm, and no ratio.
            if len(values) == len(runs) and min(values) > 0:
                found.append((label, figure, values))
    missing = set(chosen or ()) - {figure.name for _, figure, _ in found}
    if missing or not found:
        what = f"--figures {' '.join(sorted(missing))}: " if missing else ""
        raise BenchError(f"{what}no such figure at the same load in all results")
    rows = []
    for label, figure, values in found:
        sides = {side: [value for run, value in zip(runs, values, strict=True) if run.side == side] for side in "AB"}
        estimated = estimate(values)
        low, high = estimated.interval() or (None, None)
        could_tell = partial(least, smallest=smallest, figures=len(found))
        rows.append(
            Row(
                load=label,
                figure=figure.name,
                a=sides["A"],
                b=sides["B"],
                ratio=estimated.ratio,
                low=low,
                high=high,
                freedom=estimated.freedom,
                verdict=judge(
                    estimated, higher_is_better=figure.higher_is_better, smallest=smallest, figures=len(found)
                ),
                least=could_tell(estimated),
                least_with_twice=could_tell(estimated.with_restarts(2)),
                higher_is_better=figure.higher_is_better,
            )
        )
    return rows


def _conclude(
    report: Report,
    runs: Sequence[Run],
    options: argparse.Namespace,
    estimate: Callable[[Sequence[float]], Estimate],
    records: Sequence[Attempt] = (),
) -> int:
    both = len({run.side for run in runs}) == 2
    rows = rows_of(runs, options.figures, options.smallest, estimate) if both else []
    if rows:
        report.figures["compare"] = [dataclasses.asdict(row) for row in rows]
    report.figures["order"] = "".join(run.side for run in runs)
    return finish(report, options, meaning(rows, options.smallest) if rows else "", records)


def meaning(rows: Sequence[Row], smallest: float) -> str:
    """What the words of the table mean."""
    restarts = len(rows[0].a), len(rows[0].b)
    lines = [
        f"medians of {restarts[0]} and {restarts[1]} restarts; a verdict needs the "
        f"{100 * (1 - error_of(len(rows))):.3g} % interval without 1, and a difference of {100 * smallest:g} %",
    ]
    if rows[0].freedom < 1:
        lines.append("too few restarts to say anything: at least two a side")
    elif open_ := [row for row in rows if row.verdict == "cannot tell" and row.least_with_twice is not None]:
        open_.sort(key=lambda row: row.least_with_twice or 0.0)
        ends = [open_[0], open_[-1]] if len(open_) > 1 else open_
        twice = " and ".join(str(2 * count) for count in dict.fromkeys(restarts))
        lines.append(
            "cannot tell: the difference, if there is one, is less than 'could tell', which is what the restarts' own "
            f"scatter hides; {twice} restarts a side could tell about "
            + " to ".join(f"{100 * (row.least_with_twice or 0):.1f} % ({_short(row, rows)})" for row in ends)
        )
    return "\n".join(lines)


def _short(row: Row, rows: Sequence[Row]) -> str:
    """What tells a row from the others."""
    name = figure_quantity(row.figure).label
    return name if len({one.load for one in rows}) == 1 else f"{row.load}: {name}"


def _load_label(load: Mapping[str, Any]) -> str:
    if "name" in load:
        return str(load["name"])
    return f"c={load['concurrency']}" if load["mode"] == "closed" else f"{load['rate']:g}/s"
