"""Attention backends, one object a KV pool. This is where a device's backend is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from denizen.worker.attention.torch_ref import PagedAttention
    from denizen.worker.models.base import KvPoolSpec


def paged_attention(
    spec: KvPoolSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
) -> PagedAttention:
    """Allocates the pool's memory on ``device`` and returns the backend that attends over it."""
    from denizen.worker.attention.torch_ref import PagedAttention

    return PagedAttention(spec, pages, page_size, device, dtype)
