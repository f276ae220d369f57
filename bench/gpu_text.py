"""`denizen-bench gpu-text`: text generation on one GPU over HTTP, with a random checkpoint of a real model's shape.

Parts stand alone: what fails is a problem of the result, and the next part runs. The result file is written anew after
each load, so that a run that is cut short leaves what it had.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import checkpoint, environment, phases, state_quality
from denizen.bench.gpu_parts import CONTEXTS, PARTS, REQUESTS_A_USER, Bench
from denizen.bench.options import finish, lengths, positive_float, positive_int, shown
from denizen.bench.report import table
from denizen.bench.schema import Report

if TYPE_CHECKING:
    import argparse

    from denizen.bench.schema import LoadResult, LoadSummary


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "gpu-text",
        help="text on one GPU: closed loops, a single wave, resident beside host-planned",
        description="Starts `denizen serve` with a checkpoint (a random one of a real shape unless --checkpoint is "
        "given) and measures it over HTTP: fixed lengths, greedy, the first pass of each load dropped. Parts: floor "
        "(copy rate and the memory floor of a step), loops (closed loops), wave (requests that start together, no "
        "admissions in between), bf16-state (loops with a bf16 recurrent state), abba (resident, host-planned, "
        "host-planned, resident; with phase timers), context (phase timers at short and long contexts), state-quality "
        "(logits with fp32 and bf16 states against fp32 transformers).",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for gpu-text.json and server.log")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
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
    parser.set_defaults(run=run, json=None)


def run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    options.json = options.out / "gpu-text.json"
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
    return finish(report, options, _body(report, bench.loads))


def _body(report: Report, loads: dict[str, LoadResult[LoadSummary]]) -> str:
    floors: dict[str, dict[int, Any]] = report.figures.get("floor", {})
    rows = []
    for name, load in loads.items():
        total = load.summary
        state = "rows_bf16_state" if name.startswith("bf16 state") else "rows"
        floor = floors.get(state, {}).get(load.load["concurrency"])
        rows.append(
            [
                name,
                f"{total.output_tokens_per_s:.0f}",
                f"{total.full_load.output_tokens_per_s:.0f}" if total.full_load else "–",
                *(
                    f"{1000 * getattr(values, column):.2f}" if values else "–"
                    for values in (total.ttft, total.itl)
                    for column in ("p50", "p99")
                ),
                "warm-up" if load.failures and not total.failed else str(total.failed),
                f"{floor['tokens_per_s']:.0f}" if floor else "–",
            ]
        )
    lines = []
    for key, found in report.figures.get("phases", {}).items():
        if decode := {label: figures for label, figures in found.items() if ", decode," in label}:
            lines.append(f"{key}:\n{phases.brief(decode)}\n")
    header = ["", "tok/s", "all busy", "TTFT ms p50", "p99", "ITL ms p50", "p99", "failed", "floor tok/s"]
    lines.append(table(header, rows) if rows else "nothing was measured")
    if note := report.data.get("phases"):
        lines.append(f"phases: {note}")
    if ratio := report.figures.get("loop_over_wave"):
        busy = f"; all users busy: {ratio['all_users_busy']:.3f}" if ratio["all_users_busy"] else ""
        lines.append(f"closed loop over wave: {ratio['whole']:.3f}{busy}")
    for users, value in report.figures.get("resident_over_host_planned", {}).items():
        lines.append(f"resident over host-planned, {users} users: {value:.3f}")
    if found := report.figures.get("host_time_by_context"):
        ratios = ", ".join(f"{name} {value:.3f}" for name, value in found["ratio"].items())
        short, long = found["us"]
        lines.append(f"host time of a step at {long} tokens over {short}, bucket {found['bucket']}: {ratios}")
    if found := report.figures.get("state_quality"):
        lines.append("\n" + table(state_quality.HEADER, state_quality.rows(found)))
    return "\n".join(lines)
