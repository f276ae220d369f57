"""The convolutions before the encoder's layers: width 3, one frame of zeros at either end, GELU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.worker.models.linear import Linear
from torch.nn.functional import conv1d, gelu, pad

if TYPE_CHECKING:
    import torch


class Convolution:
    """GELU of a convolution over ``[B, T, in]``: ``[B, T / stride, out]``.

    On a GPU it is a product with rows of three frames: its GELU is fused, and nothing is transposed for what follows.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """``weight`` ``[out, in, 3]``, ``bias`` ``[out]``."""
        self._bias = bias
        self._weight = weight
        self._product = Linear(flat_kernel(weight), bias) if weight.is_cuda else None

    def __call__(self, x: torch.Tensor, stride: int) -> torch.Tensor:
        if self._product is None:
            return gelu(conv1d(x.transpose(1, 2), self._weight, self._bias, stride, padding=1)).transpose(1, 2)
        return self._product.gelu(rows_of_three(x, stride)).view(len(x), x.shape[1] // stride, -1)


def flat_kernel(weight: torch.Tensor) -> torch.Tensor:
    """``[out, in, 3]`` as the matrix ``[out, 3 * in]`` that :func:`rows_of_three` is multiplied by."""
    return weight.transpose(1, 2).reshape(len(weight), -1)


def rows_of_three(x: torch.Tensor, stride: int) -> torch.Tensor:
    """Each frame that the convolution stands on, between its neighbours: ``[B * T / stride, 3 * in]``."""
    batch, frames, width = x.shape
    padded = pad(x, (0, 0, 1, 1))
    rows = padded.as_strided((batch, frames // stride, 3 * width), ((frames + 2) * width, stride * width, 1))
    return rows.reshape(-1, 3 * width)
