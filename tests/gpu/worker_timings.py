"""Times the worker in one process, without a front end: steady decode, and a closed loop with admissions.

``python3 tests/gpu/worker_timings.py [--state-dtype bfloat16] [--no-resident] [--rows 1,16,128] [--profile]``; random
weights of Qwen3.5-0.8B's shape. Prints a short table last.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parents[1] / "python"), str(_HERE), str(_HERE.parent / "kernels"), str(_HERE.parents[1])]

import torch  # noqa: E402
from denizen.worker.channel import Channel  # noqa: E402
from denizen.worker.engine import Engine  # noqa: E402
from denizen.worker.messages import Kind  # noqa: E402
from denizen.worker.phases import PHASES, PhaseTimers  # noqa: E402
from denizen.worker.protocol import Drain, Submit, decode, encode  # noqa: E402
from gpu_models import make, serve  # noqa: E402

PROMPT = 128


class Full(Exception):
    pass


class TooLarge(Exception):
    pass


class LoopArena:
    """An arena whose other side is a closed loop: a request that ends is followed by the next one at once."""

    def __init__(self, requests: list[Submit], concurrency: int) -> None:
        self._waiting = deque(encode(body, request=index + 1) for index, body in enumerate(requests))
        self._ready = deque(self._waiting.popleft() for _ in range(concurrency))
        self._left = len(requests)
        self.tokens = 0
        self.failed = 0

    def send(self, envelope: bytes, attachment: bytes | None = None) -> None:
        kind = envelope[2]
        if kind not in (Kind.DONE, Kind.ERROR):
            return
        if kind == Kind.DONE:
            self.tokens += decode(envelope).body.completion
        else:
            self.failed += 1
            print(decode(envelope))
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


class Phases(PhaseTimers):
    """Phase timers that are kept, not written."""

    def __init__(self) -> None:
        super().__init__(Path("/dev/null"))

    def _write(self) -> None:
        pass

    def medians(self, walk: str) -> str:
        """Of the bucket with most steps."""
        found = [(len(rows), bucket, rows) for (name, bucket), rows in self._steps.items() if name == walk]
        if not found:
            return ""
        _, bucket, rows = max(found, key=lambda item: item[0])
        columns = [[row[i] for row in rows if row[i] is not None] for i in range(len(PHASES))]
        shown = [
            f"{name} {statistics.median(values):.0f}" for name, values in zip(PHASES, columns, strict=True) if values
        ]
        return f"{walk} {bucket}: " + ", ".join(shown)


def run(served, concurrency: int, total: int, low: int, high: int, seed: int, **options) -> dict[str, float]:
    """Closed loop of ``total`` requests."""
    rng = random.Random(seed)
    vocab = served.model.vocab_size
    requests = [
        Submit("model", [rng.randrange(vocab) for _ in range(PROMPT)], rng.randint(low, high), **options)
        for _ in range(total)
    ]
    arena = LoopArena(requests, concurrency)
    timers = Phases()
    engine = Engine(Channel(arena, Full, TooLarge), [served], stopwatch=timers)
    waited, done = [], []
    wait = engine._device.wait

    def timed(walk):
        began = time.perf_counter()
        step = wait(walk)
        ended = time.perf_counter()
        waited.append(ended - began)
        done.append((ended, step.plan.walk, len(step.plan.requests)))
        return step

    engine._device.wait = timed
    began = time.perf_counter()
    engine.run()
    took = time.perf_counter() - began
    decodes = [(at, rows) for at, walk, rows in done if walk == "decode"]
    gaps = [1e6 * (b[0] - a[0]) for a, b in itertools.pairwise(decodes) if a[1] == b[1] == concurrency]
    return {
        "tokens_per_s": arena.tokens / took,
        "step_p50": statistics.median(gaps) if gaps else 0.0,
        "step_p99": sorted(gaps)[int(len(gaps) * 0.99)] if gaps else 0.0,
        "host": 1e6 * (took - sum(waited)) / max(len(decodes), 1),
        "steps": len(decodes),
        "prefills": len(done) - len(decodes),
        "failed": arena.failed,
        "phases": timers.medians("decode"),
        "prefill_phases": timers.medians("prefill"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dtype", default="float32")
    parser.add_argument("--no-resident", action="store_true")
    parser.add_argument("--rows", default="1,16,128")
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--steady-only", action="store_true")
    parser.add_argument("--greedy-only", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    folder = Path(tempfile.gettempdir()) / "denizen-real"
    if not (folder / "config.json").exists():
        del_model = make("real", folder)
        del del_model
        torch.cuda.empty_cache()
    made = time.perf_counter()
    served = serve(
        folder,
        rows=256,
        chunk=options.chunk,
        page_size=options.page_size,
        kv_tokens=None,
        resident=not options.no_resident,
        state_dtype=options.state_dtype,
    )
    print(f"checkpoint {made - began:.1f} s, load and capture {time.perf_counter() - made:.1f} s", flush=True)
    print(f"memory left {torch.cuda.mem_get_info()[0] / 2**30:.1f} GiB, {served.kv_tokens} KV tokens", flush=True)
    gc.collect()
    gc.freeze()
    lines = []
    for rows in map(int, options.rows.split(",")):
        run(served, rows, rows, 40, 40, 0)
        for name, total, low, high, more in (
            ("steady greedy", rows, 400, 400, {"temperature": 0.0}),
            ("steady drawing", rows, 400, 400, {"temperature": 1.0}),
            ("closed loop", 4 * rows, 256, 512, {"temperature": 0.0}),
        ):
            if options.steady_only and name != "steady greedy":
                continue
            if options.greedy_only and name == "steady drawing":
                continue
            got = run(served, rows, total, low, high, 1, **more)
            lines.append(
                f"{rows:4d} rows  {name:15s} {got['tokens_per_s']:9.0f} tok/s  step p50 {got['step_p50']:7.0f} µs"
                f"  p99 {got['step_p99']:7.0f}  host {got['host']:6.0f} µs/step  {got['steps']} steps"
                f"  {got['prefills']} prefills  {got['failed']} failed"
            )
            lines += [f"{'':11s}{got[name]}" for name in ("phases", "prefill_phases") if got[name]]
            print("\n".join(lines[-3:]), flush=True)
    if options.profile:
        profile(served)
    print("\n".join(["", "== worker timings", *lines]))


def profile(served) -> None:
    """GPU time by kernel of a decode graph at 16 and 128 rows: rows of padding would skip their state, so live ones."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    for rows in (16, 128):
        with record(activities=[ProfilerActivity.CUDA]) as trace:
            run(served, rows, rows, 40, 40, 0)
        print(f"\n== {rows} rows, 39 decode steps and the prefills", flush=True)
        print(trace.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60), flush=True)


if __name__ == "__main__":
    main()
