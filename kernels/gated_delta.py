"""The gated delta rule (Gated Delta Networks, arXiv:2412.06464): a linear-attention state with decay and correction.

A head's state ``S`` ``[key_dim, value_dim]`` goes through each token in this order: decay, delta update, read.

    S = exp(g) * S
    S = S + k (beta * (v - S^T k))^T
    out = S^T q

Everything is fp32. ``q`` and ``k`` are L2-normalised here and ``q`` is scaled by ``1 / sqrt(key_dim)``.
"""

from __future__ import annotations

import torch
from denizen.kernels.gated_delta_chunk import gated_delta_prefill_triton

#: Tokens whose mutual corrections are solved at once in prefill.
_CHUNK = 64


def _normalise(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


def _prepare(query: torch.Tensor, key: torch.Tensor, value_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised, scaled, fp32, and repeated so that each value head has its own."""
    group = value_heads // query.shape[-2]
    query = _normalise(query.float()) * query.shape[-1] ** -0.5
    key = _normalise(key.float())
    if group > 1:
        query = query.repeat_interleave(group, dim=-2)
        key = key.repeat_interleave(group, dim=-2)
    return query, key


def gated_delta_step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token a row; the rows' states are updated in place.

    - ``query``, ``key`` ``[B, key_heads, key_dim]``; ``value`` ``[B, value_heads, value_dim]``, ``value_heads`` a
      multiple of ``key_heads``: value head h reads key head ``h // (value_heads / key_heads)``.
    - ``g`` (log of the decay, at most 0) and ``beta`` fp32 ``[B, value_heads]``.
    - ``state`` fp32 ``[slots, value_heads, key_dim, value_dim]``; ``slots`` int32 ``[B]``.
    - ``fresh`` bool ``[B]``: rows that start from zeros, whatever their slot holds.

    Returns fp32 ``[B, value_heads, value_dim]``.
    """
    query, key = _prepare(query, key, value.shape[1])
    slots = slots.long()
    current = state[slots].float()
    if fresh is not None:
        current.masked_fill_(fresh[:, None, None, None], 0)
    current *= g.exp()[:, :, None, None]
    delta = (value.float() - _read(current, key)) * beta[:, :, None]
    current.addcmul_(key[..., None], delta[..., None, :])
    state[slots] = current.to(state.dtype)
    return _read(current, query)


def _read(state: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """``S^T v`` a head: ``[B, H, K, V]``, ``[B, H, K]`` → ``[B, H, V]``."""
    return torch.matmul(vector[..., None, :], state).squeeze(-2)


def gated_delta_prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    state: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor | None,
) -> torch.Tensor:
    """Ragged rows packed one after the other, ``T`` tokens in all; the rows' states are read and updated in place.

    Arguments as in :func:`gated_delta_step` with ``T`` for ``B``; ``cu_seqlens`` int32 ``[B + 1]``, no empty row.
    Returns fp32 ``[T, value_heads, value_dim]``.

    Chunked form: within a chunk the corrections solve one unit-triangular system (the UT transform), so that only the
    state's way from chunk to chunk is sequential. All rows' chunks are solved together, and the n-th chunks of all rows
    advance together.
    """
    if query.is_cuda:
        started = torch.zeros_like(slots, dtype=torch.bool) if fresh is None else fresh
        return gated_delta_prefill_triton(query, key, value, g, beta, cu_seqlens, state, slots, started)
    heads, value_dim = value.shape[1:]
    query, key = _prepare(query, key, heads)
    rows, chunk = len(slots), min(_CHUNK, max_seqlen)
    cu_seqlens = cu_seqlens.long()
    slots = slots.long()
    device = value.device

    # Rows padded to whole chunks. Padding has beta 0 and g 0: it neither decays nor changes a state.
    counts = cu_seqlens[1:] - cu_seqlens[:-1]
    chunks = torch.div(counts + (chunk - 1), chunk, rounding_mode="floor")
    first_chunk = torch.cumsum(chunks, 0) - chunks
    row_of = torch.repeat_interleave(torch.arange(rows, device=device), counts)
    at = torch.arange(len(value), device=device) - cu_seqlens[row_of] + first_chunk[row_of] * chunk
    total = int(chunks.sum())

    def spread(x: torch.Tensor) -> torch.Tensor:
        """``[T, H, …]`` → ``[chunks, H, chunk, …]``, zeros where padded."""
        out = x.new_zeros((total * chunk, *x.shape[1:]))
        out[at] = x
        return out.view(total, chunk, *x.shape[1:]).transpose(1, 2)

    query, key, value = spread(query), spread(key), spread(value.float())
    beta = spread(beta.float())[..., None]
    decay = spread(g.float()).cumsum(dim=-1)  # log of the decay since the chunk's start, its own included

    # between[i, j] = decay from j to i; the mask comes before exp, whose argument would be positive above the diagonal.
    above = torch.ones((chunk, chunk), dtype=torch.bool, device=device).triu_(1)
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill_(above, float("-inf")).exp_()
    weighted = key * beta
    system = torch.matmul(weighted, key.transpose(-1, -2)).mul_(between)  # its diagonal is taken as 1
    since_start = decay.exp()[..., None]
    right = torch.cat((value * beta, weighted * since_start), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    corrected, read_keys = solved.split((value_dim, key.shape[-1]), dim=-1)
    within = torch.matmul(query, key.transpose(-1, -2)).mul_(between)
    query = query * since_start
    until_end = key * (decay[..., -1:] - decay).exp()[..., None]
    whole = decay[..., -1].exp()[..., None, None]

    current = state[slots].float()
    if fresh is not None:
        current.masked_fill_(fresh[:, None, None, None], 0)
    out = value.new_empty((total, heads, chunk, value_dim))
    per_row: list[int] = chunks.tolist()
    for step in range(max(per_row)):
        alive = [row for row in range(rows) if per_row[row] > step]
        part = torch.tensor(alive, device=device)
        nth = first_chunk[part] + step
        held = current[part]
        fixed = corrected[nth] - torch.matmul(read_keys[nth], held)
        out[nth] = torch.matmul(query[nth], held) + torch.matmul(within[nth], fixed)
        current[part] = held * whole[nth] + torch.matmul(until_end[nth].transpose(-1, -2), fixed)
    state[slots] = current.to(state.dtype)
    return out.transpose(1, 2).reshape(total * chunk, heads, value_dim)[at]
