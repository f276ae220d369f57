"""A gated delta net layer between its projections, one token a row: convolution, gates, delta rule, gated norm.

In place by state slot. On the GPU one fused kernel, or three for batches whose state traffic hides the extra launches;
which of the two ran is not to be seen in the results beyond rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from denizen.kernels.conv import causal_conv_step
from denizen.kernels.gated_delta import gated_delta_step
from denizen.kernels.gated_delta_gates import gate_values, gated_delta_gates
from denizen.kernels.jit import jit, tl
from denizen.kernels.norm import gated_rms_norm, gated_rms_norm_triton

#: Slot that pads batches; its state is never read and never written by the kernels.
NULL_SLOT = 0
#: Rows from which the split form is faster (measured on an H200: 14.5 µs fused at 16 rows; at 128 the split delta
#: kernel alone reaches 3.7 TB/s).
SPLIT_ROWS = 64
#: Launch shapes: warps of the fused kernel; columns of a head's state and warps of the split delta kernel.
FUSED_WARPS = 4
DELTA_COLUMNS, DELTA_WARPS = 32, 4


def gated_delta_decode(
    mixed: torch.Tensor,
    z: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_weight: torch.Tensor,
    rate: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    conv_state: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Returns ``[B, value_heads * value_dim]`` in ``mixed``'s type, ready for the output projection.

    - ``mixed`` ``[B, channels]``: queries, keys, values before the convolution; ``z`` ``[B, value_heads * value_dim]``,
      ``b``, ``a`` ``[B, value_heads]``: parts of one projection, so rows may be strided.
    - ``conv_weight`` ``[channels, K]``; ``rate`` (``-exp(A_log)``), ``dt_bias`` fp32 ``[value_heads]``;
      ``norm_weight`` ``[value_dim]``.
    - ``conv_state`` ``[slots, K - 1, channels]`` and ``state`` ``[slots, value_heads, key_dim, value_dim]``, of any
      float type, updated in place; ``slots`` int32 ``[B]``, 0 pads and nothing of slot 0 is kept.
    """
    arguments = (mixed, z, b, a, conv_weight, rate, dt_bias, norm_weight, eps, conv_state, state, slots)
    if mixed.is_cuda:
        return gated_delta_decode_triton(*arguments, split=mixed.shape[0] >= SPLIT_ROWS)
    rows = mixed.shape[0]
    value_heads, key_dim, value_dim = state.shape[1:]
    key_heads = _key_heads(mixed, state)
    convolved = causal_conv_step(mixed, conv_weight, conv_state, slots)
    key_width = key_heads * key_dim
    query, key, value = torch.split(convolved, [key_width, key_width, value_heads * value_dim], dim=-1)
    g, beta = gated_delta_gates(b, a, rate, dt_bias)
    out = gated_delta_step(
        query.view(rows, key_heads, key_dim),
        key.view(rows, key_heads, key_dim),
        value.view(rows, value_heads, value_dim),
        g,
        beta,
        state,
        slots,
    )
    return gated_rms_norm(out, z.reshape(out.shape), norm_weight, eps).view(rows, -1).to(mixed.dtype)


def _key_heads(mixed: torch.Tensor, state: torch.Tensor) -> int:
    value_heads, key_dim, value_dim = state.shape[1:]
    return (mixed.shape[1] - value_heads * value_dim) // (2 * key_dim)


@jit
def _convolve(
    mixed: tl.tensor, weight: tl.tensor, state: tl.tensor, channel: tl.tensor, C: tl.constexpr, K: tl.constexpr
) -> Any:
    """One token of the channels of a row: silu of the convolution, fp32, and the taps that :func:`_shift` stores."""
    kept = ()
    total = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(K - 1):
        past = tl.load(state + tap * C + channel)
        total += past.to(tl.float32) * tl.load(weight + channel * K + tap).to(tl.float32)
        if tap > 0:
            kept = kept + (past,)
    newest = tl.load(mixed + channel)
    total += newest.to(tl.float32) * tl.load(weight + channel * K + K - 1).to(tl.float32)
    return total * tl.sigmoid(total), kept + (newest.to(state.dtype.element_ty),)


@jit
def _shift(state: tl.tensor, kept: tl.tuple, channel: tl.tensor, C: tl.constexpr, K: tl.constexpr) -> None:
    """Replaces the taps. A barrier must lie between: a vector shorter than the program has threads is loaded by several
    of its warps, and the first of them would store what another has yet to load."""
    for tap in tl.static_range(K - 1):
        tl.store(state + tap * C + channel, kept[tap])


