"""What the sampler keeps on the device for rows that ask for it: token counts for penalties, and logit biases.

Both are dense ``[rows, vocab]`` so that applying them needs no lists; memory of rows that never ask is not touched.
Under overlap the host's token list is one step late; these counts are not, because the step itself advances them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.kernels.adjust import IN_PROMPT
from denizen.worker.memory import upload, zeros

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class SamplerRow:
    """State of a row that begins: written before the step that admits it."""

    row: int
    prompt: np.ndarray | None = None  #: int32 ids; None = no penalties
    outputs: Sequence[int] = ()  #: ids generated before a preemption
    bias: tuple[tuple[int, float], ...] = ()


class SamplerState:
    """``counts`` int32 and ``bias`` fp32, each ``[rows, vocab]``. Only the device thread touches them."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.counts = zeros((rows, vocab), device, torch.int32)
        self.bias = zeros((rows, vocab), device, torch.float32)

    def begin(self, row: SamplerRow) -> None:
        """Queues what the row begins with; the host waits for nothing."""
        device = self.counts.device
        if row.prompt is not None:
            counts = self.counts[row.row]
            counts.zero_()
            counts.index_fill_(0, upload(np.unique(row.prompt).astype(np.int64), device), IN_PROMPT)
            if row.outputs:
                ids = upload(np.asarray(row.outputs, np.int64), device)
                counts.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
        if row.bias:
            bias = self.bias[row.row]
            bias.zero_()
            ids, values = (upload(np.asarray(column), device) for column in zip(*row.bias, strict=True))
            bias.index_copy_(0, ids, values.to(torch.float32))
