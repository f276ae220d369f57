"""`denizen-bench cpu-text`: Denizen beside `transformers.generate`, on the same checkpoint, dtype and threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from denizen.bench import environment
from denizen.bench.client import TextTarget
from denizen.bench.errors import BenchError
from denizen.bench.load import ClosedLoop
from denizen.bench.options import add_report_options, finish, positive_int, progress, shown
from denizen.bench.schema import Report
from denizen.bench.server import Server, builtin_checkpoint
from denizen.bench.summary import check, failure_counts
from denizen.bench.workload import Job, words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from denizen.bench.schema import Record

_MODEL = "bench"
_CONCURRENCY = 8
_REFERENCE, _ONE, _EIGHT = "transformers, batch 1", "denizen, 1 stream", f"denizen, {_CONCURRENCY} streams"
# There and back: a machine that drifts within a round drifts for both sides.
_ORDER = (_REFERENCE, _ONE, _EIGHT, _EIGHT, _ONE, _REFERENCE)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cpu-text",
        help="beside transformers.generate on the same checkpoint, dtype and threads",
        description="Decode speed at batch 1 over that of transformers.generate, and total tokens/s at 8 concurrent "
        "requests over a single stream. Greedy, fp32, fixed lengths; the sides take turns (ABBA) in one run.",
    )
    parser.add_argument("--url", help="a server that runs already with the same threads (default: starts one)")
    parser.add_argument("--model", help="its model name, with --url")
    parser.add_argument("--checkpoint", metavar="DIR", help="default: the built-in model")
    cpus = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=positive_int, default=cpus, help="of both sides (default: %(default)s)")
    parser.add_argument("--rounds", type=positive_int, default=3, help="after one that warms up (default: %(default)s)")
    parser.add_argument("--requests", type=positive_int, default=2, help="a stream and turn (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=positive_int, default=32, metavar="N", help="default: %(default)s")
    parser.add_argument("--output-tokens", type=positive_int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    add_report_options(parser, records=False)
    parser.set_defaults(run=run)


@dataclass
class Turn:
    """What one side did in one turn."""

    decode_tokens_per_s: float
    """Tokens after the first, over the time from the first to the last, of one stream."""
    total_tokens_per_s: float
    """All output tokens over the wall time, prefill included."""


@dataclass
class Side:
    turns: list[list[Turn]] = field(default_factory=list)
    """By round."""

    def mean(self, number: int, name: str) -> float:
        return statistics.fmean(getattr(turn, name) for turn in self.turns[number])


def run(options: argparse.Namespace) -> int:
    if bool(options.url) != bool(options.model):
        raise BenchError("--url and --model go together")
    report = Report("cpu-text", environment.describe(), shown(options))
    checkpoint = options.checkpoint or builtin_checkpoint()
    report.data = {"seed": options.seed, "checkpoint": os.path.basename(checkpoint.rstrip("/"))}
    report.data["model_revision"] = environment.model_revision(checkpoint)
    sides = {name: Side() for name in (_REFERENCE, _ONE, _EIGHT)}
    with contextlib.ExitStack() as stack:
        url, model = options.url, options.model
        if not url:
            arguments = ["--model", f"{_MODEL}={checkpoint}", "--devices", "cpu", "--threads", str(options.threads)]
            url, model = stack.enter_context(Server(arguments)).url, _MODEL
        reference = stack.enter_context(transformers_child(checkpoint, options.threads))
        target = TextTarget(url=url, model=model, endpoint="completions", ignore_eos=True, extra={"temperature": 0})
        bench = _Bench(reference, target, options, report.problems)
        bar = stack.enter_context(progress((options.rounds + 1) * len(_ORDER), "turn", options))
        for number in range(options.rounds + 1):
            turns: dict[str, list[Turn]] = {name: [] for name in sides}
            for name in _ORDER:
                bar.set_description(name)
                turns[name].append(bench.turn(name))
                bar.update()
            if number > 0:
                for name, side in sides.items():
                    side.turns.append(turns[name])
    report.figures = _figures(sides, options.rounds)
    return finish(report, options)


class _Bench:
    """Takes turns between the sides, over the same prompts."""

    def __init__(
        self, reference: Reference, target: TextTarget, options: argparse.Namespace, problems: list[str]
    ) -> None:
        self._reference = reference
        self._target = target
        self._options = options
        self._problems = problems
        self._rng = random.Random(options.seed)

    def turn(self, name: str) -> Turn:
        if name == _REFERENCE:
            return self._transformers()
        return asyncio.run(self._denizen(1 if name == _ONE else _CONCURRENCY))

    def _prompt(self) -> str:
        return words(self._rng, self._options.prompt_tokens)

    def _transformers(self) -> Turn:
        tokens = self._options.output_tokens
        replies = [self._reference.generate(self._prompt(), tokens) for _ in range(self._options.requests)]
        short = [reply["tokens"] for reply in replies if reply["tokens"] != tokens]
        if short:
            self._problems.append(f"transformers gave {short[0]} tokens instead of {tokens}")
        return Turn(
            sum(reply["tokens"] - 1 for reply in replies) / sum(reply["last"] - reply["first"] for reply in replies),
            sum(reply["tokens"] for reply in replies) / sum(reply["end"] for reply in replies),
        )

    async def _denizen(self, concurrency: int) -> Turn:
        tokens = self._options.output_tokens
        jobs = [
            Job(index, self._prompt(), None, tokens, seed=index)
            for index in range(concurrency * self._options.requests)
        ]
        records: list[Record] = []
        async with self._target.connect() as client:
            wall = await ClosedLoop(concurrency).run(jobs, client.send, records.append)
        for record in records:
            record.error = check(record, ignore_eos=True, stream=True)
        if failures := failure_counts(records):
            self._problems.extend(failures)
            raise BenchError(f"requests to {self._target.url} failed: {'; '.join(failures)}")
        decoding = sum((record.last or 0) - (record.first or 0) for record in records)
        if decoding <= 0:
            raise BenchError("every answer arrived in one piece: too short to time, raise --output-tokens")
        return Turn(
            sum(record.tokens - 1 for record in records) / decoding,
            sum(record.tokens for record in records) / wall,
        )


def _figures(sides: dict[str, Side], rounds: int) -> dict[str, Any]:
    def ratio(above: str, below: str, name: str) -> dict[str, float]:
        values = [sides[above].mean(number, name) / sides[below].mean(number, name) for number in range(rounds)]
        return {"median": statistics.median(values), "min": min(values), "max": max(values)}

    speeds = {
        name: {
            unit: statistics.median(side.mean(number, unit) for number in range(rounds))
            for unit in ("decode_tokens_per_s", "total_tokens_per_s")
        }
        for name, side in sides.items()
    }
    return {
        "speeds": speeds,
        "decode_batch_1_over_transformers": ratio(_ONE, _REFERENCE, "decode_tokens_per_s"),
        "total_8_streams_over_1_stream": ratio(_EIGHT, _ONE, "total_tokens_per_s"),
        "total_8_streams_over_transformers": ratio(_EIGHT, _REFERENCE, "total_tokens_per_s"),
    }


class Reference:
    """The child that runs `transformers`."""

    def __init__(self, process: subprocess.Popen[str], stdin: IO[str], stdout: IO[str]) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout

    def read(self) -> dict[str, Any]:
        line = self._stdout.readline()
        if not line:
            raise BenchError(f"the transformers process exited with {self._process.wait()}; its error is above")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def generate(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        self._stdin.write(json.dumps({"prompt": prompt, "max_tokens": max_tokens}) + "\n")
        self._stdin.flush()
        return self.read()


@contextlib.contextmanager
def transformers_child(checkpoint: str, threads: int) -> Iterator[Reference]:
    """`transformers` with the checkpoint loaded, in a process of its own: its thread pool idles between turns."""
    command = [sys.executable, "-m", "denizen.bench.reference", checkpoint, str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        reference = Reference(process, process.stdin, process.stdout)
        try:
            reference.read()
            yield reference
        finally:
            process.stdin.close()
