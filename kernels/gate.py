"""Elementwise gates of a layer: the attention output's sigmoid gate and the SiLU-gated MLP."""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from denizen.kernels.overlap import overlap, release, wait
from torch.nn.functional import silu

_BLOCK = 512


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(gate)`` in fp32, rounded to ``x``'s type: ``x`` ``[T, heads, D]``, contiguous.

    ``gate`` ``[T, heads, D]`` may be strided: it is a part of the query projection, which is ``[query | gate]`` a head.
    """
    if x.is_cuda:
        return sigmoid_gate_triton(x, gate)
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` in fp32, rounded: ``gate_up`` ``[T, 2 * F]`` is ``[gate | up]``; the result is ``[T, F]``."""
    if gate_up.is_cuda:
        return silu_mul_triton(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (silu(gate) * up).to(gate_up.dtype)


@jit
def _sigmoid_gate_kernel(
    x: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    release(OVERLAP)
    wait(OVERLAP)
    head = tl.program_id(0)  # of all tokens
    lane = tl.arange(0, W)
    inside = lane < D
    token = (head // HEADS).to(tl.int64)
    value = tl.load(x + head.to(tl.int64) * D + lane, mask=inside, other=0).to(tl.float32)
    open_ = tl.load(gate + token * token_stride + (head % HEADS) * head_stride + lane, mask=inside, other=0).to(
        tl.float32
    )
    tl.store(out + head.to(tl.int64) * D + lane, (value * tl.sigmoid(open_)).to(out.dtype.element_ty), mask=inside)


def sigmoid_gate_triton(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """:func:`sigmoid_gate` for the GPU."""
    tokens, heads, dim = x.shape
    out = torch.empty_like(x)
    overlaps = overlap()
    _sigmoid_gate_kernel[(tokens * heads,)](
        x, gate, out, gate.stride(0), gate.stride(1),
        HEADS=heads, D=dim, W=power_of_two(dim), OVERLAP=overlaps, num_warps=1, launch_pdl=overlaps,
    )  # fmt: skip
    return out


@jit
def _silu_mul_kernel(
    x: tl.tensor, out: tl.tensor, stride: tl.tensor, F: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
) -> None:
    release(OVERLAP)
    wait(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < F
    gate = tl.load(x + token * stride + lane, mask=inside, other=0).to(tl.float32)
    up = tl.load(x + token * stride + F + lane, mask=inside, other=0).to(tl.float32)
    tl.store(out + token * F + lane, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def silu_mul_triton(gate_up: torch.Tensor) -> torch.Tensor:
    """:func:`silu_mul` for the GPU."""
    tokens, width = gate_up.shape
    features = width // 2
    out = torch.empty((tokens, features), dtype=gate_up.dtype, device=gate_up.device)
    grid = (tokens, -(-features // _BLOCK))
    overlaps = overlap()
    _silu_mul_kernel[grid](
        gate_up, out, gate_up.stride(0), F=features, BLOCK=_BLOCK, OVERLAP=overlaps, num_warps=4, launch_pdl=overlaps
    )
    return out
