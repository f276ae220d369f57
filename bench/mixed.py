"""`denizen-bench mixed`: text, speech and transcription at once on one server, each with its own objective."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from denizen.bench import environment
from denizen.bench.api import choose_model
from denizen.bench.crew import Crew
from denizen.bench.errors import BenchError
from denizen.bench.kind import Measured
from denizen.bench.launch import death_of, running, server_of, startup
from denizen.bench.levels import INTERRUPTED, collect
from denizen.bench.load import ClosedLoop, OpenLoop
from denizen.bench.mix import Mix, MixTarget, Part
from denizen.bench.options import (
    add_arrival_options,
    add_client_options,
    add_report_options,
    add_server_options,
    check_passes,
    finish,
    load_levels,
    positive_float,
    progress,
    shown,
)
from denizen.bench.report import load_name
from denizen.bench.schema import LoadResult, Report
from denizen.bench.slo import Slo
from denizen.bench.summary import failure_counts, pass_wall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.api import Target
    from denizen.bench.kind import Kind
    from denizen.bench.schema import Summary
    from denizen.bench.strain import Strain
    from tqdm import tqdm

_PLUS = "+"
_EXAMPLE = (
    "text --concurrency 8 --slo ttft_p99=0.5 + tts --rate 2 --slo first_playable_p95=0.15 + asr --data clips.jsonl"
)


@dataclass(frozen=True)
class Mixed:
    """The sub-command."""

    kinds: Sequence[Kind]
    """What a class may be."""
    name: str = "mixed"

    def add_parser(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        parser = commands.add_parser(
            self.name,
            help="several kinds of load on one server at once, each with its own SLO",
            description="Puts several classes of requests on one server at once and reports each on its own, with its "
            "own SLO and goodput. The result is valid only if all of them are.",
            epilog=f"For example: denizen-bench mixed --seconds 60 {_EXAMPLE}. "
            "`denizen-bench mixed KIND --help` lists what a class takes.",
        )
        self.fill(parser)
        add_report_options(parser)
        parser.set_defaults(run=self.run)

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Adds all options that a measurement needs."""
        add_server_options(parser)
        parser.add_argument(
            "--seconds", type=positive_float, default=30.0, metavar="S", help="a pass lasts (default: %(default)g)"
        )
        add_client_options(parser)
        names = ", ".join(kind.name for kind in self.kinds)
        parser.add_argument(
            "classes",
            nargs=argparse.REMAINDER,
            metavar="KIND … [+ KIND …]",
            help=f"after all other options: classes of requests, each a kind ({names}) with its own options, a "
            f"`{_PLUS}` between them",
        )

    def run(self, options: argparse.Namespace) -> int:
        measured = self.measure(options)
        return finish(measured.report, options, records=measured.records)

    def measure(self, options: argparse.Namespace) -> Measured:
        """One run: all classes at once on one server."""
        check_passes(options)
        classes = parse(options.classes, {kind.name: kind for kind in self.kinds})
        report = Report(self.name, environment.describe(), shown(options))
        with tempfile.TemporaryDirectory(prefix="denizen-bench-") as scratch:
            _measure(classes, options, report, Path(scratch))
        return Measured(report, [record for one in classes for record in one.records])


@dataclass
class Class:
    """One class of requests, and what came of it."""

    name: str
    kind: Kind
    options: argparse.Namespace
    records: list[Any] = field(default_factory=list)
    passes: list[Any] = field(default_factory=list)
    result: LoadResult[Any] | None = None


def parse(words: Sequence[str], kinds: dict[str, Kind]) -> list[Class]:
    """The classes of a command line. Raises BenchError for one that is none of `kinds`, or has several levels."""
    found: list[Class] = []
    for part in _split(words):
        name, *rest = part or [""]
        if name not in kinds:
            raise BenchError(
                f"mixed: expected a kind of requests ({', '.join(kinds)}){' instead of ' + repr(name) if name else ''}"
                f"{' after ' + _PLUS if found and not name else ''}, for example: {_EXAMPLE}"
            )
        kind = kinds[name]
        parser = argparse.ArgumentParser(
            prog=f"denizen-bench mixed {name}",
            description=f"A class of requests in a mix. {kind.description}",
            allow_abbrev=False,
        )
        parser.add_argument("--model", help="model name (default: the only one that the server offers)")
        add_arrival_options(parser, kind.record)
        kind.add_options(parser)
        options = parser.parse_args(rest)
        if len(options.concurrency or options.rate or [1]) > 1:
            raise BenchError(f"mixed: {name} has one level of load only: give --concurrency or --rate one number")
        Slo(options.slo).check(kind.record)
        same = sum(one.kind is kind for one in found)
        found.append(Class(f"{name} {same + 1}" if same else name, kind, options))
    return found


