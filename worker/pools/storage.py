"""The memory behind a pool: tensors that the attention backends and the models read and write.

Who owns which page or slot is accounting, kept elsewhere in this package; this file only allocates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from denizen.worker.memory import zeros

if TYPE_CHECKING:
    import torch
    from denizen.worker.models.base import KvPoolSpec, StatePoolSpec


def allocate_kv(
    spec: KvPoolSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a paged pool, each ``[layers, pages, page_size, kv_heads, head_dim]``, zeroed.

    Zeroed, not empty: memory that nobody has written yet must not hold NaN, which survives a softmax weight of 0.
    """
    shape = (spec.layers, pages, page_size, spec.kv_heads, spec.head_dim)
    return zeros(shape, device, dtype), zeros(shape, device, dtype)


def kv_bytes_per_page(spec: KvPoolSpec, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers, keys and values."""
    return 2 * spec.layers * page_size * spec.kv_heads * spec.head_dim * dtype.itemsize


def allocate_state(
    spec: StatePoolSpec, slots: int, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Tensors of a recurrent-state pool by name, each ``[layers, slots, *shape]``, zeroed.

    ``dtype`` is the model's; a tensor whose spec names its own keeps that.
    """
    return {
        tensor.name: zeros((tensor.layers, slots, *tensor.shape), device, tensor.dtype or dtype)
        for tensor in spec.tensors
    }


def with_state_dtype(spec: StatePoolSpec, dtype: torch.dtype) -> StatePoolSpec:
    """The pool with ``dtype`` for the tensors that name a floating-point type of their own."""
    tensors = (
        replace(tensor, dtype=dtype) if tensor.dtype is not None and tensor.dtype.is_floating_point else tensor
        for tensor in spec.tensors
    )
    return replace(spec, tensors=tuple(tensors))


def state_bytes_per_slot(spec: StatePoolSpec, dtype: torch.dtype) -> int:
    """Bytes of one slot over all tensors and layers."""
    total = 0
    for tensor in spec.tensors:
        elements = tensor.layers
        for size in tensor.shape:
            elements *= size
        total += elements * int((tensor.dtype or dtype).itemsize)
    return total
