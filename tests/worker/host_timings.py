"""Times the host's side of a step: the engine with a runner that computes nothing and answers after a fixed delay.

``python -m tests.worker.host_timings [--rows 16,128] [--decode-us 1500] [--prefill-us 1700]`` (with ``denizen``
importable), at the repository's root. A closed loop, as in ``tests/gpu/worker_timings.py``, over the accounting of a
real shape: pages of 16, prompts of 128 tokens. What a launch itself costs is not in it. Not a test: it cannot fail.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from denizen.worker.admission import ON_GPU
from denizen.worker.channel import Channel
from denizen.worker.engine import Engine
from denizen.worker.graphs import PREFILL_ROWS, decode_buckets
from denizen.worker.messages import Kind
from denizen.worker.phases import PHASES, PhaseTimers
from denizen.worker.protocol import Drain, Submit, encode
from denizen.worker.runner import StepResult

from tests.worker.toy import ToyModel, serve_toy

PROMPT = 128


class Refused(Exception):
    """What an arena raises. This one never does."""


class LoopArena:
    """An arena whose other side is a closed loop: a request that ends is followed by the next one at once."""

    def __init__(self, requests: list[Submit], concurrency: int) -> None:
        self._waiting = deque(encode(body, request=(1 << 32) + index) for index, body in enumerate(requests, 1))
        self._ready = deque(self._waiting.popleft() for _ in range(concurrency))
        self._left = len(requests)

    def send(self, envelope: bytes, attachment: bytes | None = None) -> None:
        if envelope[2] not in (Kind.DONE, Kind.ERROR):
            return
        if envelope[2] == Kind.ERROR:
            raise AssertionError(envelope)
        self._left -= 1
        if self._waiting:
            self._ready.append(self._waiting.popleft())
        if not self._left:
            self._ready.append(encode(Drain()))

    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, None]]:
        taken = [(data, None) for data in self._ready]
        self._ready.clear()
        return taken

    def wake(self) -> None:
        pass

    def set_phase(self, phase: int) -> None:
        pass


class Stream:
    """A device that is busy for ``seconds[walk]`` a step, one step of a walk after the other."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._free = dict.fromkeys(seconds, 0.0)

    def launch(self, plan) -> Launched:
        begins = max(time.perf_counter(), self._free[plan.walk])
        self._free[plan.walk] = begins + self._seconds[plan.walk]
        return Launched(len(plan.sampling), self._free[plan.walk])


class Launched:
    def __init__(self, tokens: int, due: float) -> None:
        self._tokens = np.full(tokens, 100_000, np.int64)
        self._due = due

    @property
    def arrived(self) -> bool:
        return time.perf_counter() >= self._due

    def wait(self) -> None:
        while not self.arrived:
            pass

    def result(self) -> StepResult:
        return StepResult(self._tokens)


class Phases(PhaseTimers):
    """Phase timers that are kept, not written."""

    def __init__(self) -> None:
        super().__init__(Path("/dev/null"))
        self.rows: dict[tuple[str, int], list[list[float | None]]] = {}

    def _write(self) -> None:
        self.rows = {key: list(rows) for key, rows in self._steps.items()}

    def table(self) -> str:
        """Of each walk the bucket with most steps."""
        lines = []
        for walk in ("decode", "prefill"):
            found = [(len(rows), bucket, rows) for (name, bucket), rows in self.rows.items() if name == walk]
            if not found:
                continue
            _, bucket, rows = max(found)
            lines.append(f"{walk} {bucket}: {len(rows)} steps; µs mean / p50 / p95")
            columns = {name: [row[i] for row in rows[20:] if row[i] is not None] for i, name in enumerate(PHASES)}
            columns["plan thread"] = [sum(row[:4]) for row in rows[20:]]
            for name, values in columns.items():
                if values:
                    p95 = sorted(values)[int(len(values) * 0.95)]
                    mean, p50 = statistics.mean(values), statistics.median(values)
                    lines.append(f"  {name:15s}{mean:9.1f}{p50:9.1f}{p95:9.1f}")
        return "\n".join(lines)


def measure(rows: int, seconds: dict[str, float], timers, low: int, high: int, total: int, **options) -> float:
    """Microseconds a decode step of a closed loop of ``total`` requests."""
    model = ToyModel(vocab=120_000, context=1024)
    served = serve_toy(model, kv_tokens=1024 * 256, page_size=16, max_rows=256, prefill_chunk=1024,
                       buckets=list(decode_buckets(256)))  # fmt: skip
    served.scheduler.prefill_rows = (PREFILL_ROWS,)
    served.scheduler.admission = ON_GPU
    served.runner = SimpleNamespace(launch=Stream(seconds).launch)
    chance = random.Random(1)
    requests = [
        Submit("toy", [chance.randrange(90_000) for _ in range(PROMPT)], chance.randint(low, high), **options)
        for _ in range(total)
    ]
    engine = Engine(Channel(LoopArena(requests, rows), Refused, Refused), [served], stopwatch=timers)
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    engine.run()
    return 1e6 * (time.perf_counter() - began) / max(1, engine.stats.decode_tokens // rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="16,128")
    parser.add_argument("--decode-us", type=float, default=0.0)
    parser.add_argument("--prefill-us", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = {"decode": 1e-6 * options.decode_us, "prefill": 1e-6 * options.prefill_us}
    for rows in map(int, options.rows.split(",")):
        for name, low, high, total in (("steady", 800, 800, rows), ("closed loop", 256, 512, 6 * rows)):
            per_step = measure(rows, seconds, None, low, high, total, temperature=0.0)
            timers = Phases()
            measure(rows, seconds, timers, low, high, total, temperature=0.0)
            print(f"== {rows} rows, {name}: {per_step:.1f} µs a step, without phase timers")
            print(timers.table(), flush=True)


if __name__ == "__main__":
    main()
