"""A gated delta net layer between its projections, one token a row: convolution, gates, delta rule, gated norm.

In place by state slot. On the GPU one kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from denizen.kernels.conv import causal_conv_step
from denizen.kernels.gated_delta import gated_delta_step
from denizen.kernels.gated_delta_gates import gate_values, gated_delta_gates
from denizen.kernels.jit import jit, tl
from denizen.kernels.norm import gated_rms_norm
from denizen.kernels.overlap import overlap, release, wait

#: Slot that pads batches; its state is never read and never written by the kernels.
NULL_SLOT = 0
#: Launch shape. More warps halve the programs that fit a multiprocessor, and double the time.
WARPS = 4
#: With a bf16 state three programs fit a multiprocessor if none takes more registers, at almost no spill. It pays once
#: there are programs for all: 57.9 to 52.6 µs at 128 rows on an H200. An fp32 state would spill.
_REGISTERS, _CROWDED = 168, 512


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
      float type, updated in place; ``slots`` int32 ``[B]``, 0 pads and nothing of slot 0 is kept. On a GPU these three
      are read while the kernel before may still run (``kernels/overlap.py``), which therefore must not write them.
    """
    arguments = (mixed, z, b, a, conv_weight, rate, dt_bias, norm_weight, eps, conv_state, state, slots)
    if mixed.is_cuda:
        return gated_delta_decode_triton(*arguments)
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
def _carried(weight: tl.tensor, state: tl.tensor, channel: tl.tensor, C: tl.constexpr, K: tl.constexpr) -> Any:
    """What the convolution of a row's channels reads beside the new token: the taps and their weights."""
    taps: tl.tuple = ()
    factors: tl.tuple = ()
    for tap in tl.static_range(K - 1):
        taps += (tl.load(state + tap * C + channel),)
    for tap in tl.static_range(K):
        factors += (tl.load(weight + channel * K + tap),)
    return taps, factors


@jit
def _convolve(taps: tl.tuple, factors: tl.tuple, newest: tl.tensor, K: tl.constexpr) -> Any:
    """One token of the channels: silu of the convolution, fp32, and the taps that :func:`_shift` stores."""
    kept: tl.tuple = ()
    total = tl.zeros(newest.shape, tl.float32)
    for tap in tl.static_range(K - 1):
        total += taps[tap].to(tl.float32) * factors[tap].to(tl.float32)
        if tap > 0:
            kept += (taps[tap],)
    total += newest.to(tl.float32) * factors[K - 1].to(tl.float32)
    kept += (newest.to(taps[0].dtype),)
    return total * tl.sigmoid(total), kept


@jit
def _shift(state: tl.tensor, kept: tl.tuple, channel: tl.tensor, C: tl.constexpr, K: tl.constexpr) -> None:
    """Replaces the taps. A barrier must lie between: a vector shorter than the program has threads is loaded by several
    of its warps, and the first of them would store what another has yet to load."""
    for tap in tl.static_range(K - 1):
        tl.store(state + tap * C + channel, kept[tap])


