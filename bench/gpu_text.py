"""`denizen-bench gpu-text`: text generation on one GPU over HTTP, with a random checkpoint of a real model's shape.

Parts stand alone: what fails is a problem of the result, and the next part runs. The result file is written anew after
each load, so that a run that is cut short leaves what it had.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import checkpoint, environment
from denizen.bench.gpu_parts import CONTEXTS, PARTS, REQUESTS_A_USER, Bench
from denizen.bench.options import finish, folder, lengths, positive_float, positive_int, shown
from denizen.bench.schema import Report

if TYPE_CHECKING:
    import argparse

    from denizen.bench.schema import LoadResult, LoadSummary


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "gpu-text",
        help="text on GPUs: closed loops, a single wave, resident beside host-planned",
        description="Starts `denizen serve` with a checkpoint (a random one of a real shape unless --checkpoint is "
        "given) and measures it over HTTP: fixed lengths, greedy, the first pass of each load dropped. Parts: floor "
        "(copy rate and the memory floor of a step), loops (closed loops), wave (requests that start together, no "
        "admissions in between), bf16-state (loops with a bf16 recurrent state), abba (resident, host-planned, "
        "host-planned, resident; with phase timers), context (phase timers at short and long contexts), state-quality "
        "(logits with fp32 and bf16 states against fp32 transformers).",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help="for the result in every form, and server.log"
    )
    parser.add_argument(
        "--device", default="cuda:0", help="one, or several for one server: cuda:0,cuda:1 (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="instead of a random one")
    parser.add_argument(
        "--shape", choices=checkpoint.shapes("text"), default="qwen3_5-0.8b", help="default: %(default)s"
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json[.xz] for a random checkpoint")
    parser.add_argument("--server-arg", action="append", default=[], metavar="ARG", help="for every server; repeatable")
    users = list(REQUESTS_A_USER)
    parser.add_argument("--concurrency", type=positive_int, nargs="+", default=users, metavar="N", help="of the loops")
    parser.add_argument("--wave-users", type=positive_int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--scale", type=positive_float, default=1.0, help="of the number of requests (default: 1)")
    parser.add_argument("--prompt-tokens", type=positive_int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--output-len", type=lengths, default=(256, 512), metavar="MIN:MAX", help="default: 256:512")
    parser.add_argument(
        "--contexts", type=positive_int, nargs=2, default=list(CONTEXTS), metavar="N", help="default: 512 16000"
    )
    parser.add_argument("--quality-texts", type=positive_int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument("--quality-tokens", type=positive_int, default=4000, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: %(default)s")
    cpus = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--processes", type=positive_int, default=max(1, min(8, cpus // 2)), help="default: %(default)s"
    )
    parser.add_argument("--max-client-lag", type=positive_float, default=5.0, metavar="MS", help="default: %(default)g")
    parser.add_argument("--timeout", type=positive_float, default=40.0, metavar="S", help="a request")
    parser.add_argument(
        "--pass-limit", type=positive_float, default=25.0, metavar="S", help="no request starts after it"
    )
    parser.add_argument("--ready-timeout", type=positive_float, default=180.0, metavar="S", help="default: %(default)g")
    parser.add_argument("--budget", type=positive_float, default=500.0, metavar="S", help="nothing starts after it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report("gpu-text", environment.describe(), shown(options))
    report.data["seed"] = options.seed
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as scratch:
        bench = Bench(options, report, Path(scratch))
        bench.attempt("checkpoint", bench.make_checkpoint)
        parts = set(options.parts)
        if "floor" in parts:
            bench.attempt("floor", bench.floor)
        if parts & {"loops", "wave"}:
            bench.attempt("loops", bench.loops)
        for name, part in {
            "bf16-state": bench.bf16_state,
            "abba": bench.abba,
            "context": bench.context,
            "state-quality": bench.quality,
        }.items():
            if name in parts:
                bench.attempt(name, part)
    _beside_the_floor(report, bench.loads)
    return finish(report, options)


def _beside_the_floor(report: Report, loads: dict[str, LoadResult[LoadSummary]]) -> None:
    """Output tokens/s of each load over what the memory floor of a step allows its users."""
    floors: dict[str, dict[int, Any]] = report.figures.get("floor", {})
    for name, load in loads.items():
        state = "rows_bf16_state" if name.startswith("bf16 state") else "rows"
        if found := floors.get(state, {}).get(load.load["concurrency"]):
            share = load.summary.output_tokens_per_s / found["tokens_per_s"]
            report.figures.setdefault("rate_over_floor", {})[name] = share
