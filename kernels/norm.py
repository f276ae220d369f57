"""RMS norms, computed in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import rms_norm as _rms_norm
from torch.nn.functional import silu

if TYPE_CHECKING:
    import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension: ``x`` ``[..., D]``, ``weight`` ``[D]``.

    A zero-centred checkpoint weight (``1 + w``) is folded when it is loaded, never here.
    """
    return _rms_norm(x, weight.shape, weight, eps)


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``rms_norm(x) * silu(gate)``, the norm first, in fp32: all ``[..., D]``, ``weight`` ``[D]``."""
    normed = rms_norm(x.float(), weight.float(), eps)
    return (normed * silu(gate.float())).to(gate.dtype)
