"""`denizen-bench gpu-asr`: transcription on one GPU over HTTP, with a random checkpoint of a real model's shape.

Random weights say nothing, so the lengths of answers are forced. With `--checkpoint` and `--data` the weights and the
recordings are real, and the word error rate is reported instead.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from denizen.bench import checkpoint, encoder, environment
from denizen.bench.asr import SECONDS, SYNTHETIC_CLIPS, AsrLoad, describe, prepare, spread
from denizen.bench.asr_client import AsrTarget
from denizen.bench.crew import Limits
from denizen.bench.errors import BenchError
from denizen.bench.gpu_run import MODEL, GpuRun
from denizen.bench.levels import collect, run_levels
from denizen.bench.load import ClosedLoop
from denizen.bench.options import finish, folder, positive_float, positive_int, progress, shown
from denizen.bench.schema import Report, TranscriptSummary
from denizen.bench.synthetic import Lengths

if TYPE_CHECKING:
    import argparse

    from denizen.bench.clips import Clip
    from denizen.bench.server import Server

PARTS = ("ceiling", "loops")
#: Published for another server: large-v3-turbo on one H200, 64 users, LibriSpeech test-clean.
PUBLISHED_REQUESTS_PER_S = 105.4
TOKENS = Lengths(12, 60, 27)
_COUNTER = "denizen_output_tokens_total"


@dataclass
class Load:
    """A closed loop: its name in the table, and its users."""

    name: str
    users: int


@dataclass
class Bench(GpuRun[Load, TranscriptSummary]):
    clips: tuple[Clip, ...] = ()

    def make_checkpoint(self) -> None:
        options = self.options
        if options.checkpoint:
            self.folder = options.checkpoint
            self.report.data["model_revision"] = environment.model_revision(self.folder)
        elif options.tokenizer:
            self.folder = self.scratch / options.shape
            checkpoint.write(options.shape, self.folder, options.tokenizer, seed=options.seed)
        else:
            raise BenchError("--tokenizer or --checkpoint is needed")
        self.report.data["weights_sha256"] = checkpoint.sha256(self.folder)

    def make_clips(self) -> None:
        folder = self.scratch / "clips"
        folder.mkdir()
        self.clips = tuple(prepare(self.options, folder))
        self.report.data |= describe(self.clips)

    def ceiling(self) -> None:
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        found = encoder.measure(self.options.device, self.folder)
        operations = encoder.flops(config)
        self.report.figures["encoder"] = {
            "flops_per_window": operations,
            **found,
            "ceiling_windows_per_s": found["matmul_flops_per_s"] / operations,
        }

    def loops(self) -> None:
        if not self.clips:
            raise BenchError("there are no clips")
        self.serve([Load(f"loop {users}", users) for users in self.options.concurrency])

    def measure(self, server: Server, load: Load) -> None:
        options = self.options
        self.check_budget()
        target = AsrTarget(url=server.url, model=MODEL, timeout=options.timeout, clips=self.clips)
        forced = None if options.data else options.output_tokens
        uploads = AsrLoad(self.clips, options.requests or len(self.clips), options.seed, forced)
        before = counted_tokens(server.url)
        with progress(options.passes * uploads.requests, "req", options) as bar:
            results, records = run_levels(
                target,
                uploads,
                [ClosedLoop(load.users)],
                options.passes,
                bar,
                min(options.processes, load.users),
                Limits(on_error=True, seconds=options.pass_limit),
            )
        results[0].load["name"] = load.name
        collect(self.report, results, records, options.max_client_lag / 1000)
        self.report.data.setdefault("sha256", {})[load.name] = uploads.sha256()
        self.loads[load.name] = results[0]
        asked = sum(record.max_tokens or 0 for record in records[0] if record.error is None)
        made = counted_tokens(server.url) - before
        self.report.figures.setdefault("output_tokens", {})[load.name] = {"asked": asked, "made": made}
        if made < asked:
            self.report.problems.append(f"{load.name}: the server made {made:.0f} tokens, {asked} were asked for")


def counted_tokens(url: str) -> float:
    """Output tokens that a server has made so far, by its own count. Raises BenchError."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError as error:
        raise BenchError(f"{url}/metrics: {error}") from error
    found = [float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].split(" ")[0] == _COUNTER]
    if not found:
        raise BenchError(f"{url}/metrics has no {_COUNTER}")
    return sum(found)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "gpu-asr",
        help="transcription on one GPU: closed loops of uploads, beside the encoder's ceiling",
        description="Starts `denizen serve` with a Whisper checkpoint (a random one of a real shape unless "
        "--checkpoint is given) and uploads clips to it over HTTP, the first pass of each load dropped. Parts: ceiling "
        "(the encoder's arithmetic over the device's matrix rate, and transformers' encoder), loops (closed loops).",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help="for the result in every form, and server.log"
    )
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="instead of a random one")
    shapes = checkpoint.shapes("asr")
    parser.add_argument("--shape", choices=shapes, default="whisper-large-v3-turbo", help="default: %(default)s")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json[.xz] for a random checkpoint")
    parser.add_argument("--server-arg", action="append", default=[], metavar="ARG", help="for every server; repeatable")
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="real recordings, as for `asr`; lengths are not forced"
    )
    parser.add_argument("--language", default="en", help="of clips that name none (default: %(default)s)")
    parser.add_argument(
        "--synthetic-from", type=Path, nargs="+", metavar="FILE", help="cut the clips from 16 kHz recordings"
    )
    parser.add_argument("--clips", type=positive_int, metavar="N", help=f"default: all; synthetic: {SYNTHETIC_CLIPS}")
    parser.add_argument("--seconds", type=spread, default=SECONDS, metavar="MIN:MAX[:MEAN]", help="default: 2:20:7.4")
    parser.add_argument("--format", choices=("wav", "flac"), default="flac", help="default: %(default)s")
    parser.add_argument(
        "--output-tokens", type=spread, default=TOKENS, metavar="MIN:MAX[:MEAN]", help="forced (default: 12:60:27)"
    )
    parser.add_argument("--concurrency", type=positive_int, nargs="+", default=[64], metavar="N", help="default: 64")
    parser.add_argument("--requests", type=positive_int, metavar="N", help="a pass (default: each clip once)")
    parser.add_argument("--passes", type=positive_int, default=4, help="the first is dropped (default: %(default)s)")
    cpus = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--processes", type=positive_int, default=max(1, min(4, cpus // 4)), help="default: %(default)s"
    )
    parser.add_argument(
        "--max-client-lag", type=positive_float, default=20.0, metavar="MS", help="default: %(default)g"
    )
    parser.add_argument("--timeout", type=positive_float, default=60.0, metavar="S", help="a request")
    parser.add_argument(
        "--pass-limit", type=positive_float, default=40.0, metavar="S", help="no request starts after it"
    )
    parser.add_argument("--ready-timeout", type=positive_float, default=240.0, metavar="S", help="default: %(default)g")
    parser.add_argument("--budget", type=positive_float, default=400.0, metavar="S", help="nothing starts after it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run, synthetic=True, silence=None)


def run(options: argparse.Namespace) -> int:
    if options.passes < 2:
        raise BenchError("--passes must be at least 2: the first pass warms up and is dropped")
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report("gpu-asr", environment.describe(), shown(options))
    report.data["seed"] = options.seed
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as scratch:
        bench = Bench(options, report, Path(scratch))
        bench.attempt("checkpoint", bench.make_checkpoint)
        if "ceiling" in options.parts:
            bench.attempt("ceiling", bench.ceiling)
        if "loops" in options.parts:
            bench.attempt("clips", bench.make_clips)
            bench.attempt("loops", bench.loops)
    compare(bench)
    return finish(report, options)


def compare(bench: Bench) -> None:
    """Sets each load beside the published figure and the encoder's rates."""
    found = bench.report.figures.get("encoder")
    for name, load in bench.loads.items():
        rate = load.summary.requests_per_s
        beside = bench.report.figures.setdefault("beside", {})[name] = {"published": rate / PUBLISHED_REQUESTS_PER_S}
        if found is not None:
            # Each request is one window. Time at least that the encoder takes of a second, and what it would take in
            # plain PyTorch.
            beside["encoder_share_at_ceiling"] = rate / found["ceiling_windows_per_s"]
            if found["plain_windows_per_s"]:
                beside["encoder_share_in_plain_torch"] = rate / found["plain_windows_per_s"]
