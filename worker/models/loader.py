"""Reads a model's weights: takes tensors by name, fuses, converts and places them, and reports progress."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from denizen.worker.models.checkpoint import Checkpoint, Progress

_log = logging.getLogger(__name__)


class WeightLoader:
    """Hands out a checkpoint's tensors on the model's device and in its type, and counts what was taken.

    ``ignore``: prefixes of names that the model has no use for.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress | None,
        ignore: Sequence[str] = (),
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self.dtype = dtype
        self._progress = progress
        self._ignore = tuple(ignore)
        self._left = {name for name in checkpoint.entries if not name.startswith(self._ignore)}
        self._total = sum(checkpoint.entries[name].bytes for name in self._left)
        self._done = 0

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor, checked against ``shape``, in ``dtype`` (default: the model's)."""
        stored = self._checkpoint.tensor(name, shape)
        # A copy even where type and device agree: the file's pages are not the model's memory to keep.
        tensor = torch.empty(shape, device=self._device, dtype=dtype or self.dtype).copy_(stored)
        self._count(name)
        return tensor

    def fused(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Several tensors stacked along their first dimension."""
        rows = sum(shape[0] for shape in shapes)
        out = torch.empty((rows, *shapes[0][1:]), device=self._device, dtype=self.dtype)
        first = 0
        for name, shape in zip(names, shapes, strict=True):
            out[first : first + shape[0]].copy_(self._checkpoint.tensor(name, shape))
            first += shape[0]
            self._count(name)
        return out

    def skip(self, names: Iterable[str]) -> None:
        """Counts tensors that the model knows and does not need (a tied head stored twice)."""
        for name in names:
            self._count(name)

    def finish(self) -> None:
        """Call after the last tensor. Weights that nobody took are logged: they are not part of this model."""
        if self._left:
            sample = ", ".join(sorted(self._left)[:3])
            _log.warning(
                "%s: %d tensors are not part of the model and were not read (%s%s)",
                self._checkpoint.path,
                len(self._left),
                sample,
                ", …" if len(self._left) > 3 else "",
            )
        if self._progress is not None:
            self._progress(self._total, self._total)
        self._checkpoint.close()

    def _count(self, name: str) -> None:
        if name in self._left:
            self._left.remove(name)
            self._done += self._checkpoint.entries[name].bytes
            if self._progress is not None:
                self._progress(self._done, self._total)
