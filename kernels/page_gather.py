"""Page arrays of one step, gathered from the device tables: FlashInfer's ``indptr``, ``indices``, ``last_page_len``.

Paged decode on Hopper takes no block table. This turns the rows of a step into the three arrays that it reads, from the
step's own lengths (new token included), never from the raw length table, so that every consumer of a step agrees.
"""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl

#: The row that pads batches.
NULL_ROW = 0


def page_gather(
    slots: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    page_size: int,
    sink_page: int,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
) -> None:
    """Fills the step's page arrays in place. :func:`page_gather_triton` is its twin for the GPU.

    - ``slots`` int32 ``[B]``: rows of the tables; ``NULL_ROW`` pads.
    - ``block_table`` int32 ``[rows, max_pages]``: the pages of each row, in order.
    - ``lengths`` int32 ``[B]``: positions of each row in this step, new ones included, at least 1.
    - ``indptr`` int32 ``[B + 1]``: written with the exclusive prefix sum of ``ceil(length / page_size)``.
    - ``indices`` int32 ``[capacity]``: ``indices[indptr[i] + j] = block_table[slots[i], j]``. Entries past the last
      page are left alone, and nothing is written past the buffer. ``max_pages of the pool + B`` always suffices.
    - ``last_page_len`` int32 ``[B]``: ``(length - 1) % page_size + 1``, hence never 0.

    A padding row has length 1 and the one page ``sink_page``, whatever the tables and ``lengths`` hold for it.
    """
    if slots.is_cuda:
        page_gather_triton(slots, block_table, lengths, page_size, sink_page, indptr, indices, last_page_len)
        return
    padding = slots == NULL_ROW
    lengths = torch.where(padding, 1, lengths)
    counts = torch.div(lengths + (page_size - 1), page_size, rounding_mode="floor")
    indptr[0] = 0
    torch.cumsum(counts, 0, dtype=torch.int32, out=indptr[1:])
    torch.sub(torch.remainder(lengths - 1, page_size), -1, out=last_page_len)

    rows = torch.repeat_interleave(torch.arange(len(slots), device=slots.device), counts)[: len(indices)]
    ordinal = torch.arange(len(rows), device=slots.device) - indptr[rows]
    pages = block_table[slots[rows], ordinal]
    indices[: len(rows)] = torch.where(padding[rows], sink_page, pages)


@jit
def _page_gather_kernel(
    slots: tl.tensor,
    block_table: tl.tensor,
    lengths: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    last_page_len: tl.tensor,
    rows: tl.tensor,
    capacity: tl.tensor,
    table_stride: tl.tensor,
    sink_page: tl.tensor,
    null_row: tl.tensor,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    # One program a row. Each scans all rows' page counts, which costs less than a second kernel would.
    row = tl.program_id(0)
    lane = tl.arange(0, ROWS)
    inside = lane < rows
    slot = tl.load(slots + lane, mask=inside, other=0)
    length = tl.load(lengths + lane, mask=inside, other=1)
    length = tl.where(slot == null_row, 1, length)
    counts = tl.where(inside, (length + (PAGE - 1)) // PAGE, 0)
    ends = tl.cumsum(counts, 0)
    if row == 0:
        tl.store(indptr, 0)
        tl.store(indptr + 1 + lane, ends, mask=inside)
        tl.store(last_page_len + lane, (length - 1) % PAGE + 1, mask=inside)
    own = lane == row
    count = tl.sum(tl.where(own, counts, 0), 0)
    first = tl.sum(tl.where(own, ends - counts, 0), 0)
    own_slot = tl.sum(tl.where(own, slot, 0), 0)
    pages = block_table + own_slot.to(tl.int64) * table_stride
    for begin in range(0, count, BLOCK):
        ordinal = begin + tl.arange(0, BLOCK)
        present = ordinal < count
        page = tl.load(pages + ordinal, mask=present & (own_slot != null_row), other=sink_page)
        tl.store(indices + first + ordinal, page, mask=present & (first + ordinal < capacity))


def page_gather_triton(
    slots: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    page_size: int,
    sink_page: int,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
) -> None:
    """:func:`page_gather` in one kernel, for graphs. ``B`` at most 1,024; rows of ``block_table`` may be strided."""
    rows = slots.shape[0]
    _page_gather_kernel[(rows,)](
        slots,
        block_table,
        lengths,
        indptr,
        indices,
        last_page_len,
        rows,
        indices.shape[0],
        block_table.stride(0),
        sink_page,
        NULL_ROW,
        PAGE=page_size,
        ROWS=power_of_two(rows),
        BLOCK=128,
        num_warps=1 if rows <= 64 else 4,
    )
