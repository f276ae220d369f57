"""`denizen-bench text`: load on any OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from denizen.bench import environment
from denizen.bench.api import choose_model
from denizen.bench.client import TextTarget
from denizen.bench.levels import collect, run_levels
from denizen.bench.options import (
    add_load_options,
    add_report_options,
    add_server_options,
    check_passes,
    finish,
    lengths,
    load_levels,
    positive_int,
    progress,
    shown,
)
from denizen.bench.schema import FullLoad, Report
from denizen.bench.summary import check, summarize
from denizen.bench.workload import Workload, read_prompts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from denizen.bench.schema import LoadSummary, Record
    from denizen.bench.strain import Strain
    from denizen.bench.workload import Job


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "text",
        help="load on an OpenAI-compatible server: latency and throughput",
        description="Sends chat or completion requests to any OpenAI-compatible server and reports TTFT, TPOT, ITL, "
        "E2E, output tokens/s and requests/s. Any failed request makes the result invalid and the exit status 1.",
    )
    add_server_options(parser)
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="default: %(default)s")
    add_load_options(parser)
    parser.add_argument("--requests", type=positive_int, default=64, metavar="N", help="a pass (default: %(default)s)")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt-tokens", type=positive_int, default=64, metavar="N", help="random words (default: %(default)s)"
    )
    prompts.add_argument("--prompts", type=Path, metavar="FILE", help="one a line, or .jsonl (`prompt` or `messages`)")
    parser.add_argument(
        "--output-len", type=lengths, default=(64, 64), metavar="MIN:MAX", help="max_tokens, drawn (default: 64:64)"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="fixed lengths: end ids do not end an answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: %(default)s")
    parser.add_argument("--no-stream", dest="stream", action="store_false", help="whole answers: E2E only")
    parser.add_argument("--stream", action="store_true", default=True, help="stream answers (the default)")
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    check_passes(options)
    report = Report("text", environment.describe(), shown(options))
    records = _measure(options, report)
    return finish(report, options, records=records)


def _measure(options: argparse.Namespace, report: Report) -> list[Record]:
    target = choose_model(
        TextTarget(
            url=options.url,
            model=options.model or "",
            endpoint=options.endpoint,
            api_key=options.api_key,
            stream=options.stream,
            ignore_eos=options.ignore_eos,
            timeout=options.timeout,
            extra={"temperature": options.temperature},
        )
    )
    report.options["model"] = target.model
    workload = Workload(
        seed=options.seed,
        requests=options.requests,
        output_len=options.output_len,
        prompt_tokens=options.prompt_tokens,
        prompts=read_prompts(options.prompts) if options.prompts else None,
    )
    levels = load_levels(options)
    load = TextLoad(workload, target)
    total = len(levels) * options.passes * workload.requests
    with progress(total, "req", options) as bar:
        results, levels_records = run_levels(target, load, levels, options.passes, bar, options.processes)
    collect(report, results, levels_records, options.max_client_lag / 1000)
    records = [record for level_records in levels_records for record in level_records]
    report.data = {"seed": options.seed, "sha256": workload.sha256()}
    return records


@dataclass(frozen=True)
class TextLoad:
    """Requests for text (:class:`denizen.bench.levels.Load`)."""

    workload: Workload
    target: TextTarget

    def jobs(self, level: int, number: int) -> list[Job]:
        return self.workload.jobs(level, number)

    def check(self, record: Record) -> str | None:
        return check(record, ignore_eos=self.target.ignore_eos, stream=self.target.stream)

    def summarize(
        self, records: Sequence[Record], wall: float, strains: Sequence[Strain], users: int | None
    ) -> LoadSummary:
        return summarize(records, wall, strains, users)

    def total(self, records: Sequence[Record], passes: Sequence[LoadSummary], strains: Sequence[Strain]) -> LoadSummary:
        summary = summarize(records, sum(part.wall for part in passes), strains)
        full = [part.full_load for part in passes if part.full_load is not None]
        if full:
            seconds, tokens = sum(part.seconds for part in full), sum(part.output_tokens for part in full)
            summary.full_load = FullLoad(seconds, tokens, tokens / seconds)
        return summary
