"""Short depthwise causal convolution with a carried state, followed by SiLU.

The state of a sequence is its last ``K - 1`` inputs, ``[K - 1, channels]``, oldest first; zeros before the first token.
"""

from __future__ import annotations

import torch
from torch.nn.functional import silu


def causal_conv_prefill(
    x: torch.Tensor,
    weight: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor | None,
) -> torch.Tensor:
    """Ragged rows packed one after the other; the rows' states are read and then replaced in place.

    - ``x`` ``[T, channels]``; row i owns ``cu_seqlens[i]:cu_seqlens[i + 1]`` (int32 ``[B + 1]``, no empty row).
    - ``weight`` ``[channels, K]``: ``out[t] = sum_k weight[:, k] * x[t - (K - 1) + k]``.
    - ``state`` ``[slots, K - 1, channels]``, ``slots`` int32 ``[B]``.
    - ``fresh`` bool ``[B]``: rows that start from zeros, whatever their slot holds.

    Returns ``silu(out)``, ``[T, channels]``.
    """
    carried = weight.shape[1] - 1
    cu_seqlens = cu_seqlens.long()
    slots = slots.long()
    before = state[slots].to(x.dtype)
    if fresh is not None:
        before.masked_fill_(fresh[:, None, None], 0)

    # Every row in its own stretch, its carried inputs in front: outputs of one row never read another's inputs.
    counts = cu_seqlens[1:] - cu_seqlens[:-1]
    rows = torch.repeat_interleave(torch.arange(len(slots), device=x.device), counts)
    token_at = torch.arange(len(x), device=x.device) + rows * carried  # an output's window starts here
    row_end = cu_seqlens[1:] + torch.arange(1, len(slots) + 1, device=x.device) * carried
    tail = torch.arange(carried, device=x.device)
    row_start = cu_seqlens[:-1] + torch.arange(len(slots), device=x.device) * carried
    packed = x.new_empty((len(x) + len(slots) * carried, x.shape[1]))
    packed[(row_start[:, None] + tail).reshape(-1)] = before.reshape(-1, x.shape[1])
    packed[token_at + carried] = x

    windows = len(packed) - carried
    out = packed[:windows] * weight[:, 0]
    for k in range(1, carried + 1):
        out.addcmul_(packed[k : k + windows], weight[:, k])
    state[slots] = packed[row_end[:, None] - carried + tail].to(state.dtype)
    return silu(out[token_at])


def causal_conv_step(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token a row: ``x`` and the result ``[B, channels]``, the rest as in :func:`causal_conv_prefill`."""
    slots = slots.long()
    before = state[slots].to(x.dtype)
    if fresh is not None:
        before.masked_fill_(fresh[:, None, None], 0)
    window = torch.cat((before, x[:, None, :]), dim=1)
    state[slots] = window[:, 1:].to(state.dtype)
    return silu((window * weight.t()).sum(dim=1))
