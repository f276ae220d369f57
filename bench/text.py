"""`denizen-bench text`: load on any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from denizen.bench import environment
from denizen.bench.client import Client, Target
from denizen.bench.crew import Crew
from denizen.bench.errors import BenchError
from denizen.bench.load import ClosedLoop, OpenLoop
from denizen.bench.options import add_report_options, finish, lengths, positive_float, positive_int, progress, shown
from denizen.bench.report import load_name, load_table
from denizen.bench.schema import FullLoad, LoadResult, Report, write_records
from denizen.bench.summary import check, failure_counts, overload, pass_wall, summarize
from denizen.bench.workload import Workload, read_prompts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from denizen.bench.crew import Limits
    from denizen.bench.load import Arrivals
    from denizen.bench.schema import LoadSummary, Record
    from denizen.bench.strain import Strain
    from tqdm import tqdm


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "text",
        help="load on an OpenAI-compatible server: latency and throughput",
        description="Sends chat or completion requests to any OpenAI-compatible server and reports TTFT, TPOT, ITL, "
        "E2E, output tokens/s and requests/s. Any failed request makes the result invalid and the exit status 1.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL (default: %(default)s)")
    parser.add_argument("--model", help="model name (default: the only one that the server offers)")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="default: %(default)s")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=positive_int, nargs="+", metavar="N", help="closed loop: users at once (default: 1)"
    )
    load.add_argument("--rate", type=positive_float, nargs="+", metavar="R", help="open loop: Poisson requests/s")
    parser.add_argument("--requests", type=positive_int, default=64, metavar="N", help="a pass (default: %(default)s)")
    parser.add_argument(
        "--passes", type=positive_int, default=2, help="the first warms up and is dropped (default: %(default)s)"
    )
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
    parser.add_argument("--seed", type=int, default=0, help="of prompts, lengths, arrivals, sampling (default: 0)")
    parser.add_argument("--timeout", type=positive_float, default=600.0, metavar="S", help="default: %(default)g s")
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.passes < 2:
        raise BenchError("--passes must be at least 2: the first pass warms up and is dropped")
    report = Report("text", environment.describe(), shown(options))
    records = _measure(options, report)
    if options.records:
        write_records(options.records, records)
    return finish(report, options, load_table(report.results))


def _measure(options: argparse.Namespace, report: Report) -> list[Record]:
    target = Target(
        url=options.url,
        model=options.model or "",
        endpoint=options.endpoint,
        api_key=options.api_key,
        stream=options.stream,
        ignore_eos=options.ignore_eos,
        timeout=options.timeout,
        extra={"temperature": options.temperature},
    )
    offered = asyncio.run(_offered(target))
    if not options.model:
        if len(offered) != 1:
            raise BenchError(f"--model is needed: the server offers {', '.join(offered) or 'none'}")
        target = dataclasses.replace(target, model=offered[0])
    elif options.model not in offered:
        raise BenchError(f"--model {options.model}: the server offers {', '.join(offered) or 'none'}")
    report.options["model"] = target.model
    workload = Workload(
        seed=options.seed,
        requests=options.requests,
        output_len=options.output_len,
        prompt_tokens=options.prompt_tokens,
        prompts=read_prompts(options.prompts) if options.prompts else None,
    )
    levels: list[Arrivals] = (
        [OpenLoop(rate, options.seed) for rate in options.rate]
        if options.rate
        else [ClosedLoop(concurrency) for concurrency in options.concurrency or [1]]
    )
    total = len(levels) * options.passes * workload.requests
    with progress(total, "req", options) as bar:
        results, levels_records = run_levels(target, workload, levels, options.passes, bar, options.processes)
    collect(report, results, levels_records, options.max_client_lag / 1000)
    records = [record for level_records in levels_records for record in level_records]
    report.data = {"seed": options.seed, "sha256": workload.sha256()}
    return records


def collect(report: Report, results: list[LoadResult], records: list[list[Record]], max_lag: float) -> None:
    """Adds the results to the report, and what speaks against them to its problems. `max_lag` in seconds."""
    for result, level_records in zip(results, records, strict=True):
        report.results.append(result)
        report.problems.extend(f"{load_name(result)}: {why}" for why in overload(result.passes, max_lag))
        if result.failures:
            failed = sum(record.error is not None for record in level_records)
            report.problems.append(
                f"{load_name(result)}: {failed} requests failed, warm-up included: {result.failures[0]}"
            )


async def _offered(target: Target) -> list[str]:
    async with Client(target) as client:
        return await client.models()


def run_levels(
    target: Target,
    workload: Workload,
    levels: Sequence[Arrivals],
    passes: int,
    bar: tqdm[NoReturn],
    processes: int = 1,
    limits: Limits | None = None,
) -> tuple[list[LoadResult], list[list[Record]]]:
    """Runs every level of load `passes` times; the first pass of each warms up. Returns results and all records.

    With `limits.on_error` a level ends with a pass that had a failure, since its result is lost already.
    """
    results: list[LoadResult] = []
    everything: list[list[Record]] = []
    with Crew(target, processes, limits) as crew:
        for number, arrivals in enumerate(levels):
            level_records: list[Record] = []
            strains: list[Strain] = []
            summaries: list[LoadSummary] = []
            for measured_pass in range(passes):
                bar.set_description(f"{arrivals.label} " + (f"pass {measured_pass}" if measured_pass else "warm-up"))
                batch, strain = crew.run(arrivals, workload.jobs(number, measured_pass), bar.update)
                for record in batch:
                    record.error = check(record, ignore_eos=target.ignore_eos, stream=target.stream)
                    record.level, record.measured_pass = arrivals.label, measured_pass
                level_records.extend(batch)
                if limits is not None and limits.on_error and any(record.error is not None for record in batch):
                    break
                if measured_pass > 0:
                    strains.extend(strain)
                    summaries.append(summarize(batch, pass_wall(batch), strain, arrivals.users))
            measured = [record for record in level_records if record.measured_pass > 0]
            summary = summarize(measured, sum(summary.wall for summary in summaries), strains)
            full = [part.full_load for part in summaries if part.full_load is not None]
            if full:
                seconds, tokens = sum(part.seconds for part in full), sum(part.output_tokens for part in full)
                summary.full_load = FullLoad(seconds, tokens, tokens / seconds)
            results.append(LoadResult(arrivals.describe(), summary, summaries, failure_counts(level_records)))
            everything.append(level_records)
    return results, everything
