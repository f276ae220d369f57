"""`denizen-bench gpu-text`: text generation on one GPU over HTTP, with a random checkpoint of a real model's shape.

Parts stand alone: what fails is a problem of the result, and the next part runs. The result file is written anew after
each load, so that a run that is cut short leaves what it had.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import checkpoint, environment, phases
from denizen.bench.client import Target
from denizen.bench.crew import Limits
from denizen.bench.errors import BenchError
from denizen.bench.floor import copy_rate, mean_context, traffic
from denizen.bench.load import ClosedLoop
from denizen.bench.options import finish, lengths, positive_float, positive_int, progress, shown
from denizen.bench.report import table
from denizen.bench.schema import Report
from denizen.bench.server import Server
from denizen.bench.text import collect, run_levels
from denizen.bench.workload import Workload

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from denizen.bench.schema import LoadResult, LoadSummary

_MODEL = "bench"
_PARTS = ("floor", "loops", "wave", "abba", "context")
_DEFAULT_PARTS = ("floor", "loops", "wave", "abba")
#: Requests a user and pass: enough that start and end of a pass weigh little, few enough for a minute.
_REQUESTS_A_USER = {1: 10, 16: 10, 128: 10, 256: 6}
_ABBA_USERS, _ABBA_REQUESTS = (16, 128), 4
_CONTEXTS, _CONTEXT_USERS, _CONTEXT_OUTPUT = (512, 16_000), 8, 256
_WAVE_PASSES = 4
_STOP_TIMEOUT = 15.0
#: Steps of a bucket that are dropped at a server's start, and without which it says nothing.
_PHASE_SKIP, _PHASE_MIN = 20, 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "gpu-text",
        help="text on one GPU: closed loops, a single wave, resident beside host-planned",
        description="Starts `denizen serve` with a checkpoint (a random one of a real shape unless --checkpoint is "
        "given) and measures it over HTTP: fixed lengths, greedy, the first pass of each load dropped. Parts: floor "
        "(copy rate and the memory floor of a step), loops (closed loops), wave (requests that start together, no "
        "admissions in between), abba (resident, host-planned, host-planned, resident; with phase timers), context "
        "(phase timers at short and long contexts).",
    )
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_DEFAULT_PARTS), help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for gpu-text.json and server.log")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="instead of a random one")
    parser.add_argument("--shape", choices=checkpoint.shapes(), default="qwen3_5-0.8b", help="default: %(default)s")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json[.xz] for a random checkpoint")
    parser.add_argument("--server-arg", action="append", default=[], metavar="ARG", help="for every server; repeatable")
    users = list(_REQUESTS_A_USER)
    parser.add_argument("--concurrency", type=positive_int, nargs="+", default=users, metavar="N", help="of the loops")
    parser.add_argument("--wave-users", type=positive_int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--scale", type=positive_float, default=1.0, help="of the number of requests (default: 1)")
    parser.add_argument("--prompt-tokens", type=positive_int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--output-len", type=lengths, default=(256, 512), metavar="MIN:MAX", help="default: 256:512")
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
    parser.add_argument("--budget", type=positive_float, default=460.0, metavar="S", help="no load starts after this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run, json=None)


def run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    options.json = options.out / "gpu-text.json"
    report = Report("gpu-text", environment.describe(), shown(options))
    report.data["seed"] = options.seed
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as scratch:
        bench = _Bench(options, report, Path(scratch))
        bench.attempt("checkpoint", bench.make_checkpoint)
        parts = set(options.parts)
        if "floor" in parts:
            bench.attempt("floor", bench.floor)
        if parts & {"loops", "wave"}:
            bench.attempt("loops", bench.loops)
        if "abba" in parts:
            bench.attempt("abba", bench.abba)
        if "context" in parts:
            bench.attempt("context", bench.context)
    return finish(report, options, _body(report, bench.loads))


@dataclass
class _Load:
    """A closed loop: its name in the table, and what each of its passes sends."""

    name: str
    users: int
    requests: int
    output_len: tuple[int, int]
    prompt_tokens: int
    passes: int = 2


@dataclass
class _Bench:
    options: argparse.Namespace
    report: Report
    scratch: Path
    loads: dict[str, LoadResult] = field(default_factory=dict)
    """By their names in the table; `results` of the report in the same order."""
    started: float = field(default_factory=time.monotonic)
    folder: Path = field(init=False)
    servers: int = 0

    def attempt(self, what: str, part: Callable[[], None]) -> None:
        """Runs a part; whatever it raises becomes a problem of the result."""
        begun = time.monotonic()
        try:
            part()
        except Exception as error:
            self.report.problems.append(f"{what}: {type(error).__name__}: {error}")
        self.report.figures.setdefault("seconds", {})[what] = round(time.monotonic() - begun, 1)
        self.report.write(self.options.json)

    def make_checkpoint(self) -> None:
        options = self.options
        if options.checkpoint:
            self.folder = options.checkpoint
            return
        if not options.tokenizer:
            raise BenchError("--tokenizer or --checkpoint is needed")
        self.folder = self.scratch / options.shape
        checkpoint.write(options.shape, self.folder, options.tokenizer, seed=options.seed)

    def floor(self) -> None:
        options, rate = self.options, copy_rate(self.options.device)
        context = mean_context(options.prompt_tokens, options.output_len)
        rows = {}
        for users in options.concurrency:
            moved = traffic(self.folder, users, context)
            seconds = moved.seconds(rate)
            rows[users] = {**dataclasses.asdict(moved), "us": 1e6 * seconds, "tokens_per_s": users / seconds}
        self.report.figures["floor"] = {"copy_bytes_per_s": rate, "context": context, "rows": rows}

    def loops(self) -> None:
        """The closed loops and, beside the one that it is compared with, the wave: in one server's life."""
        options, parts = self.options, self.options.parts
        users, mean = options.wave_users, sum(options.output_len) // 2
        wave = _Load(f"wave {users}", users, users, (mean, mean), options.prompt_tokens, _WAVE_PASSES)
        loads = [self._loop(number) for number in options.concurrency] if "loops" in parts else []
        if "wave" in parts:
            beside = self._loop(users)
            if beside not in loads:
                loads.append(beside)
            loads.insert(loads.index(beside) + 1, wave)
        self._serve(loads)
        loop, single = self._rates(f"loop {users}"), self._rates(wave.name)
        if loop and single:
            busy = [_busy(self.loads[name].summary) for name in (f"loop {users}", wave.name)]
            self.report.figures["loop_over_wave"] = {
                "whole": loop[0] / single[0],
                "all_users_busy": busy[0] / busy[1] if busy[1] else 0.0,
            }

    def abba(self) -> None:
        order = ("resident", "host-planned", "host-planned", "resident")
        for number, side in enumerate(order):
            loads = [
                dataclasses.replace(self._loop(users, _ABBA_REQUESTS), name=f"{side} {users}, turn {number + 1}")
                for users in _ABBA_USERS
            ]
            extra = [] if side == "resident" else ["--no-resident"]
            self.attempt(f"{side}, turn {number + 1}", partial(self._timed, loads, extra, "abba"))
        ratios: dict[str, float] = {}
        for users in _ABBA_USERS:
            above, below = (self._rates(f"{side} {users}") for side in ("resident", "host-planned"))
            if above and below:
                ratios[str(users)] = statistics.fmean(above) / statistics.fmean(below)
        self.report.figures["resident_over_host_planned"] = ratios

    def context(self) -> None:
        for tokens in _CONTEXTS:
            users, output = _CONTEXT_USERS, (_CONTEXT_OUTPUT, _CONTEXT_OUTPUT)
            load = _Load(f"context {tokens}", users, 2 * users, output, tokens)
            self.attempt(load.name, partial(self._timed, [load], [], load.name))

    def _rates(self, name: str) -> list[float]:
        """Rates of the load of that name, or of its turns, without those that had failures."""
        found = [load for key, load in self.loads.items() if key == name or key.startswith(f"{name}, turn ")]
        return [load.summary.output_tokens_per_s for load in found if not load.failures]

    def _loop(self, users: int, requests_a_user: int | None = None) -> _Load:
        each = (requests_a_user or _REQUESTS_A_USER.get(users, 8)) * self.options.scale
        requests = max(users, round(users * each))
        return _Load(f"loop {users}", users, requests, self.options.output_len, self.options.prompt_tokens)

    def _timed(self, loads: list[_Load], extra: list[str], key: str) -> None:
        """The same with phase timers, whose figures are kept under `key`, over all servers that had it."""
        folder = self.scratch / "phases" / key
        folder.mkdir(parents=True, exist_ok=True)
        self._serve(loads, extra, {"DENIZEN_PHASES": str(folder)})
        if not any(folder.iterdir()):
            self.report.data["phases"] = "the worker wrote no phase timers"
            return
        found = self.report.figures.setdefault("phases", {})
        found[key] = phases.summarize(folder, _PHASE_SKIP, _PHASE_MIN)

    def _serve(self, loads: list[_Load], extra: list[str] | None = None, env: dict[str, str] | None = None) -> None:
        """Measures `loads` on one server; after one that fails, the rest on a fresh one, which has no requests left."""
        arguments = ["--model", f"{_MODEL}={self.folder}", "--devices", self.options.device]
        arguments += ["--python", sys.executable, *(extra or [])]
        pending = list(loads)
        while pending:
            self._check_budget()
            server = Server(
                [*arguments, *self.options.server_arg],
                env=env,
                ready_timeout=self.options.ready_timeout,
                stop_timeout=5.0,
            )
            self.servers += 1
            begun = time.monotonic()
            server.start()
            try:
                server.wait_ready()
                ready = self.report.figures.setdefault("seconds_to_ready", [])
                ready.append(round(time.monotonic() - begun, 1))
                while pending:
                    load = pending.pop(0)
                    self.attempt(load.name, partial(self._measure, server, load))
                    if load.name not in self.loads or self.loads[load.name].failures:
                        break
            finally:
                self._keep_log(server)
                server.stop()

    def _check_budget(self) -> None:
        if time.monotonic() - self.started > self.options.budget:
            raise BenchError(f"left out: the budget of {self.options.budget:g} s is used up")

    def _keep_log(self, server: Server) -> None:
        with (self.options.out / "server.log").open("a", encoding="utf-8") as log:
            log.write(f"== server {self.servers}: {' '.join(server.command)}\n{server.log(200_000)}\n")

    def _measure(self, server: Server, load: _Load) -> None:
        options = self.options
        self._check_budget()
        target = Target(
            server.url,
            _MODEL,
            endpoint="completions",
            ignore_eos=True,
            timeout=options.timeout,
            extra={"temperature": options.temperature},
        )
        workload = Workload(options.seed, load.requests, load.output_len, load.prompt_tokens)
        with progress(load.passes * load.requests, "req", options) as bar:
            processes = min(options.processes, load.users)
            limits = Limits(on_error=True, seconds=options.pass_limit)
            loop = [ClosedLoop(load.users)]
            results, records = run_levels(target, workload, loop, load.passes, bar, processes, limits)
        results[0].load["name"] = load.name
        collect(self.report, results, records, options.max_client_lag / 1000)
        self.report.data.setdefault("sha256", {})[load.name] = workload.sha256()
        self.loads[load.name] = results[0]


def _busy(summary: LoadSummary) -> float:
    return summary.full_load.output_tokens_per_s if summary.full_load else 0.0


def _body(report: Report, loads: dict[str, LoadResult]) -> str:
    floors: dict[int, Any] = report.figures.get("floor", {}).get("rows", {})
    rows = []
    for name, load in loads.items():
        total = load.summary
        floor = floors.get(load.load["concurrency"])
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
    return "\n".join(lines)
