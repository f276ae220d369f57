"""Paged attention: one backend object a KV pool, one :class:`AttentionStep` a pool and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class AttentionStep(Protocol):
    """Attention of one KV pool for the rows of one step.

    Queries are causal where the walk writes their own positions to the pool, and see the whole row where it does not
    (cross attention, or a pool that is only read).

    Page arrays are FlashInfer's: ``indptr`` int32 ``[B + 1]``, ``indices`` int32 (pages of row i are
    ``indices[indptr[i]:indptr[i + 1]]``), ``last_page_len`` int32 ``[B]`` in ``1..page_size``. They come from
    ``kernels/page_gather.py`` and from the step's lengths (new tokens included), never from the raw tables.
    """

    @property
    def write_at(self) -> torch.Tensor:
        """Place of each of the step's new tokens in the flattened pool, ``page * page_size + offset``: ``[T]``.

        Of a pool with span ``CONTEXT``: of each position of every row's context, ``[B * context]``; what a row that
        does not begin would write goes to the sink page. Meaningless where the pool is only read.
        """
        ...

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each ``[pages, page_size, kv_heads, head_dim]``, contiguous."""
        ...

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attends over pages that hold the step's keys and values already (``kernels/attention_inputs.py``).

        ``query`` and the result are ``[T, heads, head_dim]``; the scale is ``head_dim ** -0.5``.
        """
        ...

    def run(
        self, layer: int, query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """Writes keys and values into the layer's pages, at ``write_at``, then attends.

        ``query`` is ``[T, heads, head_dim]``; ``key`` and ``value`` are ``[len(write_at), kv_heads, head_dim]``, or
        None where the walk reads the pool only (span 0). Returns ``[T, heads, head_dim]``.
        """
        ...