def _split(words: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == _PLUS:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _measure(classes: Sequence[Class], options: argparse.Namespace, report: Report, scratch: Path) -> None:
    server = server_of(options)
    prepared = []
    for index, one in enumerate(classes):
        own = one.options
        own.url, own.api_key, own.timeout = options.url, options.api_key, options.timeout
        # Classes of one kind must not send the same, nor at the same moments.
        own.seed = options.seed + index
        folder = scratch / str(index)
        folder.mkdir()
        prepared.append(one.kind.prepare(own, folder))
    with running(server, options):
        targets = [_choose(one, target) for one, (target, _) in zip(classes, prepared, strict=True)]
        parts = []
        for index, (one, (_, load)) in enumerate(zip(classes, prepared, strict=True)):
            [arrivals] = load_levels(one.options)
            assert isinstance(arrivals, ClosedLoop | OpenLoop)
            parts.append(Part(index, one.name, arrivals, load))
        mix = MixTarget(
            url=options.url, model="", api_key=options.api_key, timeout=options.timeout, targets=tuple(targets)
        )
        if server is not None:
            report.environment["server"] = environment.redact(server.command)
            report.figures["startup"] = startup(server, targets[0], prepared[0][1].jobs(0, 0)[0])
        stopped = _run(classes, parts, mix, options)
        report.problems.extend(death_of(server))
    report.options["classes"] = {one.name: shown(one.options) for one in classes}
    report.data = {"seed": options.seed, "classes": {}}
    for one, part in zip(classes, parts, strict=True):
        for measured_pass in range(options.passes):
            part.block(measured_pass, 0)  # what follows comes from the same seed, as much of it as there was time for
        report.data["classes"][one.name] = part.load.data()
        assert one.result is not None
        if stopped != INTERRUPTED and not any(record.measured_pass for record in one.records):
            report.problems.append(f"{one.name}: no request in the measured passes; raise --seconds")
    collect(
        report,
        [one.result for one in classes if one.result is not None],
        [one.records for one in classes],
        options.max_client_lag / 1000,
    )
    if stopped and stopped != INTERRUPTED:  # which each class says of itself
        report.problems.append(stopped)


def _choose(one: Class, target: Target) -> Target:
    try:
        target = choose_model(target)
    except BenchError as error:
        raise BenchError(f"{one.name}: {error}") from error
    one.options.model = target.model
    return target


def _run(classes: Sequence[Class], parts: Sequence[Part], target: MixTarget, options: argparse.Namespace) -> str | None:
    """All passes; fills in the classes' records and results. Returns why it ended early, if it did."""
    strains: list[Strain] = []
    stopped = None
    with (
        progress(round(options.passes * options.seconds), "s", options) as bar,
        Crew(target, options.processes) as crew,
    ):
        for number in range(options.passes):
            bar.set_description(f"pass {number}" if number else "warm-up")
            try:
                batch, strain = crew.run(
                    Mix(options.seconds, number), list(parts), _Elapsed(bar, number, options.seconds).show
                )
            except KeyboardInterrupt:
                stopped = INTERRUPTED
                break
            if number:
                strains.extend(strain)
            for one, part in zip(classes, parts, strict=True):
                own = [record for record in batch if record.level == one.name]
                for record in own:
                    record.error, record.measured_pass = part.load.check(record), number
                one.records.extend(own)
                if number:
                    one.passes.append(part.load.summarize(own, pass_wall(own), strain, part.arrivals.users))
            if stopped := crew.stopped:
                break
    for one, part in zip(classes, parts, strict=True):
        measured = [record for record in one.records if record.measured_pass]
        summary: Summary = part.load.total(measured, one.passes, strains)
        summary.goodput = Slo(one.options.slo).judge(measured, summary.wall)
        described = part.arrivals.describe()
        unnamed: LoadResult[Any] = LoadResult(described, summary, one.passes, failure_counts(one.records))
        unnamed.stopped = INTERRUPTED if stopped == INTERRUPTED else None
        described["name"] = f"{one.name}, {load_name(unnamed)}"
        for record in one.records:
            record.level = described["name"]
        one.result = unnamed
    return stopped


class _Elapsed:
    """Shows on the bar how much of the time is over, whenever a request has been answered."""

    def __init__(self, bar: tqdm[NoReturn], number: int, seconds: float) -> None:
        self._bar, self._before, self._seconds = bar, number * seconds, seconds
        self._start = time.monotonic()

    def show(self, _: object) -> None:
        now = self._before + min(time.monotonic() - self._start, self._seconds)
        self._bar.update(round(now) - self._bar.n)
