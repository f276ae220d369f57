"""The parts of `denizen-bench gpu-text`: each starts the servers that it needs and leaves figures in the report."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from denizen.bench import checkpoint, environment, phases, state_quality
from denizen.bench.client import TextTarget
from denizen.bench.crew import Limits
from denizen.bench.errors import BenchError
from denizen.bench.floor import BF16, FP32, copy_rate, mean_context, traffic
from denizen.bench.gpu_run import MODEL, GpuRun
from denizen.bench.levels import collect, run_levels
from denizen.bench.load import ClosedLoop
from denizen.bench.options import progress
from denizen.bench.schema import LoadSummary
from denizen.bench.text import TextLoad
from denizen.bench.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.bench.server import Server


PARTS = ("floor", "loops", "wave", "bf16-state", "abba", "context", "state-quality")
#: Requests a user and pass: enough that start and end of a pass weigh little, few enough for some 20 s.
REQUESTS_A_USER = {1: 10, 16: 20, 128: 20, 256: 10}
_BF16_USERS = (16, 128)
_ABBA_USERS, _ABBA_REQUESTS = (16, 128), 4
CONTEXTS = (512, 16_000)
#: They start together and decode for long: most steps then have no prefill beside them, which costs the host too.
_CONTEXT_USERS, _CONTEXT_OUTPUT = 8, 1024
_WAVE_PASSES = 4
#: Steps of a bucket that are dropped at a server's start, and without which it says nothing.
_PHASE_SKIP, _PHASE_MIN = 20, 20
#: Phase timers are written when the worker falls idle: how long to wait for that, and for the file to grow no more.
_WRITTEN_S, _SETTLED_S = 5.0, 0.3


@dataclass
class Load:
    """A closed loop: its name in the table, and what each of its passes sends."""

    name: str
    users: int
    requests: int
    output_len: tuple[int, int]
    prompt_tokens: int
    passes: int = 2


@dataclass
class Bench(GpuRun[Load, LoadSummary]):
    contexts: tuple[int, ...] = field(init=False)
    """Prompt tokens of the part `context`."""

    def __post_init__(self) -> None:
        self.contexts = tuple(self.options.contexts)

    @property
    def first_device(self) -> str:
        """The GPU of parts that need no server."""
        return str(self.options.device).partition(",")[0]

    def make_checkpoint(self) -> None:
        options = self.options
        if options.checkpoint:
            self.folder = options.checkpoint
            self.report.data["weights_sha256"] = checkpoint.sha256(self.folder)
            self.report.data["model_revision"] = environment.model_revision(self.folder)
            return
        if not options.tokenizer:
            raise BenchError("--tokenizer or --checkpoint is needed")
        self.folder = self.scratch / options.shape
        checkpoint.write(options.shape, self.folder, options.tokenizer, seed=options.seed)
        self.report.data["weights_sha256"] = checkpoint.sha256(self.folder)

    def floor(self) -> None:
        options, rate = self.options, copy_rate(self.first_device)
        context = mean_context(options.prompt_tokens, options.output_len)
        rows: dict[str, dict[int, Any]] = {}
        for state, size in (("rows", FP32), ("rows_bf16_state", BF16)):
            rows[state] = {}
            for users in options.concurrency:
                moved = traffic(self.folder, users, context, recurrent_bytes=size)
                seconds = moved.seconds(rate)
                found = {**dataclasses.asdict(moved), "us": 1e6 * seconds, "tokens_per_s": users / seconds}
                rows[state][users] = found
        self.report.figures["floor"] = {"copy_bytes_per_s": rate, "context": context, **rows}

    def loops(self) -> None:
        """The closed loops and, beside the one that it is compared with, the wave: in one server's life."""
        options, parts = self.options, self.options.parts
        users, mean = options.wave_users, sum(options.output_len) // 2
        wave = Load(f"wave {users}", users, users, (mean, mean), options.prompt_tokens, _WAVE_PASSES)
        loads = [self._loop(number) for number in options.concurrency] if "loops" in parts else []
        if "wave" in parts:
            beside = self._loop(users)
            if beside not in loads:
                loads.append(beside)
            loads.insert(loads.index(beside) + 1, wave)
        self.serve(loads)
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

    def bf16_state(self) -> None:
        """The loops with the recurrent state in bf16."""
        users = [number for number in _BF16_USERS if number in self.options.concurrency]
        loads = [dataclasses.replace(self._loop(number), name=f"bf16 state {number}") for number in users]
        self.serve(loads, ["--state-dtype", "bfloat16"])

    def context(self) -> None:
        """Host time of a decode step of one bucket at short and long contexts, in turns on one server."""
        users, tokens = _CONTEXT_USERS, max(1, round(_CONTEXT_OUTPUT * self.options.scale))
        output = (tokens, tokens)
        loads = [
            Load(f"context {context}, turn {turn + 1}", users, users, output, context)
            for turn, context in enumerate((*self.contexts, *reversed(self.contexts)))
        ]
        live = self._phases_folder("context")
        self.serve(loads, [], {"DENIZEN_PHASES": str(live)}, lambda load: self._put_aside(live, load))
        medians = {}
        for tokens in self.contexts:
            folder = self._phases_folder(f"context {tokens}")
            found = phases.summarize(folder, _PHASE_SKIP, _PHASE_MIN) if any(folder.iterdir()) else {}
            self.report.figures.setdefault("phases", {})[f"context {tokens}"] = found
            if host := phases.host_time(found, "decode", _CONTEXT_USERS):
                medians[tokens] = host
        if len(medians) < len(self.contexts):
            self.report.data["phases"] = "the worker wrote no phase timers for every context"
            return
        short, long = (medians[tokens] for tokens in self.contexts)
        self.report.figures["host_time_by_context"] = {
            "bucket": _CONTEXT_USERS,
            "us": {str(tokens): us for tokens, us in medians.items()},
            "ratio": {name: long[name] / short[name] for name in short},
        }

    def quality(self) -> None:
        options = self.options
        self.report.figures["state_quality"] = state_quality.measure(
            self.folder, self.first_device, options.quality_texts, options.quality_tokens, options.seed
        )

    def _phases_folder(self, key: str) -> Path:
        folder = self.scratch / "phases" / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _put_aside(self, live: Path, load: Load) -> None:
        """Moves what the worker has written of a load to a folder of its context; the worker begins another file."""
        deadline = time.monotonic() + _WRITTEN_S
        size, since = -1, time.monotonic()
        while time.monotonic() < deadline:
            now = sum(file.stat().st_size for file in live.iterdir())
            if now != size:
                size, since = now, time.monotonic()
            elif size and time.monotonic() - since > _SETTLED_S:
                break
            time.sleep(0.02)
        target = self._phases_folder(f"context {load.prompt_tokens}")
        for file in live.iterdir():
            file.rename(target / f"phases-{len(list(target.iterdir()))}-{file.name.removeprefix('phases-')}")

    def _rates(self, name: str) -> list[float]:
        """Rates of the load of that name, or of its turns, without those that had failures."""
        found = [load for key, load in self.loads.items() if key == name or key.startswith(f"{name}, turn ")]
        return [load.summary.output_tokens_per_s for load in found if not load.failures]

    def _loop(self, users: int, requests_a_user: int | None = None) -> Load:
        each = (requests_a_user or REQUESTS_A_USER.get(users, 8)) * self.options.scale
        requests = max(users, round(users * each))
        return Load(f"loop {users}", users, requests, self.options.output_len, self.options.prompt_tokens)

    def _timed(self, loads: list[Load], extra: list[str], key: str) -> None:
        """The same with phase timers, whose figures are kept under `key`, over all servers that had it."""
        folder = self._phases_folder(key)
        self.serve(loads, extra, {"DENIZEN_PHASES": str(folder)})
        if not any(folder.iterdir()):
            self.report.data["phases"] = "the worker wrote no phase timers"
            return
        found = self.report.figures.setdefault("phases", {})
        found[key] = phases.summarize(folder, _PHASE_SKIP, _PHASE_MIN)

    def measure(self, server: Server, load: Load) -> None:
        options = self.options
        self.check_budget()
        target = TextTarget(
            url=server.url,
            model=MODEL,
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
            results, records = run_levels(target, TextLoad(workload, target), loop, load.passes, bar, processes, limits)
        results[0].load["name"] = load.name
        collect(self.report, results, records, options.max_client_lag / 1000)
        self.report.data.setdefault("sha256", {})[load.name] = workload.sha256()
        self.loads[load.name] = results[0]


def _busy(summary: LoadSummary) -> float:
    return summary.full_load.output_tokens_per_s if summary.full_load else 0.0
