"""µs of an LM head of Qwen3.5-0.8B's shape: in bf16, and in int8 with launch shapes to choose from.

``python3 tests/gpu/head_timings.py [--rows 1,16,128]``. Every shape is held to the reference; the table comes last.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parents[1] / "python"), str(_HERE)]

import torch  # noqa: E402
from denizen.kernels.int8_linear import Int8Weight, Tiling, choose_tiling, int8_linear  # noqa: E402
from gpu_support import CUDA, microseconds  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

OUTPUTS, INPUTS = 248_320, 1024
_ROWS = (1, 8, 16, 32, 64, 128, 256)
_COPIES = 2  #: of the weight: a call finds none of its own in a cache
_BOUND = 4e-3  #: relative error that rounding logits to bf16 explains
_COPY_RATE = 4.24e6  #: bytes a µs

#: By most tokens: rows, tokens, stages, warps.
_FEW = [
    Tiling(64, 16, 6, 4),
    Tiling(128, 16, 5, 4),
    Tiling(128, 16, 6, 8),
    Tiling(256, 16, 4, 4),
    Tiling(256, 16, 5, 8),
]
_SOME = [
    Tiling(128, 64, 4, 4),
    Tiling(128, 64, 5, 8),
    Tiling(256, 64, 4, 4),
    Tiling(256, 64, 5, 4),
    Tiling(256, 64, 4, 8),
]
_MANY = [
    Tiling(128, 128, 4, 4),
    Tiling(128, 128, 5, 4),
    Tiling(128, 128, 4, 8),
    Tiling(256, 128, 4, 8),
    Tiling(256, 128, 4, 16),
]
_MOST = [
    Tiling(64, 256, 4, 4),
    Tiling(128, 256, 4, 8),
]


def candidates(rows: int) -> list[Tiling]:
    """The chosen one first."""
    found = _FEW if rows <= 16 else _SOME if rows <= 64 else _MANY if rows <= 128 else [*_MANY, *_MOST]
    return list(dict.fromkeys([choose_tiling(rows), *found]))


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(map(str, _ROWS)))
    options = parser.parse_args()
    torch.manual_seed(0)
    dense = [(torch.randn(OUTPUTS, INPUTS, device=CUDA) * 0.0375).to(torch.bfloat16) for _ in range(_COPIES)]
    packed = [Int8Weight.quantize(weight) for weight in dense]
    values = packed[0].dequantize()
    table, wrong = [], 0
    for rows in map(int, options.rows.split(",")):
        x = torch.randn(rows, INPUTS, device=CUDA).to(torch.bfloat16)
        want = linear(x.float(), values)
        general = microseconds(lambda i, x=x: linear(x, dense[i]), _COPIES)
        print(f"{rows:4} rows {general:8.1f} µs  bf16", flush=True)
        times: list[tuple[float, str]] = []
        for number, tiling in enumerate(candidates(rows)):
            try:
                error = relative_error(int8_linear(x, packed[0], tiling), want)
                run = partial(lambda i, x, tiling: int8_linear(x, packed[i], tiling), x=x, tiling=tiling)
                times.append((microseconds(run, _COPIES), str(tiling)))
            except Exception as failure:  # a shape that does not fit; the others count
                print(f"{rows:4} rows  {tiling}: {str(failure).splitlines()[0]}", flush=True)
                continue
            wrong += error > _BOUND
            mark = f"WRONG, relative error {error:.1e}" if error > _BOUND else f"error {error:.1e}"
            print(f"{rows:4} rows {times[-1][0]:8.1f} µs  {tiling}, {mark}{'' if number else ', chosen'}", flush=True)
        floor = (packed[0].pairs.nbytes + 2 * rows * (OUTPUTS + INPUTS)) / _COPY_RATE
        best, shape = min(times)
        table.append(f"{rows:5} {general:8.1f} {times[0][0]:8.1f} {best:8.1f} {floor:8.1f}  {shape}")
    print("\n rows     bf16   chosen     best    floor  best launch shape, µs")
    print("\n".join(table))
    print(f"{wrong} launch shapes gave wrong logits" if wrong else "all launch shapes equal the reference")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
