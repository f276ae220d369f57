"""`denizen-bench sweep`: the highest rate of requests at which a server keeps its service level objective."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from denizen.bench.crew import Crew
from denizen.bench.errors import BenchError
from denizen.bench.kind import session
from denizen.bench.levels import INTERRUPTED, Load, run_level
from denizen.bench.load import ClosedLoop, OpenLoop
from denizen.bench.options import (
    add_client_options,
    add_report_options,
    add_server_options,
    add_slo_option,
    check_passes,
    finish,
    positive_float,
    positive_int,
    progress,
)
from denizen.bench.report import load_name
from denizen.bench.slo import Slo
from denizen.bench.summary import overload

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from denizen.bench.kind import Kind, Session
    from denizen.bench.load import Arrivals, Job
    from denizen.bench.schema import Attempt, LoadResult
    from tqdm import tqdm

#: Requests of one user alone, from which the first rate comes.
_ALONE = 8
#: How far below the first rate the search goes: 2 to the power of it.
_DOWN = 10


@dataclass
class Search:
    """Brackets the highest good rate by doubling, or halving, and then halves the bracket's ratio."""

    good: float | None = None
    """The highest rate that is good, with all that were tried below it."""
    bad: float | None = None
    """The lowest one that is not; None if even the highest that may be tried is good."""
    tried: list[tuple[float, bool]] = field(default_factory=list)

    def run(self, is_good: Callable[[float], bool], start: float, precision: float, highest: float) -> None:
        """Tries rates from `start` on until the bracket is narrower than a share of `precision`."""

        def attempt(rate: float) -> None:
            good = is_good(rate)
            self.tried.append((rate, good))
            # A rate that failed settles the matter above it, whatever was found there before.
            if good:
                self.good = rate
            else:
                self.bad = rate

        rate = min(start, highest)
        attempt(rate)
        while self.bad is None and rate < highest:
            rate = min(2 * rate, highest)
            attempt(rate)
        for _ in range(_DOWN):
            if self.good is not None:
                break
            rate /= 2
            attempt(rate)
        while self.good is not None and self.bad is not None and self.bad > self.good * (1 + precision):
            attempt(math.sqrt(self.good * self.bad))


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], kinds: Sequence[Kind]) -> None:
    parser = commands.add_parser(
        "sweep",
        help="the highest rate under a service level objective, and goodput",
        description="Raises the rate of an open loop until the SLO breaks, then narrows down the highest rate that "
        "keeps it. A level ends early when the server falls behind ever further. A failed request breaks the SLO.",
    )
    inner = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind in kinds:
        add_kind(inner, kind)


def add_kind(commands: argparse._SubParsersAction[argparse.ArgumentParser], kind: Kind) -> None:
    parser = commands.add_parser(
        kind.name, help=kind.help, description=f"The highest rate under an SLO. {kind.description}"
    )
    group = parser.add_argument_group("sweep")
    add_slo_option(group, kind.record, required=True)
    group.add_argument(
        "--start-rate", type=positive_float, metavar="R", help="the first one (default: what one user alone makes)"
    )
    group.add_argument("--highest-rate", type=positive_float, metavar="R", help="do not go beyond (default: none)")
    group.add_argument(
        "--precision",
        type=positive_float,
        default=0.05,
        metavar="SHARE",
        help="of the rate, to which it is found (default: %(default)g)",
    )
    group.add_argument(
        "--level-seconds",
        type=positive_float,
        default=20.0,
        metavar="S",
        help="each pass of a level lasts, and has at least --requests (default: %(default)g)",
    )
    group.add_argument(
        "--most-levels", type=positive_int, default=30, metavar="N", help="give up after so many (default: %(default)s)"
    )
    add_server_options(parser)
    kind.add_options(parser)
    add_client_options(parser)
    add_report_options(parser)
    parser.set_defaults(run=lambda options: run(kind, options))


def run(kind: Kind, options: argparse.Namespace) -> int:
    check_passes(options)
    with session(kind, options) as found:
        found.report.kind = f"sweep {kind.name}"
        with progress(0, "req", options) as bar, Crew(found.target, options.processes) as crew:
            sweep = _Sweep(found, crew, options, bar)
            start = options.start_rate or sweep.rate_of_one_user()
            search = Search()
            with contextlib.suppress(_EndsHere):
                search.run(sweep.is_good, start, options.precision, options.highest_rate or math.inf)
        report = found.report
        report.results = sweep.results
        report.figures["sweep"] = _figures(search, sweep)
        if search.good is None and search.bad is not None:
            report.problems.append(f"no rate down to {search.bad:g} req/s keeps the SLO")
    return finish(report, options, _conclusion(report.figures["sweep"]), sweep.records)


