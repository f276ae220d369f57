"""Page arrays that the host makes: for pools that a step only reads, and for every pool without residency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.pools.kv import SINK_PAGE

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, eq=False)
class PageLists:
    """The arrays of one pool and step, padding rows included: see ``kernels/page_gather.py``.

    Those of a pool that is only read stay the same object for as long as the same rows decode together, since what it
    holds does not grow: who has them already needs nothing new.
    """

    indptr: np.ndarray  #: int32 [bucket + 1]
    indices: np.ndarray  #: int32
    last_page_len: np.ndarray  #: int32 [bucket]

    @classmethod
    def of(cls, owned: Sequence[list[int]], lengths: np.ndarray, page_size: int) -> PageLists:
        """``owned``: pages of each live row; ``lengths`` int32 ``[bucket]``, 1 for rows that pad."""
        counts = -(-lengths // page_size)
        indices: list[int] = []
        for pages, count in zip(owned, counts.tolist(), strict=False):
            indices += pages[:count] or [SINK_PAGE]
        indices += [SINK_PAGE] * (len(lengths) - len(owned))
        return cls(prefix_sum(counts), np.asarray(indices, np.int32), (lengths - 1) % page_size + 1)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same memory, for a step on the CPU."""
        return torch.from_numpy(self.indptr), torch.from_numpy(self.indices), torch.from_numpy(self.last_page_len)


def prefix_sum(counts: np.ndarray) -> np.ndarray:
    """int32 ``[n + 1]``, from 0 on."""
    total = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=total[1:])
    return total
