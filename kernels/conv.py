"""Short depthwise causal convolution with a carried state, followed by SiLU.

The state of a sequence is its last ``K - 1`` inputs, ``[K - 1, channels]``, oldest first; zeros before the first token.
"""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from torch.nn.functional import silu


def causal_conv_prefill(
    x: torch.Tensor,
    weight: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor | None,
) -> torch.Tensor:
    """Ragged rows packed one after the other; the rows' states are read and then replaced in place.

    - ``x`` ``[T, channels]``; row i owns ``cu_seqlens[i]:cu_seqlens[i + 1]`` (int32 ``[B + 1]``, no empty row).
    - ``weight`` ``[channels, K]``: ``out[t] = sum_k weight[:, k] * x[t - (K - 1) + k]``.
    - ``state`` ``[slots, K - 1, channels]``, ``slots`` int32 ``[B]``.
    - ``fresh`` bool ``[B]``: rows that start from zeros, whatever their slot holds.

    Returns ``silu(out)``, ``[T, channels]``.
    """
    if x.is_cuda:
        return causal_conv_prefill_triton(x, weight, cu_seqlens, state, slots, _started(fresh, slots))
    carried = weight.shape[1] - 1
    cu_seqlens = cu_seqlens.long()
    slots = slots.long()
    before = state[slots].to(x.dtype)
    if fresh is not None:
        before.masked_fill_(fresh[:, None, None], 0)

    # Every row in its own stretch, its carried inputs in front: outputs of one row never read another's inputs.
    counts = cu_seqlens[1:] - cu_seqlens[:-1]
    rows = torch.repeat_interleave(torch.arange(len(slots), device=x.device), counts)
    token_at = torch.arange(len(x), device=x.device) + rows * carried  # an output's window starts here
    row_end = cu_seqlens[1:] + torch.arange(1, len(slots) + 1, device=x.device) * carried
    tail = torch.arange(carried, device=x.device)
    row_start = cu_seqlens[:-1] + torch.arange(len(slots), device=x.device) * carried
    packed = x.new_empty((len(x) + len(slots) * carried, x.shape[1]))
    packed[(row_start[:, None] + tail).reshape(-1)] = before.reshape(-1, x.shape[1])
    packed[token_at + carried] = x

    windows = len(packed) - carried
    out = packed[:windows] * weight[:, 0]
    for k in range(1, carried + 1):
        out.addcmul_(packed[k : k + windows], weight[:, k])
    state[slots] = packed[row_end[:, None] - carried + tail].to(state.dtype)
    return silu(out[token_at])


def _started(fresh: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(slots, dtype=torch.bool) if fresh is None else fresh


def causal_conv_step(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token a row: ``x`` and the result ``[B, channels]``, the rest as in :func:`causal_conv_prefill`."""
    slots = slots.long()
    before = state[slots].to(x.dtype)
    if fresh is not None:
        before.masked_fill_(fresh[:, None, None], 0)
    window = torch.cat((before, x[:, None, :]), dim=1)
    state[slots] = window[:, 1:].to(state.dtype)
    return silu((window * weight.t()).sum(dim=1))


@jit
def _conv_prefill_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    cu_seqlens: tl.tensor,
    state: tl.tensor,
    slots: tl.tensor,
    fresh: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    stride: tl.tensor,
    C: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, ROWS)
    ends = tl.load(cu_seqlens + 1 + lane, mask=lane < rows, other=0)
    passed = (ends[None, :] <= token[:, None]) & (lane < rows)[None, :]
    row = tl.sum(tl.where(passed, 1, 0), 1)
    live = row < rows  # tokens after the last row pad the bucket
    begin = tl.load(cu_seqlens + row, mask=live, other=0)
    slot = tl.load(slots + row, mask=live, other=0).to(tl.int64)
    carried = live & (tl.load(fresh + row, mask=live, other=1) == 0)
    total = tl.zeros([TOKENS, BLOCK], tl.float32)
    for tap in tl.static_range(K):
        source = token - (K - 1) + tap
        here = live & (source >= begin)
        value = tl.load(x + source.to(tl.int64)[:, None] * stride + channel[None, :], mask=here[:, None], other=0)
        if tap < K - 1:
            # Before the row's first token: its carried inputs, the newest of them last.
            past = K - 1 + source - begin
            before = carried & (source < begin)
            place = state + (slot * (K - 1) + past)[:, None] * C + channel[None, :]
            value = value.to(tl.float32) + tl.load(place, mask=before[:, None], other=0).to(tl.float32)
        total += value.to(tl.float32) * tl.load(weight + channel * K + tap).to(tl.float32)[None, :]
    result = (total * tl.sigmoid(total)).to(out.dtype.element_ty)
    tl.store(out + token.to(tl.int64)[:, None] * C + channel[None, :], result, mask=live[:, None])


@jit
def _conv_carry_kernel(
    x: tl.tensor,
    cu_seqlens: tl.tensor,
    state: tl.tensor,
    slots: tl.tensor,
    fresh: tl.tensor,
    stride: tl.tensor,
    C: tl.constexpr,
    K: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
    NULL: tl.constexpr,
) -> None:
    # After the outputs, which read what this replaces. All is loaded before anything is stored, with a barrier between:
    # entries move to the front, and a short vector is loaded by several warps of the program.
    row = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    entry = tl.arange(0, ENTRIES)[:, None]
    begin = tl.load(cu_seqlens + row)
    end = tl.load(cu_seqlens + row + 1)
    slot = tl.load(slots + row).to(tl.int64)
    if (slot != NULL) & (begin < end):
        present = entry < K - 1
        carried = tl.load(fresh + row) == 0
        source = end - (K - 1) + entry
        taps = state + slot * (K - 1) * C + channel
        new = tl.load(x + source.to(tl.int64) * stride + channel, mask=present & (source >= begin), other=0)
        old = tl.load(taps + (entry + end - begin) * C, mask=present & (source < begin) & carried, other=0)
        value = tl.where(source >= begin, new.to(state.dtype.element_ty), old)
        tl.debug_barrier()
        tl.store(taps + entry * C, value, mask=present)


def causal_conv_prefill_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor,
) -> torch.Tensor:
    """:func:`causal_conv_prefill` for the GPU, and for graphs.

    Beyond the reference's contract: rows may be empty and may have slot 0 (they pad the batch), and tokens after
    ``cu_seqlens[B]`` pad the bucket; their outputs are undefined. Tokens of ``x`` may be strided.
    """
    tokens, channels = x.shape
    rows, taps = slots.shape[0], weight.shape[1]
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    block = min(256, channels & -channels)
    per_program = 16
    _conv_prefill_kernel[(-(-tokens // per_program), channels // block)](
        x, weight, cu_seqlens, state, slots, fresh, out, rows, x.stride(0),
        C=channels, K=taps, ROWS=power_of_two(rows), TOKENS=per_program, BLOCK=block, num_warps=4,
    )  # fmt: skip
    _conv_carry_kernel[(rows, channels // block)](
        x, cu_seqlens, state, slots, fresh, x.stride(0),
        C=channels, K=taps, ENTRIES=power_of_two(taps - 1), BLOCK=block, NULL=0, num_warps=2,
    )  # fmt: skip
    return out
