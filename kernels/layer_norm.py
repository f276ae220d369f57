"""Layer norm, computed in fp32, with the residual that comes before it."""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from denizen.kernels.norm import norm_warps
from denizen.kernels.overlap import overlap, release, wait
from torch.nn.functional import layer_norm


def add_layer_norm(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """``layer_norm(residual + delta)``, and the sum, rounded to its type, replaces ``residual`` in place.

    ``residual`` and ``delta`` ``[T, D]``, contiguous; ``delta`` None = nothing to add, fp32 ``[splits, T, D]`` = the
    partial sums of ``kernels/narrow_linear.py``, added in their order. ``weight`` and ``bias`` fp32 ``[D]``.
    """
    if residual.is_cuda:
        return add_layer_norm_triton(residual, delta, weight, bias, eps)
    if delta is not None and delta.dim() == 3:
        residual.copy_(residual + delta.sum(dim=0))
    elif delta is not None:
        residual.add_(delta)
    return layer_norm(residual.float(), weight.shape, weight, bias, eps).to(residual.dtype)


@jit
def _add_layer_norm_kernel(
    residual: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
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
    shift = tl.load(bias + lane, mask=inside, other=0).to(tl.float32)
    wait(OVERLAP)
    value = tl.load(residual + token * D + lane, mask=inside, other=0).to(tl.float32)
    if PARTS > 0:
        added = tl.zeros([W], tl.float32)
        for part in tl.static_range(PARTS):
            added += tl.load(delta + (part * tokens + token) * D + lane, mask=inside, other=0).to(tl.float32)
        rounded = (value + added).to(residual.dtype.element_ty)
        tl.store(residual + token * D + lane, rounded, mask=inside)
        value = rounded.to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value, 0) / D, 0)
    value = centred * tl.rsqrt(tl.sum(centred * centred, 0) / D + eps) * scale + shift
    tl.store(out + token * D + lane, value.to(out.dtype.element_ty), mask=inside)


def add_layer_norm_triton(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """:func:`add_layer_norm` in one kernel."""
    tokens, dim = residual.shape
    out = torch.empty_like(residual)
    overlaps = overlap()
    _add_layer_norm_kernel[(tokens,)](
        residual,
        residual if delta is None else delta,
        weight,
        bias,
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
