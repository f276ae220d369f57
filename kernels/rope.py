"""Rotary position embedding, NeoX layout: the first half of the rotated dimensions pairs with the second half."""

from __future__ import annotations

import torch


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
