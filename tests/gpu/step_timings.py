"""GPU time of a whole decode step, and of its kernels: as served, and with one thing taken away at a time.

``python3 tests/gpu/step_timings.py [--rows 16,128] [--state-dtype bfloat16] [--profile]``. Random weights of
Qwen3.5-0.8B's shape are made on the GPU; a step is captured once a variant, and the variants are replayed in turns.
Another launch shape is tried by one more entry of ``VARIANTS``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parents[1] / "python"), str(_HERE), str(_HERE.parent / "kernels")]

import torch  # noqa: E402
from denizen.kernels import attention_inputs, gate, gated_delta_decode, narrow_linear, norm  # noqa: E402
from denizen.worker.models import linear  # noqa: E402
from step_model import LiveStep, interleaved, real_model  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

_OVERLAPPING = (attention_inputs, gate, gated_delta_decode, narrow_linear, norm)
_FULL_DEPENDENCIES = [(module, "overlap", lambda: False) for module in _OVERLAPPING]
_GENERAL_PRODUCTS = [(linear, "choose_tiling", lambda *_: None)]
#: What is replaced in which module while a step is captured.
VARIANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "neither": [*_FULL_DEPENDENCIES, *_GENERAL_PRODUCTS],
    "without overlap": _FULL_DEPENDENCIES,
    "general products": _GENERAL_PRODUCTS,
    "as served": [],
}


def profiled(step: LiveStep, graph: torch.cuda.CUDAGraph, limit: int = 20, replays: int = 5) -> None:
    """Time by kernel. A kernel that begins early counts the time that it waits."""
    step.reset()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in trace.events():
        if event.device_time > 0:
            times[event.name] += event.device_time
            counts[event.name] += 1
    print(f"  kernels: {sum(times.values()) / replays:.0f} µs, {sum(counts.values()) / replays:.0f} nodes")
    for name, total in times.most_common(limit):
        print(
            f"  {total / replays:8.1f} µs  {counts[name] / replays:5.1f} x {total / counts[name]:7.2f}  {name[:90]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,128")
    parser.add_argument("--state-dtype", default="float32")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    buckets = [int(rows) for rows in options.rows.split(",")]
    served = real_model(buckets, options.state_dtype)
    print(f"built in {time.perf_counter() - began:.1f} s, {options.state_dtype} state", flush=True)
    for rows in buckets:
        step = LiveStep(served, rows)
        for _ in range(4):
            step.run()
        graphs, apart = {}, {}
        want = None
        for name, replaced in VARIANTS.items():
            with ExitStack() as stack:
                for module, attribute, value in replaced:
                    stack.enter_context(patch.object(module, attribute, value))
                got = step.hidden()
                want = got if want is None else want
                apart[name] = float((got - want).norm() / want.norm())
                graphs[name] = step.captured()
        for name, value in interleaved(graphs, step.reset).items():
            print(f"{rows:4d} rows  {value:8.1f} µs  {name}, {apart[name]:.1e} apart from the first", flush=True)
        if options.profile:
            for name in (next(iter(VARIANTS)), list(VARIANTS)[-1]):
                print(f"  -- {rows} rows, {name}")
                profiled(step, graphs[name])


if __name__ == "__main__":
    main()
