"""RMS norms, computed in fp32."""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from denizen.kernels.overlap import overlap, release, wait
from torch.nn.functional import rms_norm as _rms_norm
from torch.nn.functional import silu


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension: ``x`` ``[..., D]``, ``weight`` ``[D]``.

    A zero-centred checkpoint weight (``1 + w``) is folded when it is loaded, never here.
    """
    if x.is_cuda:
        return add_rms_norm_triton(x.reshape(-1, x.shape[-1]), None, weight, eps).view(x.shape)
    return _rms_norm(x, weight.shape, weight, eps)


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``rms_norm(x) * silu(gate)``, the norm first, in fp32: all ``[..., D]``, ``weight`` ``[D]``."""
    if x.is_cuda:
        return gated_rms_norm_triton(x, gate, weight, eps)
    normed = rms_norm(x.float(), weight.float(), eps)
    return (normed * silu(gate.float())).to(gate.dtype)


def add_rms_norm(residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``rms_norm(residual + delta)``, and the sum, rounded to its type, replaces ``residual`` in place.

    ``residual`` and ``delta`` ``[T, D]``, contiguous; ``delta`` None = nothing to add, fp32 ``[splits, T, D]`` = the
    partial sums of ``kernels/narrow_linear.py``, added in their order. Keep ``weight`` ``[D]`` in fp32: a zero-centred
    weight that was folded into bf16 has lost its last bits.
    """
    if residual.is_cuda:
        return add_rms_norm_triton(residual, delta, weight, eps)
    if delta is not None and delta.dim() == 3:
        residual.copy_(residual + delta.sum(dim=0))
    elif delta is not None:
        residual.add_(delta)
    return rms_norm(residual.float(), weight.float(), eps).to(residual.dtype)


@jit
def _add_rms_norm_kernel(
    residual: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    eps: tl.tensor,
    D: tl.constexpr,
    W: tl.constexpr,
    PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    release(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, W)
    inside = lane < D
    scale = tl.load(weight + lane, mask=inside, other=0).to(tl.float32)
    wait(OVERLAP)
    value = tl.load(residual + token * D + lane, mask=inside, other=0).to(tl.float32)
    if PARTS > 0:
        added = tl.zeros([W], tl.float32)
        for part in tl.static_range(PARTS):
            added += tl.load(delta + (part * tokens + token) * D + lane, mask=inside, other=0).to(tl.float32)
        rounded = (value + added).to(residual.dtype.element_ty)
        tl.store(residual + token * D + lane, rounded, mask=inside)
        value = rounded.to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / D + eps)
    tl.store(out + token * D + lane, (value * scale).to(out.dtype.element_ty), mask=inside)


def norm_warps(dim: int) -> int:
    """No more threads than elements: else several warps would load what one of them has replaced."""
    return 8 if dim >= 512 else 4 if dim >= 128 else 1


def add_rms_norm_triton(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """:func:`add_rms_norm` in one kernel."""
    tokens, dim = residual.shape
    out = torch.empty_like(residual)
    overlaps = overlap()
    _add_rms_norm_kernel[(tokens,)](
        residual,
        residual if delta is None else delta,
        weight,
        out,
        tokens,
        eps,
        D=dim,
        W=power_of_two(dim),
        PARTS=0 if delta is None else len(delta) if delta.dim() == 3 else 1,
        OVERLAP=overlaps,
        num_warps=norm_warps(dim),
        launch_pdl=overlaps,
    )
    return out


@jit
def _gated_rms_norm_kernel(
    x: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
) -> None:
    token = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    lane = tl.arange(0, W)
    inside = lane < D
    place = (token * HEADS + head) * D + lane
    value = tl.load(x + place, mask=inside, other=0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / D + eps) * tl.load(weight + lane, mask=inside, other=0).to(tl.float32)
    opened = tl.load(gate + token * token_stride + head * head_stride + lane, mask=inside, other=0).to(tl.float32)
    value *= opened * tl.sigmoid(opened)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


def gated_rms_norm_triton(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """:func:`gated_rms_norm` of ``[T, heads, D]`` in one kernel; ``gate``'s tokens and heads may be strided."""
    tokens, heads, dim = x.shape
    out = torch.empty((tokens, heads, dim), dtype=gate.dtype, device=x.device)
    _gated_rms_norm_kernel[(tokens * heads,)](
        x,
        gate,
        weight,
        out,
        gate.stride(0),
        gate.stride(1),
        eps,
        HEADS=heads,
        D=dim,
        W=power_of_two(dim),
        num_warps=1,
    )
    return out
