"""Scatter of packed row writes into the device tables."""

from __future__ import annotations

import torch


def apply_row_writes(words: torch.Tensor, runs: torch.Tensor, payload: torch.Tensor) -> None:
    """Writes every run of ``payload`` to its place in ``words``, in place.

    ``words`` int32 ``[W]``; ``runs`` int32 ``[n, 2]``: the run's first word in ``words``, and its length; ``payload``
    int32 ``[m]``: the runs' words one after the other. Runs do not overlap.
    """
    if not runs.shape[0]:
        return
    starts, lengths = runs[:, 0].long(), runs[:, 1].long()
    first = torch.cumsum(lengths, 0) - lengths
    offset = torch.repeat_interleave(starts - first, lengths, output_size=payload.shape[0])
    words.index_copy_(0, offset + torch.arange(payload.shape[0], device=words.device), payload)
