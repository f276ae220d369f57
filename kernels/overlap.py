"""Launches that overlap: a kernel may begin while the one before it still runs (programmatic dependent launch).

Such a kernel calls :func:`release` as soon as the next one may begin, and :func:`wait` before it touches anything that
an earlier kernel of the stream writes, or writes anything itself. Every program of the kernel must call :func:`wait`:
only then does the end of a kernel mean that all before it have ended. Before :func:`wait` it may read constants, and
what was written before the last kernel that was launched without overlap began: kernels released at once can be several
ahead of the one that is running. A kernel that another's prologue depends on, as the plan of FlashInfer's attention,
is followed by one that calls :func:`release` after :func:`wait`.

Hopper and later. Elsewhere, and in the interpreter, :func:`overlap` is false and the calls vanish.
"""

from __future__ import annotations

from functools import cache

import torch
from denizen.kernels.jit import interpreted, jit, tl


@cache
def overlap() -> bool:
    """Whether kernels are launched so; compiling without a GPU is compiling for Hopper."""
    if interpreted():
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (9, 0)


@jit
def release(OVERLAP: tl.constexpr) -> None:
    """The next kernel may begin once every program came here."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def wait(OVERLAP: tl.constexpr) -> None:
    """Until all kernels before have ended and what they wrote can be read."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@jit
def prefetch(place: tl.tensor, BYTES: tl.constexpr) -> None:
    """Asks for ``BYTES`` (a multiple of 16) from each pointer of ``place`` to be brought to the L2 cache."""
    tl.inline_asm_elementwise(
        "{ .reg .u32 size; mov.u32 size, $2; cp.async.bulk.prefetch.L2.global [$1], size; mov.u32 $0, 0; }",
        "=r,l,r",
        [place.to(tl.int64), tl.full(place.shape, BYTES, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
