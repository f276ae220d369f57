"""Matrix products with a fixed weight, in the layout and by the kernel that the device multiplies fastest."""

from __future__ import annotations

import torch
from denizen.kernels.gate import silu_mul
from denizen.kernels.narrow_linear import Tiling, Use, choose_tiling, narrow_linear, narrow_silu_mul
from denizen.kernels.overlap import overlap
from torch.nn.functional import gelu, linear

#: Tokens from which the general product applies GELU itself; below, the product is bound by its weight.
_GELU_TOKENS = 1024


class Linear:
    """``x @ weight.T + bias`` with ``weight`` ``[out, in]``.

    On a CPU the weight is packed for oneDNN once. Decode multiplies few rows by large matrices, where the packed
    product runs at memory speed for 1 row as for 8; torch's own packs the weight again in each call (measured in
    ``docs/design/models.md``). Same fp32 arithmetic, another order of summation.

    On a Hopper GPU few tokens take the kernels of ``kernels/narrow_linear.py``, and the general product the rest.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._packed = weight.device.type == "cpu" and torch._C._has_mkldnn
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._narrow = weight.dtype is torch.bfloat16 and weight.is_cuda and overlap()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, in]`` → ``[N, out]``."""
        if self._packed:
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return out
        return self._product(x, Use.PLAIN)

    def summands(self, x: torch.Tensor) -> torch.Tensor:
        """For ``add_rms_norm`` to add to the residual: ``[N, out]``, or fp32 partial sums ``[splits, N, out]``."""
        return self(x) if self._packed else self._product(x, Use.PARTIAL)

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` of the product ``[gate | up]``: ``[N, out / 2]``."""
        tiling = self._tiling(x, Use.GATED)
        if tiling is not None and self._bias is None:
            return narrow_silu_mul(x, self._weight, tiling)
        return silu_mul(self(x))

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """GELU of the product: ``[N, out]``.

        Exact, but for many tokens on a GPU: cuBLAS fuses the tanh form, which is 5e-4 away at most, below what bf16
        rounds in the sums that it enters.
        """
        if self._packed:
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], "none")
            return out
        if x.is_cuda and len(x) >= _GELU_TOKENS and self._bias is not None:
            return torch._addmm_activation(self._bias, x, self._weight.T, use_gelu=True)
        return gelu(self._product(x, Use.PLAIN))

    def _product(self, x: torch.Tensor, use: Use) -> torch.Tensor:
        tiling = self._tiling(x, use)
        if tiling is not None:
            return narrow_linear(x, self._weight, tiling, self._bias)
        return linear(x, self._weight, self._bias)

    def _tiling(self, x: torch.Tensor, use: Use) -> Tiling | None:
        return choose_tiling(use, len(x), self.out_features, self.in_features) if self._narrow else None
