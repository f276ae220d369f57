"""The two ends of a decode step over the device tables: what its rows bring in, and what they take along.

Between them the step reads nothing but these arrays, so that the host need not know a length, a page or a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from denizen.kernels.page_gather import NULL_ROW


@dataclass(frozen=True)
class DecodeInputs:
    """Static arrays of a decode step, each ``[B]``. Padding rows: token 0, position 0, length 1, the sink page."""

    tokens: torch.Tensor  #: int64, last token of each row
    positions: torch.Tensor  #: int64, where that token stands
    lengths: torch.Tensor  #: int32, positions of the row in this step, that token included
    write_at: torch.Tensor  #: int32, the token's place in the flattened pool, ``page * page_size + offset``

    @classmethod
    def allocate(cls, rows: int, device: torch.device) -> DecodeInputs:
        def zeros(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(rows, dtype=dtype, device=device)

        return cls(zeros(torch.int64), zeros(torch.int64), zeros(torch.int32), zeros(torch.int32))


def decode_inputs(
    slots: torch.Tensor,
    last_token: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    sink_page: int,
    out: DecodeInputs,
) -> None:
    """Fills ``out`` from the tables, for the KV pool that the walk's positions follow.

    ``slots`` int32 ``[B]``; ``last_token`` and ``lengths`` int32 ``[rows]`` and ``block_table`` int32
    ``[rows, max_pages]``: columns of the tables, strided.
    """
    if slots.is_cuda:
        decode_inputs_triton(slots, last_token, lengths, block_table, page_size, sink_page, out)
        return
    rows = slots.long()
    live = slots != NULL_ROW
    position = torch.where(live, lengths[rows], 0).long()
    page = torch.where(live, block_table[rows, torch.div(position, page_size, rounding_mode="floor")], sink_page)
    out.tokens.copy_(torch.where(live, last_token[rows], 0))
    out.positions.copy_(position)
    out.lengths.copy_(position + 1)
    out.write_at.copy_(page * page_size + position % page_size)


def advance_rows(
    slots: torch.Tensor,
    tokens: torch.Tensor,
    step_lengths: torch.Tensor,
    lengths: torch.Tensor,
    last_token: torch.Tensor,
    output_count: torch.Tensor,
    sampled: torch.Tensor | None = None,
) -> None:
    """The step is over: its rows' lengths, last tokens and output counts move, once; the null row stays as it is.

    ``slots``, ``step_lengths`` int32 ``[B]``; ``tokens`` int64 ``[B]``, just sampled; the last three are columns of the
    tables, int32 ``[rows]``, strided. ``sampled`` bool ``[B]``: of the other rows only the length moves (a prompt that
    is not at its end); None = all sampled.
    """
    if slots.is_cuda:
        advance_rows_triton(slots, tokens, step_lengths, lengths, last_token, output_count, sampled)
        return
    live = slots != NULL_ROW
    lengths[slots[live].long()] = step_lengths[live]
    if sampled is not None:
        live = live & sampled
    rows = slots[live].long()
    last_token[rows] = tokens[live].to(torch.int32)
    output_count[rows] += 1


@jit
def _decode_inputs_kernel(
    slots: tl.tensor,
    last_token: tl.tensor,
    lengths: tl.tensor,
    block_table: tl.tensor,
    tokens: tl.tensor,
    positions: tl.tensor,
    step_lengths: tl.tensor,
    write_at: tl.tensor,
    rows: tl.tensor,
    token_stride: tl.tensor,
    length_stride: tl.tensor,
    table_stride: tl.tensor,
    sink_page: tl.tensor,
    null_row: tl.tensor,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    lane = tl.arange(0, ROWS)
    inside = lane < rows
    slot = tl.load(slots + lane, mask=inside, other=null_row).to(tl.int64)
    live = inside & (slot != null_row)
    position = tl.load(lengths + slot * length_stride, mask=live, other=0)
    token = tl.load(last_token + slot * token_stride, mask=live, other=0)
    page = tl.load(block_table + slot * table_stride + position // PAGE, mask=live, other=sink_page)
    tl.store(tokens + lane, token.to(tl.int64), mask=inside)
    tl.store(positions + lane, position.to(tl.int64), mask=inside)
    tl.store(step_lengths + lane, position + 1, mask=inside)
    tl.store(write_at + lane, page * PAGE + position % PAGE, mask=inside)


def decode_inputs_triton(
    slots: torch.Tensor,
    last_token: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    sink_page: int,
    out: DecodeInputs,
) -> None:
    """:func:`decode_inputs` in one kernel of one program; ``B`` at most 1,024."""
    rows = slots.shape[0]
    _decode_inputs_kernel[(1,)](
        slots,
        last_token,
        lengths,
        block_table,
        out.tokens,
        out.positions,
        out.lengths,
        out.write_at,
        rows,
        last_token.stride(0),
        lengths.stride(0),
        block_table.stride(0),
        sink_page,
        NULL_ROW,
        PAGE=page_size,
        ROWS=power_of_two(rows),
        num_warps=4,
    )


@jit
def _advance_rows_kernel(
    slots: tl.tensor,
    tokens: tl.tensor,
    step_lengths: tl.tensor,
    lengths: tl.tensor,
    last_token: tl.tensor,
    output_count: tl.tensor,
    sampled: tl.tensor,
    rows: tl.tensor,
    length_stride: tl.tensor,
    token_stride: tl.tensor,
    count_stride: tl.tensor,
    null_row: tl.tensor,
    ROWS: tl.constexpr,
    SOME: tl.constexpr,
) -> None:
    lane = tl.arange(0, ROWS)
    inside = lane < rows
    slot = tl.load(slots + lane, mask=inside, other=null_row).to(tl.int64)
    live = inside & (slot != null_row)
    tl.store(lengths + slot * length_stride, tl.load(step_lengths + lane, mask=live, other=0), mask=live)
    if SOME:
        live = live & (tl.load(sampled + lane, mask=inside, other=0) != 0)
    tl.store(last_token + slot * token_stride, tl.load(tokens + lane, mask=live, other=0).to(tl.int32), mask=live)
    count = tl.load(output_count + slot * count_stride, mask=live, other=0)
    tl.store(output_count + slot * count_stride, count + 1, mask=live)


def advance_rows_triton(
    slots: torch.Tensor,
    tokens: torch.Tensor,
    step_lengths: torch.Tensor,
    lengths: torch.Tensor,
    last_token: torch.Tensor,
    output_count: torch.Tensor,
    sampled: torch.Tensor | None = None,
) -> None:
    """:func:`advance_rows` in one kernel of one program; ``B`` at most 1,024."""
    rows = slots.shape[0]
    _advance_rows_kernel[(1,)](
        slots,
        tokens,
        step_lengths,
        lengths,
        last_token,
        output_count,
        slots if sampled is None else sampled,
        rows,
        lengths.stride(0),
        last_token.stride(0),
        output_count.stride(0),
        NULL_ROW,
        ROWS=power_of_two(rows),
        SOME=sampled is not None,
        num_warps=4,
    )
