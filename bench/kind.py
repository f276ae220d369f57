"""A kind of load (text, transcription, …), and the run of one: what `text`, `asr`, `sweep` and `compare` share.

A kind brings its own options, and makes a target and a load of them. Everything else is here: the
server of `--launch`, the model's name, passes and levels, problems, and the result.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import environment
from denizen.bench.api import choose_model
from denizen.bench.errors import BenchError
from denizen.bench.launch import death_of, running, server_of, startup
from denizen.bench.levels import collect, run_levels
from denizen.bench.memory import MIB, Watch
from denizen.bench.options import (
    add_arrival_options,
    add_client_options,
    add_report_options,
    add_server_options,
    add_soak_options,
    check_passes,
    finish,
    load_levels,
    progress,
    shown,
)
from denizen.bench.schema import Report
from denizen.bench.slo import Slo

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from denizen.bench.api import Target
    from denizen.bench.levels import Load
    from denizen.bench.schema import Attempt
    from denizen.bench.server import Launched


@dataclass(frozen=True)
class Kind:
    """A sub-command that puts one load on one server."""

    name: str
    help: str
    description: str
    record: type[Attempt]
    """What its requests become."""
    add_options: Callable[[argparse.ArgumentParser], None]
    """Adds the options that only this kind has."""
    prepare: Callable[[argparse.Namespace, Path], tuple[Target, Load[Any, Any]]]
    """Target and load of the options; files are made in the folder, which lives as long as the run. Raises
    BenchError for options that contradict each other."""

    def add_parser(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        parser = commands.add_parser(self.name, help=self.help, description=self.description)
        self.fill(parser)
        add_report_options(parser)
        parser.set_defaults(run=self.run)

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Adds all options that a measurement needs."""
        add_server_options(parser)
        add_arrival_options(parser, self.record)
        self.add_options(parser)
        add_client_options(parser)
        add_soak_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        measured = self.measure(options)
        return finish(measured.report, options, records=measured.records)

    def measure(self, options: argparse.Namespace) -> Measured:
        """One run: all levels of load on one server."""
        check_passes(options)
        levels = load_levels(options)
        if options.max_growth and not (options.soak and options.launch):
            raise BenchError("--max-growth needs --soak and --launch: the memory of a server that is started here")
        with session(self, options) as found:
            total = None if options.soak else len(levels) * options.passes * found.load.requests
            with found.memory(options), progress(total, "req", options) as bar:
                results, records = run_levels(
                    found.target,
                    found.load,
                    levels,
                    options.passes,
                    bar,
                    options.processes,
                    slo=Slo(options.slo),
                    soak=options.soak,
                    partial=True,
                )
            collect(found.report, results, records, options.max_client_lag / 1000)
            found.measured.records = [record for level_records in records for record in level_records]
        return found.measured


@dataclass
class Measured:
    """What a run gives."""

    report: Report
    records: Sequence[Attempt] = field(default_factory=list)


@dataclass
class Session:
    """A server that answers, and what is sent to it."""

    measured: Measured
    target: Target
    load: Load[Any, Any]
    server: Launched | None

    @property
    def report(self) -> Report:
        return self.measured.report

    @contextlib.contextmanager
    def memory(self, options: argparse.Namespace) -> Iterator[None]:
        """Watches the memory of the server over a soak."""
        if self.server is None or not options.soak:
            yield
            return
        with Watch(self.server.pid) as watch:
            yield
        found = self.report.figures["memory"] = watch.figures()
        limit = options.max_growth
        if limit and (found is None or found["per_hour"] > limit * MIB):
            grown = "cannot be told: the soak is too short" if found is None else f"{found['per_hour'] / MIB:.1f} MiB"
            self.report.problems.append(f"growth of the server's memory an hour: {grown} (limit {limit:g} MiB)")


@contextlib.contextmanager
def session(kind: Kind, options: argparse.Namespace) -> Iterator[Session]:
    """Starts the server of `--launch`, if any, and chooses the model; the report is complete when the block ends."""
    slo = Slo(options.slo)
    slo.check(kind.record)
    report = Report(kind.name, environment.describe(), shown(options))
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as scratch:
        server = server_of(options)
        target, load = kind.prepare(options, Path(scratch))
        with running(server, options):
            target = choose_model(target)
            report.options["model"] = target.model
            if server is not None:
                report.environment["server"] = environment.redact(server.command)
                report.figures["startup"] = startup(server, target, load.jobs(0, 0)[0])
            yield Session(Measured(report), target, load, server)
            report.problems.extend(death_of(server))
        report.data = {"seed": options.seed, **load.data()}
