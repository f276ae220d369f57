"""The beginning of a captured prefill step over the device tables: where its tokens stand and where their KV goes.

The shapes are the bucket's: ``T`` tokens of at most ``B`` rows. Rows with slot 0 pad the batch, tokens after
``cu_seqlens[B]`` pad the bucket and write to the sink page.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from denizen.kernels.page_gather import NULL_ROW

_TOKENS = 128


@dataclass(frozen=True)
class PrefillInputs:
    """Static arrays of a prefill step."""

    positions: torch.Tensor  #: int64 [T]; padding tokens: 0
    write_at: torch.Tensor  #: int32 [T], the token's place in the flattened pool; padding tokens: in the sink page
    lengths: torch.Tensor  #: int32 [B], positions of the row after this step; padding rows: 1
    last: torch.Tensor  #: int64 [B], the row's last token among the step's; padding rows: 0

    @classmethod
    def allocate(cls, rows: int, tokens: int, device: torch.device) -> PrefillInputs:
        def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            zeros(tokens, torch.int64), zeros(tokens, torch.int32), zeros(rows, torch.int32), zeros(rows, torch.int64)
        )


def prefill_inputs(
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    sink_page: int,
    out: PrefillInputs,
) -> None:
    """Fills ``out`` from the tables, for the KV pool that the walk's positions follow.

    ``slots`` int32 ``[B]``; ``cu_seqlens`` int32 ``[B + 1]``: row i brings tokens ``cu_seqlens[i]:cu_seqlens[i + 1]``,
    none if it pads; ``lengths`` int32 ``[rows]`` before the step and ``block_table`` int32 ``[rows, max_pages]``:
    columns of the tables, strided.
    """
    if slots.is_cuda:
        prefill_inputs_triton(slots, cu_seqlens, lengths, block_table, page_size, sink_page, out)
        return
    live = slots != NULL_ROW
    starts = torch.where(live, lengths[slots.long()], 0).long()
    counts = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
    out.lengths.copy_(torch.where(live, starts + counts, 1))
    out.last.copy_(torch.where(live, cu_seqlens[1:] - 1, 0))
    total = int(cu_seqlens[-1])
    row = torch.repeat_interleave(torch.arange(len(slots), device=slots.device), counts)
    position = torch.arange(total, device=slots.device) - cu_seqlens[row] + starts[row]
    page = block_table[slots[row].long(), torch.div(position, page_size, rounding_mode="floor")]
    out.positions.zero_()
    out.positions[:total] = position
    out.write_at.fill_(sink_page * page_size)
    out.write_at[:total] = (page * page_size + position % page_size).to(torch.int32)


@jit
def _prefill_inputs_kernel(
    slots: tl.tensor,
    cu_seqlens: tl.tensor,
    lengths: tl.tensor,
    block_table: tl.tensor,
    positions: tl.tensor,
    write_at: tl.tensor,
    step_lengths: tl.tensor,
    last: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    length_stride: tl.tensor,
    table_stride: tl.tensor,
    sink_page: tl.tensor,
    null_row: tl.tensor,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    lane = tl.arange(0, ROWS)
    inside = lane < rows
    ends = tl.load(cu_seqlens + 1 + lane, mask=inside, other=0)
    if tl.program_id(0) == 0:
        begins = tl.load(cu_seqlens + lane, mask=inside, other=0)
        slot = tl.load(slots + lane, mask=inside, other=null_row).to(tl.int64)
        live = inside & (slot != null_row)
        start = tl.load(lengths + slot * length_stride, mask=live, other=0)
        tl.store(step_lengths + lane, tl.where(live, start + ends - begins, 1), mask=inside)
        tl.store(last + lane, tl.where(live, ends - 1, 0).to(tl.int64), mask=inside)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    row = tl.sum(tl.where((ends[None, :] <= token[:, None]) & inside[None, :], 1, 0), 1)
    own = row < rows
    own_slot = tl.load(slots + row, mask=own, other=0).to(tl.int64)
    position = token - tl.load(cu_seqlens + row, mask=own, other=0)
    position = tl.where(own, position + tl.load(lengths + own_slot * length_stride, mask=own, other=0), 0)
    page = tl.load(block_table + own_slot * table_stride + position // PAGE, mask=own, other=sink_page)
    tl.store(positions + token, position.to(tl.int64), mask=token < tokens)
    tl.store(write_at + token, page * PAGE + position % PAGE, mask=token < tokens)


def prefill_inputs_triton(
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    sink_page: int,
    out: PrefillInputs,
) -> None:
    """:func:`prefill_inputs` in one kernel."""
    rows, tokens = slots.shape[0], out.positions.shape[0]
    _prefill_inputs_kernel[(-(-tokens // _TOKENS),)](
        slots, cu_seqlens, lengths, block_table, out.positions, out.write_at, out.lengths, out.last, rows, tokens,
        lengths.stride(0), block_table.stride(0), sink_page, NULL_ROW,
        PAGE=page_size, ROWS=power_of_two(rows), TOKENS=_TOKENS, num_warps=4,
    )  # fmt: skip
