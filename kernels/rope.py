"""Rotary position embedding, NeoX layout: the first half of the rotated dimensions pairs with the second half."""

from __future__ import annotations

import torch


def rope_angles(
    positions: torch.Tensor, inv_freq: torch.Tensor, attention_factor: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine for one step, shared by its layers.

    ``positions`` int64 ``[T]``, ``inv_freq`` fp32 ``[R / 2]``. Both results are ``[T, 1, R / 2]`` in ``dtype``, times
    ``attention_factor`` (1 unless a scaling type says otherwise).
    """
    angles = (positions.to(torch.float32)[:, None] * inv_freq)[:, None, :]
    return (angles.cos() * attention_factor).to(dtype), (angles.sin() * attention_factor).to(dtype)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the first ``R`` dimensions of every head and passes the others through.

    ``x`` ``[T, heads, head_dim]``; ``cos`` and ``sin`` ``[T, 1, R / 2]``. Returns a new tensor of ``x``'s shape.
    """
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    out = torch.empty_like(x)
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half : 2 * half]).addcmul_(first, sin)
    if x.shape[-1] > 2 * half:
        out[..., 2 * half :] = x[..., 2 * half :]
    return out
