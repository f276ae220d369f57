"""Matrix products with a fixed weight, in the layout that the device multiplies fastest."""

from __future__ import annotations

import torch
from torch.nn.functional import linear


class Linear:
    """``x @ weight.T + bias`` with ``weight`` ``[out, in]``.

    On a CPU the weight is packed for oneDNN once. Decode multiplies few rows by large matrices, where the packed
    product runs at memory speed for 1 row as for 8; torch's own packs the weight again in each call (measured in
    ``docs/design/models.md``). Same fp32 arithmetic, another order of summation.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._packed = weight.device.type == "cpu" and torch._C._has_mkldnn
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, in]`` → ``[N, out]``."""
        if self._packed:
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return out
        return linear(x, self._weight, self._bias)
