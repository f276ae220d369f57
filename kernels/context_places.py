"""Where the positions of a context go: rows that begin write all of theirs, the others nothing that is read."""

from __future__ import annotations

import torch
from denizen.kernels.page_gather import NULL_ROW


def context_places(
    slots: torch.Tensor,
    fresh: torch.Tensor,
    block_table: torch.Tensor,
    positions: int,
    page_size: int,
    sink_page: int,
) -> torch.Tensor:
    """Places int64 ``[B * positions]`` in the flattened pool, ``page * page_size + offset``, row by row.

    ``slots`` int32 ``[B]``, ``fresh`` bool ``[B]``; ``block_table`` int32 ``[rows, max_pages]``, strided. Padding rows
    and rows that do not begin write to the sink page. Fixed shapes and no copy to the host: may be captured.
    """
    position = torch.arange(positions, device=slots.device)
    page = block_table[slots.long()][:, torch.div(position, page_size, rounding_mode="floor")].long()
    begins = fresh & (slots != NULL_ROW)
    page = torch.where(begins[:, None], page, sink_page)
    return (page * page_size + position % page_size).view(-1)