class _EndsHere(Exception):
    """The client cannot send what higher rates ask for, or the user wants no more."""


class _Sweep:
    """Measures rates, each as a level of its own."""

    def __init__(self, found: Session, crew: Crew, options: argparse.Namespace, bar: tqdm[NoReturn]) -> None:
        self.results: list[LoadResult[Any]] = []
        self.records: list[Attempt] = []
        self._found = found
        self._crew = crew
        self._options = options
        self._bar = bar
        self._slo = Slo(options.slo)

    def rate_of_one_user(self) -> float:
        """Requests a second of a closed loop of one user; raises BenchError if a request fails."""
        jobs = cut(self._found.load, 0, 0, _ALONE)
        result, _ = self._measure(ClosedLoop(1), [jobs, jobs])
        if result.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        if result.failures:
            raise BenchError(f"one user alone: {result.failures[0]}; name a --start-rate, or see to the server")
        rate: float = result.summary.requests_per_s
        return rate

    def is_good(self, rate: float) -> bool:
        options, level = self._options, len(self.results) + 1
        if level > options.most_levels:
            raise BenchError(f"no result after {options.most_levels} levels; raise --most-levels or --precision")
        count = max(self._found.load.requests, math.ceil(rate * options.level_seconds))
        jobs = [cut(self._found.load, level, one_pass, count) for one_pass in range(options.passes)]
        result, records = self._measure(OpenLoop(rate, options.seed), jobs)
        self.results.append(result)
        self.records.extend(records)
        goodput = result.summary.goodput
        if result.stopped == INTERRUPTED:
            self._found.report.problems.append(f"{load_name(result)}: {INTERRUPTED}")
            raise _EndsHere
        good = not (result.stopped or result.failures or goodput is None or goodput.misses)
        # A client that is late makes a good server look bad, and what it did not send is no proof of a good one.
        if why := overload(result.passes, options.max_client_lag / 1000):
            self._found.report.problems.append(
                f"{load_name(result)}: {why[0]}; the server may well take more than what was found"
            )
            raise _EndsHere
        if not self._bar.disable:
            self._bar.write(f"{load_name(result)}: {'SLO kept' if good else 'SLO broken'}", file=sys.stderr)
        return good

    def _measure(self, arrivals: Arrivals, jobs: Sequence[Sequence[Job]]) -> tuple[LoadResult[Any], list[Any]]:
        self._bar.reset(total=sum(map(len, jobs)))
        return run_level(self._crew, self._found.load, arrivals, jobs, self._bar, slo=self._slo, partial=True)


def cut(load: Load[Any, Any], level: int, number: int, count: int) -> list[Job]:
    """`count` jobs for a pass of a level: as many batches of the load's own as that takes."""
    jobs: list[Any] = []
    batch = 0
    while len(jobs) < count:
        # Passes of a level are numbered so that no two batches are the same.
        jobs.extend(load.jobs(level, number + 1000 * batch))
        batch += 1
    return [dataclasses.replace(job, index=index) for index, job in enumerate(jobs[:count])]


def _figures(search: Search, sweep: _Sweep) -> dict[str, Any]:
    best = next((result for result in sweep.results if result.load["rate"] == search.good), None)
    goodput = None if best is None else best.summary.goodput
    return {
        "highest_rate": search.good,
        "lowest_rate_that_breaks_it": search.bad,
        "goodput_share": goodput and goodput.share,
        "goodput_requests_per_s": goodput and goodput.requests_per_s,
        "levels": [{"rate": rate, "kept": good} for rate, good in search.tried],
    }


def _conclusion(figures: dict[str, Any]) -> str:
    if figures["highest_rate"] is None:
        return "no rate keeps the SLO" if figures["levels"] else "the search ended before any rate was judged"
    beyond = figures["lowest_rate_that_breaks_it"]
    limit = "no higher one was tried" if beyond is None else f"{beyond:.4g} req/s breaks it"
    return (
        f"highest rate under the SLO: {figures['highest_rate']:.4g} req/s ({limit}); goodput there: "
        f"{figures['goodput_requests_per_s']:.4g} req/s, {100 * figures['goodput_share']:.1f} % of the requests"
    )
