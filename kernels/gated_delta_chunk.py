"""Prefill of the gated delta rule on the GPU: ragged rows, state in place by slot, shapes fixed by the token bucket.

The chunked form of ``gated_delta_prefill`` (``kernels/gated_delta.py``) in two kernels. The first solves every chunk's
triangular system (the WY representation, in parallel over chunks and heads); the second carries a row's state from
chunk to chunk and reads it (in parallel over rows, heads and columns of the state). Where chunks begin is worked out on
the device from ``cu_seqlens``, so that a captured graph serves any rows that fit its bucket.
"""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl

_CHUNK = 64
#: Launch shapes: warps of the first kernel; columns of a head's state a program, and warps, of the second.
SOLVE_WARPS = 4
CARRY_COLUMNS, CARRY_WARPS = 32, 4
#: Heads smaller than this (of models made for tests) are computed in fp32: Triton 3.6 compiles the product with bf16
#: values of 16 or 32 columns to something wrong on an H200; 64 and 128 columns are right.
_LEAST_BF16 = 64
#: Slot that pads rows; such a row reads and writes no state.
_NULL_SLOT = 0


@jit
def _inverse_norm(x: tl.tensor) -> tl.tensor:
    """Of the rows of a tile, fp32."""
    x = x.to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, 1) + 1e-6)