@jit
def _delta(
    held: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    decay: tl.tensor,
    beta: tl.tensor,
    SCALE: tl.constexpr,
) -> Any:
    """One step of the rule for a ``[key_dim, columns]`` tile of a head's state: the new tile and the output."""
    query *= SCALE * tl.rsqrt(tl.sum(query * query, 0) + 1e-6)
    key *= tl.rsqrt(tl.sum(key * key, 0) + 1e-6)
    held *= decay
    correction = (value - tl.sum(held * key[:, None], 0)) * beta
    held += key[:, None] * correction[None, :]
    return held, tl.sum(held * query[:, None], 0)


@jit
def _fused_kernel(
    mixed: tl.tensor,
    z: tl.tensor,
    b: tl.tensor,
    a: tl.tensor,
    conv_weight: tl.tensor,
    rate: tl.tensor,
    dt_bias: tl.tensor,
    norm_weight: tl.tensor,
    conv_state: tl.tensor,
    state: tl.tensor,
    slots: tl.tensor,
    out: tl.tensor,
    mixed_stride: tl.tensor,
    z_stride: tl.tensor,
    b_stride: tl.tensor,
    a_stride: tl.tensor,
    eps: tl.tensor,
    SCALE: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    NULL: tl.constexpr,
) -> None:
    # A program owns a key head of a row and the value heads that read it, hence every channel that it convolves.
    program = tl.program_id(0)
    row = program // KEY_HEADS
    head = program % KEY_HEADS
    row64 = row.to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    in_key = tl.arange(0, DK)
    in_value = tl.arange(0, DV)
    if slot == NULL:
        for member in tl.static_range(GROUP):
            place = (row64 * KEY_HEADS * GROUP + head * GROUP + member) * DV + in_value
            tl.store(out + place, tl.zeros([DV], tl.float32).to(out.dtype.element_ty))
    else:
        taps = conv_state + slot * (K - 1) * C
        source = mixed + row64 * mixed_stride
        # The state is on its way while the convolution works: stores below would hold the load back.
        own = state + (slot * KEY_HEADS + head) * GROUP * DK * DV + in_key[:, None] * DV + in_value[None, :]
        held = tl.load(own).to(tl.float32)
        query_channel = head * DK + in_key
        key_channel = (KEY_HEADS + head) * DK + in_key
        value_channel = 2 * KEY_HEADS * DK + head * GROUP * DV + in_value
        query, query_taps = _convolve(source, conv_weight, taps, query_channel, C, K)
        key, key_taps = _convolve(source, conv_weight, taps, key_channel, C, K)
        values = ()
        value_taps = ()
        for member in tl.static_range(GROUP):
            value, kept = _convolve(source, conv_weight, taps, value_channel + member * DV, C, K)
            values = values + (value,)
            value_taps = value_taps + (kept,)
        tl.debug_barrier()
        _shift(taps, query_taps, query_channel, C, K)
        _shift(taps, key_taps, key_channel, C, K)
        for member in tl.static_range(GROUP):
            _shift(taps, value_taps[member], value_channel + member * DV, C, K)
        for member in tl.static_range(GROUP):
            value_head = head * GROUP + member
            tile = own + member * DK * DV
            if member > 0:
                held = tl.load(tile).to(tl.float32)
            log_decay, beta = gate_values(
                tl.load(b + row64 * b_stride + value_head),
                tl.load(a + row64 * a_stride + value_head),
                tl.load(rate + value_head),
                tl.load(dt_bias + value_head),
            )
            held, y = _delta(held, query, key, values[member], tl.exp(log_decay), beta, SCALE)
            tl.store(tile, held.to(state.dtype.element_ty))
            gate = tl.load(z + row64 * z_stride + value_head * DV + in_value).to(tl.float32)
            y *= tl.rsqrt(tl.sum(y * y, 0) / DV + eps) * tl.load(norm_weight + in_value).to(tl.float32)
            place = (row64 * KEY_HEADS * GROUP + value_head) * DV + in_value
            tl.store(out + place, (y * gate * tl.sigmoid(gate)).to(out.dtype.element_ty))


@jit
def _conv_kernel(
    mixed: tl.tensor,
    conv_weight: tl.tensor,
    conv_state: tl.tensor,
    slots: tl.tensor,
    out: tl.tensor,
    mixed_stride: tl.tensor,
    C: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    NULL: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + row).to(tl.int64)
    if slot != NULL:
        taps = conv_state + slot * (K - 1) * C
        result, kept = _convolve(mixed + row * mixed_stride, conv_weight, taps, channel, C, K)
        tl.debug_barrier()
        _shift(taps, kept, channel, C, K)
        tl.store(out + row * C + channel, result.to(out.dtype.element_ty))