@jit
def _decode_kernel(
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
    OVERLAP: tl.constexpr,
) -> None:
    # A program owns a key head of a row and the value heads that read it, hence every channel that it convolves.
    program = tl.program_id(0)
    row = program // KEY_HEADS
    head = program % KEY_HEADS
    row64 = row.to(tl.int64)
    release(OVERLAP)
    slot = tl.load(slots + row).to(tl.int64)
    in_key = tl.arange(0, DK)
    in_value = tl.arange(0, DV)
    if slot == NULL:
        wait(OVERLAP)
        for member in tl.static_range(GROUP):
            place = (row64 * KEY_HEADS * GROUP + head * GROUP + member) * DV + in_value
            tl.store(out + place, tl.zeros([DV], tl.float32).to(out.dtype.element_ty))
    else:
        taps = conv_state + slot * (K - 1) * C
        source = mixed + row64 * mixed_stride
        query_channel = head * DK + in_key
        key_channel = (KEY_HEADS + head) * DK + in_key
        value_channel = 2 * KEY_HEADS * DK + head * GROUP * DV + in_value
        # All loads come before the first use and the first store, which would hold them back: first what earlier steps
        # left, then what the projection brings.
        own = state + (slot * KEY_HEADS + head) * GROUP * DK * DV + in_key[:, None] * DV + in_value[None, :]
        held = tl.load(own)
        query_past, query_factors = _carried(conv_weight, taps, query_channel, C, K)
        key_past, key_factors = _carried(conv_weight, taps, key_channel, C, K)
        weight = tl.load(norm_weight + in_value).to(tl.float32)
        value_past: tl.tuple = ()
        value_factors: tl.tuple = ()
        rates: tl.tuple = ()
        for member in tl.static_range(GROUP):
            past, factors = _carried(conv_weight, taps, value_channel + member * DV, C, K)
            value_past += (past,)
            value_factors += (factors,)
            rates += ((tl.load(rate + head * GROUP + member), tl.load(dt_bias + head * GROUP + member)),)
        wait(OVERLAP)
        new_query = tl.load(source + query_channel)
        new_key = tl.load(source + key_channel)
        new_values: tl.tuple = ()
        opened: tl.tuple = ()
        inputs: tl.tuple = ()
        for member in tl.static_range(GROUP):
            value_head = head * GROUP + member
            new_values += (tl.load(source + value_channel + member * DV),)
            opened += (tl.load(z + row64 * z_stride + value_head * DV + in_value),)
            inputs += ((tl.load(b + row64 * b_stride + value_head), tl.load(a + row64 * a_stride + value_head)),)
        query, query_taps = _convolve(query_past, query_factors, new_query, K)
        key, key_taps = _convolve(key_past, key_factors, new_key, K)
        values: tl.tuple = ()
        value_taps: tl.tuple = ()
        gates: tl.tuple = ()
        for member in tl.static_range(GROUP):
            value, kept = _convolve(value_past[member], value_factors[member], new_values[member], K)
            values += (value,)
            value_taps += (kept,)
            gates += (gate_values(inputs[member][0], inputs[member][1], rates[member][0], rates[member][1]),)
        tl.debug_barrier()
        _shift(taps, query_taps, query_channel, C, K)
        _shift(taps, key_taps, key_channel, C, K)
        # Norms scale sums instead of vectors, and the new state is read through the old one: the sums over keys need
        # not wait for one another.
        query_scale = SCALE * tl.rsqrt(tl.sum(query * query, 0) + 1e-6)
        key_scale = tl.rsqrt(tl.sum(key * key, 0) + 1e-6)
        overlap = key_scale * tl.sum(query * key, 0)
        for member in tl.static_range(GROUP):
            _shift(taps, value_taps[member], value_channel + member * DV, C, K)
            if member > 0:
                held = tl.load(own + member * DK * DV)
            log_decay, beta = gates[member]
            decay = tl.exp(log_decay)
            current = held.to(tl.float32)
            known = tl.sum(current * key[:, None], 0) * (key_scale * decay)
            read = tl.sum(current * query[:, None], 0) * decay
            correction = (values[member] - known) * beta
            current = current * decay + key[:, None] * (key_scale * correction)[None, :]
            tl.store(own + member * DK * DV, current.to(state.dtype.element_ty))
            y = (read + overlap * correction) * query_scale
            y *= tl.rsqrt(tl.sum(y * y, 0) / DV + eps) * weight
            target = (row64 * KEY_HEADS * GROUP + head * GROUP + member) * DV + in_value
            gate = opened[member].to(tl.float32)
            tl.store(out + target, (y * gate * tl.sigmoid(gate)).to(out.dtype.element_ty))


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
) -> torch.Tensor:
    """:func:`gated_delta_decode` in one kernel. Head dimensions are powers of two."""
    rows, channels = mixed.shape
    value_heads, key_dim, value_dim = state.shape[1:]
    key_heads = _key_heads(mixed, state)
    out = torch.empty((rows, value_heads * value_dim), dtype=mixed.dtype, device=mixed.device)
    capped = state.dtype == torch.bfloat16 and rows * key_heads >= _CROWDED
    overlaps = overlap() and not capped  # measured: 2,176 µs a step of 128 rows against 2,202
    _decode_kernel[(rows * key_heads,)](
        mixed, z, b, a, conv_weight, rate, dt_bias, norm_weight, conv_state, state, slots, out,
        mixed.stride(0), z.stride(0), b.stride(0), a.stride(0), eps,
        SCALE=key_dim**-0.5, KEY_HEADS=key_heads, GROUP=value_heads // key_heads, DK=key_dim, DV=value_dim, C=channels,
        K=conv_weight.shape[1], NULL=NULL_SLOT, OVERLAP=overlaps,
        num_warps=WARPS, maxnreg=_REGISTERS if capped else None, launch_pdl=overlaps,
    )  # fmt: skip
    return out