@jit
def _solve_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    g: tl.tensor,
    beta: tl.tensor,
    cu_seqlens: tl.tensor,
    weighted: tl.tensor,
    corrected: tl.tensor,
    norms: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    head = tl.program_id(1)
    lane = tl.arange(0, ROWS)
    begins = tl.load(cu_seqlens + lane, mask=lane < rows, other=0)
    lengths = tl.load(cu_seqlens + lane + 1, mask=lane < rows, other=0) - begins
    chunks = tl.where(lane < rows, (lengths + (CHUNK - 1)) // CHUNK, 0)
    ends = tl.cumsum(chunks, 0)
    row = tl.sum(tl.where((lane < rows) & (ends <= program), 1, 0), 0)
    if row < rows:
        own = lane == row
        chunk = program - tl.sum(tl.where(own, ends - chunks, 0), 0)
        first = tl.sum(tl.where(own, begins, 0), 0) + chunk * CHUNK
        count = tl.sum(tl.where(own, lengths, 0), 0) - chunk * CHUNK
        step = tl.arange(0, CHUNK)
        inside = step < count
        token = (first + step).to(tl.int64)
        in_key = tl.arange(0, DK)
        in_value = tl.arange(0, DV)

        # Products take queries and keys as they are; their norms scale the results, in fp32.
        head_key = (head // GROUP) * DK + in_key[None, :]
        q = tl.load(query + token[:, None] * query_stride + head_key, mask=inside[:, None], other=0)
        tl.store(norms + token * HEADS + head, _inverse_norm(q), mask=inside)
        k = tl.load(key + token[:, None] * key_stride + head_key, mask=inside[:, None], other=0)
        norm = _inverse_norm(k)
        tl.store(norms + (tokens + token) * HEADS + head, norm, mask=inside)
        # Beyond the row's end beta and g are 0: such tokens neither decay nor change anything.
        b = tl.load(beta + token * HEADS + head, mask=inside, other=0)
        decay = tl.cumsum(tl.load(g + token * HEADS + head, mask=inside, other=0), 0)

        below = step[:, None] > step[None, :]
        between = tl.where(below, tl.exp(tl.where(below, decay[:, None] - decay[None, :], 0.0)), 0.0)
        system = tl.dot(k, tl.trans(k), input_precision=PRECISION) * between * (b * norm)[:, None] * norm[None, :]

        # Inverse of I + system: the diagonal blocks' inverses double in size, T <- T - T N T, where N is what joins two
        # neighbours. A power series would be shorter and cancels hopelessly when keys repeat.
        inverse = tl.where(step[:, None] == step[None, :], 1.0, 0.0)
        inverse -= tl.where(step[:, None] // 2 == step[None, :] // 2, system, 0.0)
        for level in tl.range(1, 6, num_stages=1):  # not unrolled: the masks of all levels would fill the registers
            pair = step[:, None] // (2 << level) == step[None, :] // (2 << level)
            joint = pair & (step[:, None] // (1 << level) != step[None, :] // (1 << level))
            left = tl.dot(inverse, tl.where(joint, system, 0.0), input_precision=PRECISION)
            inverse -= tl.dot(left, inverse, input_precision=PRECISION)

        w = tl.dot((inverse * (b * norm * tl.exp(decay))[None, :]).to(k.dtype), k, input_precision=PRECISION)
        place = weighted + (token[:, None] * HEADS + head) * DK + in_key[None, :]
        tl.store(place, w.to(weighted.dtype.element_ty), mask=inside[:, None])
        source = value + token[:, None] * value_stride + head * DV + in_value[None, :]
        v = tl.load(source, mask=inside[:, None], other=0)
        u = tl.dot((inverse * b[None, :]).to(v.dtype), v, input_precision=PRECISION)
        place = corrected + (token[:, None] * HEADS + head) * DV + in_value[None, :]
        tl.store(place, u.to(corrected.dtype.element_ty), mask=inside[:, None])


@jit
def _carry_kernel(
    query: tl.tensor,
    key: tl.tensor,
    g: tl.tensor,
    cu_seqlens: tl.tensor,
    weighted: tl.tensor,
    corrected: tl.tensor,
    norms: tl.tensor,
    state: tl.tensor,
    slots: tl.tensor,
    fresh: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    NULL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    row = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    in_key = tl.arange(0, DK)
    in_value = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, CHUNK)
    begin = tl.load(cu_seqlens + row)
    end = tl.load(cu_seqlens + row + 1)
    slot = tl.load(slots + row).to(tl.int64)
    # Operands of the products: bf16 in a bf16 model, whose state stays fp32 where it accumulates.
    operand: tl.constexpr = query.dtype.element_ty
    if (slot != NULL) & (begin < end):
        tile = state + (slot * HEADS + head) * DK * DV + in_key[:, None] * DV + in_value[None, :]
        # The select, not a product, keeps what a fresh row's slot held (perhaps NaN) out.
        carried = tl.load(fresh + row) == 0
        held = tl.where(carried, tl.load(tile).to(tl.float32), 0.0)
        causal = step[:, None] >= step[None, :]
        for first in range(begin, end, CHUNK):
            inside = first + step < end
            token = (first + step).to(tl.int64)
            head_key = (head // GROUP) * DK + in_key[None, :]
            decay = tl.cumsum(tl.load(g + token * HEADS + head, mask=inside, other=0), 0)
            whole = tl.min(decay, 0)  # g is never positive, so the least is the last
            place = (token[:, None] * HEADS + head) * DV + in_value[None, :]
            w = tl.load(
                weighted + (token[:, None] * HEADS + head) * DK + in_key[None, :], mask=inside[:, None], other=0
            )
            u = tl.load(corrected + place, mask=inside[:, None], other=0).to(tl.float32)
            near = held.to(operand)
            fixed = u - tl.dot(w, near, input_precision=PRECISION)
            q = tl.load(query + token[:, None] * query_stride + head_key, mask=inside[:, None], other=0)
            k = tl.load(key + token[:, None] * key_stride + head_key, mask=inside[:, None], other=0)
            query_norm = SCALE * tl.load(norms + token * HEADS + head, mask=inside, other=0)
            key_norm = tl.load(norms + (tokens + token) * HEADS + head, mask=inside, other=0)
            between = tl.where(causal, tl.exp(tl.where(causal, decay[:, None] - decay[None, :], 0.0)), 0.0)
            within = tl.dot(q, tl.trans(k), input_precision=PRECISION) * between * key_norm[None, :]
            read = tl.dot(q, near, input_precision=PRECISION) * tl.exp(decay)[:, None]
            read += tl.dot(within.to(operand), fixed.to(operand), input_precision=PRECISION)
            tl.store(out + place, (read * query_norm[:, None]).to(out.dtype.element_ty), mask=inside[:, None])
            fixed *= (key_norm * tl.exp(whole - decay))[:, None]
            held = held * tl.exp(whole) + tl.dot(tl.trans(k), fixed.to(operand), input_precision=PRECISION)
        tl.store(tile, held.to(state.dtype.element_ty))


def gated_delta_prefill_triton(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor,
) -> torch.Tensor:
    """:func:`~denizen.kernels.gated_delta.gated_delta_prefill` for the GPU, and for graphs.

    Beyond the reference's contract: rows may be empty and may have slot 0 (they pad the batch), and tokens after
    ``cu_seqlens[B]`` pad the bucket; their outputs are undefined. Heads of ``query``, ``key`` and ``value`` are
    contiguous, tokens may be strided; ``g`` and ``beta`` fp32 are contiguous.
    """
    tokens, heads, value_dim = value.shape
    key_heads, key_dim = key.shape[1:]
    rows = slots.shape[0]
    if min(key_dim, value_dim) < _LEAST_BF16:
        query, key, value = query.float(), key.float(), value.float()
    precision = "tf32" if value.dtype == torch.bfloat16 else "tf32x3"
    weighted = torch.empty((tokens, heads, key_dim), dtype=value.dtype, device=value.device)
    corrected = torch.empty((tokens, heads, value_dim), dtype=value.dtype, device=value.device)
    norms = torch.empty((2, tokens, heads), dtype=torch.float32, device=value.device)
    out = torch.empty((tokens, heads, value_dim), dtype=torch.float32, device=value.device)
    # A row's last chunk may be short, so that up to one more a row is needed than the tokens fill.
    _solve_kernel[(min(tokens, tokens // _CHUNK + rows), heads)](
        query, key, value, g, beta, cu_seqlens, weighted, corrected, norms, rows, tokens,
        query.stride(0), key.stride(0), value.stride(0),
        HEADS=heads, GROUP=heads // key_heads, DK=key_dim, DV=value_dim, CHUNK=_CHUNK, ROWS=power_of_two(rows),
        PRECISION=precision, num_warps=SOLVE_WARPS,
    )  # fmt: skip
    columns = min(CARRY_COLUMNS, value_dim)
    _carry_kernel[(value_dim // columns, rows * heads)](
        query, key, g, cu_seqlens, weighted, corrected, norms, state, slots, fresh, out, tokens,
        query.stride(0), key.stride(0),
        SCALE=key_dim**-0.5, HEADS=heads, GROUP=heads // key_heads, DK=key_dim, DV=value_dim, COLUMNS=columns,
        CHUNK=_CHUNK, NULL=_NULL_SLOT, PRECISION=precision, num_warps=CARRY_WARPS, num_stages=2,
    )  # fmt: skip
    return out
