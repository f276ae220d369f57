"""Attention backends, one object a KV pool. This is where a device's backend is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from denizen.worker.attention.flashinfer import FlashInferAttention
    from denizen.worker.attention.torch_ref import PagedAttention
    from denizen.worker.models.base import KvPoolSpec


def flashinfer_attention(
    spec: KvPoolSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
) -> FlashInferAttention:
    """:func:`paged_attention` for a CUDA device."""
    from denizen.worker.attention.flashinfer import FlashInferAttention

    return FlashInferAttention(spec, spec.heads or spec.kv_heads, pages, page_size, device, dtype)


def paged_attention(
    spec: KvPoolSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
) -> PagedAttention:
    """Allocates the pool's memory on ``device`` and returns the backend that attends over it."""
    from denizen.worker.attention.torch_ref import PagedAttention

    return PagedAttention(spec, pages, page_size, device, dtype)
