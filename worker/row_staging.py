"""What rows bring into a captured prefill step beside their tokens: pinned memory with a twin on the device.

A graph slot has one for all of its buckets. A graph copies as many rows as its bucket has, with one node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from denizen.worker.models.base import RowInput


class RowStaging:
    """One input of at most ``rows`` rows, ``[rows, *shape]``."""

    def __init__(self, spec: RowInput, rows: int, device: torch.device) -> None:
        shape = (rows, *spec.shape)
        self._pinned = torch.zeros(shape, dtype=spec.dtype, pin_memory=device.type == "cuda")
        self._host = self._pinned.numpy()
        self._twin = torch.zeros(shape, dtype=spec.dtype, device=device)
        self._used = [0] * rows  #: of the first dimension, how much of each row may not be zero

    def fill(self, values: Sequence[np.ndarray]) -> None:
        """The rows of the next step, from the first on; rows beyond keep what they have. The last copy is over (E2)."""
        for row, array in enumerate(values):
            used = len(array)
            self._host[row, :used] = array
            self._host[row, used : self._used[row]] = 0
            self._used[row] = used

    def copy(self, rows: int) -> torch.Tensor:
        """Queues the copy of the first ``rows`` rows; they on the device."""
        twin = self._twin[:rows]
        twin.copy_(self._pinned[:rows], non_blocking=True)
        return twin


def row_tensor(spec: RowInput, values: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
    """The same for a step that is not captured: ``[len(values), *shape]``."""
    rows = torch.zeros((len(values), *spec.shape), dtype=spec.dtype)
    host = rows.numpy()
    for row, array in enumerate(values):
        host[row, : len(array)] = array
    return rows.to(device)
