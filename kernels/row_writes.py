"""Scatter of packed row writes into the device tables."""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl


def apply_row_writes(words: torch.Tensor, runs: torch.Tensor, payload: torch.Tensor) -> None:
    """Writes every run of ``payload`` to its place in ``words``, in place.

    ``words`` int32 ``[W]``; ``runs`` int32 ``[n, 2]``: the run's first word in ``words``, and its length; ``payload``
    int32 ``[m]``: the runs' words one after the other, and perhaps more, which is not read. Runs do not overlap.
    """
    if not runs.shape[0]:
        return
    if words.is_cuda:
        apply_row_writes_triton(words, runs, payload)
        return
    starts, lengths = runs[:, 0].long(), runs[:, 1].long()
    first = torch.cumsum(lengths, 0) - lengths
    offset = torch.repeat_interleave(starts - first, lengths)
    words.index_copy_(0, offset + torch.arange(len(offset), device=words.device), payload[: len(offset)])


@jit
def _row_writes_kernel(
    words: tl.tensor,
    runs: tl.tensor,
    payload: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    RUNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    # One program a run; each finds its place in the payload by scanning the lengths of the runs before it.
    run = tl.program_id(0)
    lane = tl.arange(0, RUNS)
    first = tl.sum(tl.load(runs + lane * 2 + 1, mask=(lane < run) & (lane < count), other=0), 0)
    start = tl.load(runs + run * 2).to(tl.int64)
    length = tl.load(runs + run * 2 + 1)
    for begin in range(0, length, BLOCK):
        offset = begin + tl.arange(0, BLOCK)
        place = start + offset
        inside = (offset < length) & (place < size)
        tl.store(words + place, tl.load(payload + first + offset, mask=inside, other=0), mask=inside)


def apply_row_writes_triton(words: torch.Tensor, runs: torch.Tensor, payload: torch.Tensor) -> None:
    """:func:`apply_row_writes` in one kernel. In a graph ``runs`` has a fixed size: runs of length 0 write nothing."""
    count = runs.shape[0]
    if count:
        _row_writes_kernel[(count,)](
            words, runs, payload, count, words.shape[0], RUNS=power_of_two(count), BLOCK=128, num_warps=1
        )
