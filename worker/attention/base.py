"""Paged attention: one backend object a KV pool, one :class:`AttentionStep` a pool and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class AttentionStep(Protocol):
    """Attention of one KV pool for the rows of one step.

    Page arrays are FlashInfer's: ``indptr`` int32 ``[B + 1]``, ``indices`` int32 (pages of row i are
    ``indices[indptr[i]:indptr[i + 1]]``), ``last_page_len`` int32 ``[B]`` in ``1..page_size``. They come from
    ``kernels/page_gather.py`` and from the step's lengths (new tokens included), never from the raw tables.
    """

    def run(
        self, layer: int, query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """Writes the step's keys and values into the layer's pages, then attends causally over the row's context.

        ``query`` is ``[T, heads, head_dim]``; ``key`` and ``value`` are ``[T, kv_heads, head_dim]``, or None where the
        walk reads the pool only (span 0). Returns ``[T, heads, head_dim]``.
        """
        ...