@jit
def _delta_kernel(
    convolved: tl.tensor,
    b: tl.tensor,
    a: tl.tensor,
    rate: tl.tensor,
    dt_bias: tl.tensor,
    state: tl.tensor,
    slots: tl.tensor,
    out: tl.tensor,
    b_stride: tl.tensor,
    a_stride: tl.tensor,
    SCALE: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    COLUMNS: tl.constexpr,
    C: tl.constexpr,
    NULL: tl.constexpr,
) -> None:
    row = (tl.program_id(0) // VALUE_HEADS).to(tl.int64)
    head = tl.program_id(0) % VALUE_HEADS
    in_key = tl.arange(0, DK)
    in_value = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.load(slots + row).to(tl.int64)
    place = out + (row * VALUE_HEADS + head) * DV + in_value
    if slot == NULL:
        tl.store(place, tl.zeros([COLUMNS], tl.float32))
    else:
        tile = state + (slot * VALUE_HEADS + head) * DK * DV + in_key[:, None] * DV + in_value[None, :]
        held = tl.load(tile).to(tl.float32)
        source = convolved + row * C
        key_width: tl.constexpr = VALUE_HEADS // GROUP * DK
        query = tl.load(source + (head // GROUP) * DK + in_key).to(tl.float32)
        key = tl.load(source + key_width + (head // GROUP) * DK + in_key).to(tl.float32)
        value = tl.load(source + 2 * key_width + head * DV + in_value).to(tl.float32)
        log_decay, beta = gate_values(
            tl.load(b + row * b_stride + head),
            tl.load(a + row * a_stride + head),
            tl.load(rate + head),
            tl.load(dt_bias + head),
        )
        held, y = _delta(held, query, key, value, tl.exp(log_decay), beta, SCALE)
        tl.store(tile, held.to(state.dtype.element_ty))
        tl.store(place, y)


def gated_delta_decode_triton(
    mixed: torch.Tensor,
    z: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_weight: torch.Tensor,
    rate: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    conv_state: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    split: bool,
) -> torch.Tensor:
    """:func:`gated_delta_decode` for the GPU, fused or split. Head dimensions are powers of two."""
    rows, channels = mixed.shape
    value_heads, key_dim, value_dim = state.shape[1:]
    key_heads = _key_heads(mixed, state)
    taps = conv_weight.shape[1]
    scale = key_dim**-0.5
    group = value_heads // key_heads
    width = value_heads * value_dim
    if not split:
        out = torch.empty((rows, width), dtype=mixed.dtype, device=mixed.device)
        _fused_kernel[(rows * key_heads,)](
            mixed, z, b, a, conv_weight, rate, dt_bias, norm_weight, conv_state, state, slots, out,
            mixed.stride(0), z.stride(0), b.stride(0), a.stride(0), eps,
            SCALE=scale, KEY_HEADS=key_heads, GROUP=group, DK=key_dim, DV=value_dim, C=channels, K=taps,
            NULL=NULL_SLOT, num_warps=FUSED_WARPS,
        )  # fmt: skip
        return out
    # fp32 between the kernels, as inside the fused one.
    convolved = torch.empty((rows, channels), dtype=torch.float32, device=mixed.device)
    block = min(512, channels & -channels)
    _conv_kernel[(rows, channels // block)](
        mixed, conv_weight, conv_state, slots, convolved, mixed.stride(0),
        C=channels, K=taps, BLOCK=block, NULL=NULL_SLOT, num_warps=4,
    )  # fmt: skip
    read = torch.empty((rows, width), dtype=torch.float32, device=mixed.device)
    columns = min(DELTA_COLUMNS, value_dim)
    _delta_kernel[(rows * value_heads, value_dim // columns)](
        convolved, b, a, rate, dt_bias, state, slots, read, b.stride(0), a.stride(0),
        SCALE=scale, VALUE_HEADS=value_heads, GROUP=group, DK=key_dim, DV=value_dim, COLUMNS=columns, C=channels,
        NULL=NULL_SLOT, num_warps=DELTA_WARPS,
    )  # fmt: skip
    gate = z.view(rows, value_heads, value_dim)
    return gated_rms_norm_triton(read.view(gate.shape), gate, norm_weight, eps, slots).view(rows, width)
