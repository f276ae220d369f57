"""Page arrays of one step, gathered from the device tables: FlashInfer's ``indptr``, ``indices``, ``last_page_len``.

Paged decode on Hopper takes no block table. This turns the rows of a step into the three arrays that it reads, from the
step's own lengths (new token included), never from the raw length table, so that every consumer of a step agrees.
"""

from __future__ import annotations

import torch

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
    """Fills the step's page arrays in place. Torch reference; a Triton twin has the same signature.

    - ``slots`` int32 ``[B]``: rows of the tables; ``NULL_ROW`` pads.
    - ``block_table`` int32 ``[rows, max_pages]``: the pages of each row, in order.
    - ``lengths`` int32 ``[B]``: positions of each row in this step, new ones included, at least 1.
    - ``indptr`` int32 ``[B + 1]``: written with the exclusive prefix sum of ``ceil(length / page_size)``.
    - ``indices`` int32 ``[capacity]``: ``indices[indptr[i] + j] = block_table[slots[i], j]``. Entries past the last
      page are left alone, and nothing is written past the buffer. ``max_pages of the pool + B`` always suffices.
    - ``last_page_len`` int32 ``[B]``: ``(length - 1) % page_size + 1``, hence never 0.

    A padding row has length 1 and the one page ``sink_page``, whatever the tables and ``lengths`` hold for it.
    """
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
