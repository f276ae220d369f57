"""Runs levels of load: warm-up and measured passes of each, summaries, and what speaks against the result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from denizen.bench.crew import Crew
from denizen.bench.report import load_name
from denizen.bench.schema import Attempt, LoadResult, Summary
from denizen.bench.summary import failure_counts, overload, pass_wall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from denizen.bench.api import Target
    from denizen.bench.crew import Limits
    from denizen.bench.load import Arrivals, Job
    from denizen.bench.schema import Report
    from denizen.bench.slo import Slo
    from denizen.bench.strain import Strain
    from tqdm import tqdm

#: Why a level ended early that the user ended (Ctrl-C, SIGTERM).
INTERRUPTED = "interrupted: what had been measured by then is all there is"

R = TypeVar("R", bound=Attempt)
In = TypeVar("In", bound=Attempt, contravariant=True)
S = TypeVar("S", bound=Summary)


class Load(Protocol[In, S]):
    """What a sub-command sends, and what it makes of the answers."""

    @property
    def requests(self) -> int:
        """How many jobs a pass has."""
        ...

    def data(self) -> dict[str, Any]:
        """What a result says about the jobs made so far: `sha256`, and more where there is more to say."""
        ...

    def jobs(self, level: int, number: int) -> Sequence[Job]:
        """The jobs of pass `number` of load level `level`."""
        ...

    def check(self, record: In) -> str | None:
        """Why a request has failed, or None; `record.error` is what its client found."""
        ...

    def summarize(self, records: Sequence[In], wall: float, strains: Sequence[Strain], users: int | None) -> S:
        """Numbers of one pass of `wall` seconds; `users` of a closed loop."""
        ...

    def total(self, records: Sequence[In], passes: Sequence[S], strains: Sequence[Strain]) -> S:
        """Numbers of all measured passes together."""
        ...


def run_levels(
    target: Target,
    load: Load[R, S],
    levels: Sequence[Arrivals],
    passes: int,
    bar: tqdm[NoReturn],
    processes: int = 1,
    limits: Limits | None = None,
    slo: Slo | None = None,
    soak: float | None = None,
    partial: bool = False,
) -> tuple[list[LoadResult[S]], list[list[R]]]:
    """Runs every level of load `passes` times; the first pass of each warms up. Returns results and all records.

    With `soak` a level has more passes, until it has lasted so many seconds.

    With `partial` an interrupted run (:data:`INTERRUPTED`) ends with what was measured.

    With `limits.on_error` a level ends with a pass that had a failure, since its result is lost already.
    """
    results: list[LoadResult[S]] = []
    everything: list[list[R]] = []
    with Crew(target, processes, limits) as crew:
        for number, arrivals in enumerate(levels):
            jobs = _passes(load, number, passes, soak)
            result, records = run_level(crew, load, arrivals, jobs, bar, limits, slo, partial)
            results.append(result)
            everything.append(records)
            if result.stopped == INTERRUPTED:
                break
    return results, everything


def _passes(load: Load[Any, Any], level: int, passes: int, soak: float | None) -> Iterator[Sequence[Job]]:
    begun = time.monotonic()
    number = 0
    while number < passes or (soak is not None and time.monotonic() < begun + soak):
        yield load.jobs(level, number)
        number += 1


def run_level(
    crew: Crew,
    load: Load[R, S],
    arrivals: Arrivals,
    jobs: Iterable[Sequence[Job]],
    bar: tqdm[NoReturn],
    limits: Limits | None = None,
    slo: Slo | None = None,
    partial: bool = False,
) -> tuple[LoadResult[S], list[R]]:
    """One level of load: its passes with the `jobs` of each, the first to warm up.

    A level whose server falls behind ever further ends; what it was measured at by then is in the result. With
    `partial` so does one that the user interrupts; else that is raised.
    """
    records: list[R] = []
    strains: list[Strain] = []
    summaries: list[S] = []
    stopped = None
    for measured_pass, batch_jobs in enumerate(jobs):
        bar.set_description(f"{arrivals.label} " + (f"pass {measured_pass}" if measured_pass else "warm-up"))
        try:
            batch, strain = crew.run(arrivals, batch_jobs, bar.update)
        except KeyboardInterrupt:
            if not partial:
                raise
            stopped = INTERRUPTED
            break
        for record in batch:
            record.error = load.check(record)
            record.level, record.measured_pass = arrivals.label, measured_pass
        records.extend(batch)
        if limits is not None and limits.on_error and any(record.error is not None for record in batch):
            break
        if measured_pass > 0:
            strains.extend(strain)
            summaries.append(load.summarize(batch, pass_wall(batch), strain, arrivals.users))
        if stopped := crew.stopped:
            break
    measured = [record for record in records if record.measured_pass > 0]
    summary = load.total(measured, summaries, strains)
    if slo is not None:
        summary.goodput = slo.judge(measured, summary.wall)
    return LoadResult(arrivals.describe(), summary, summaries, failure_counts(records), stopped), records


def collect(
    report: Report, results: Sequence[LoadResult[Any]], records: Sequence[Sequence[Attempt]], max_lag: float
) -> None:
    """Adds the results to the report, and what speaks against them to its problems. `max_lag` in seconds."""
    for result, level_records in zip(results, records, strict=True):
        report.results.append(result)
        report.problems.extend(f"{load_name(result)}: {why}" for why in overload(result.passes, max_lag))
        if result.stopped:
            report.problems.append(f"{load_name(result)}: {result.stopped}")
        if result.failures:
            failed = sum(record.error is not None for record in level_records)
            report.problems.append(
                f"{load_name(result)}: {failed} requests failed, warm-up included: {result.failures[0]}"
            )
