"""From a fused query-key-value projection to what paged attention reads: q/k norm, rotary embedding, KV write.

One kernel a layer on the GPU. The gate of a gated attention output stays where the projection put it.
"""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from denizen.kernels.norm import rms_norm
from denizen.kernels.overlap import overlap, release, wait
from denizen.kernels.rope import apply_rope


def rope_table(inv_freq: torch.Tensor, attention_factor: float, positions: int) -> torch.Tensor:
    """Cosines and sines of every position, fp32 ``[positions, 2, R / 2]``; ``inv_freq`` fp32 ``[R / 2]``.

    A table costs less than angles at each layer: those need exact arguments up to the context length, which the
    hardware's fast sine does not take. 8.4 MB for 32,768 positions of 64 rotated dimensions.
    """
    angles = torch.arange(positions, device=inv_freq.device, dtype=torch.float32)[:, None] * inv_freq
    return torch.stack((angles.cos(), angles.sin()), dim=1).mul_(attention_factor)


def attention_inputs(
    projected: torch.Tensor,
    heads: int,
    kv_heads: int,
    gated: bool,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float,
    table: torch.Tensor,
    positions: torch.Tensor,
    write_at: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Returns queries ``[T, heads, D]``, normed and rotated; writes the keys, likewise, and the values to their pages.

    - ``projected`` ``[T, width]``, rows contiguous: queries, keys, values. With ``gated`` each query head is
      ``[query | gate]``.
    - ``query_weight``, ``key_weight`` ``[D]``: RMS norm a head, or both None; keep them in fp32 if they were folded.
    - ``table`` of :func:`rope_table`; ``positions`` int64 ``[T]``, below the table's.
    - ``write_at`` int32 ``[T]``: place of each token in the flattened pool, ``page * page_size + offset``.
    - ``keys``, ``values`` ``[pages, page_size, kv_heads, D]``: one layer of the pool, contiguous.
    """
    if projected.is_cuda:
        return attention_inputs_triton(
            projected, heads, kv_heads, gated, query_weight, key_weight, eps, table, positions, write_at, keys, values
        )
    tokens, dim = projected.shape[0], keys.shape[-1]
    query_width = heads * dim * (2 if gated else 1)
    query, key, value = torch.split(projected, [query_width, kv_heads * dim, kv_heads * dim], dim=-1)
    query = query.view(tokens, heads, -1)[..., :dim].float()
    key = key.reshape(tokens, kv_heads, dim).float()
    if query_weight is not None and key_weight is not None:
        query = rms_norm(query, query_weight.float(), eps)
        key = rms_norm(key, key_weight.float(), eps)
    cos, sin = table[positions].unbind(dim=1)
    query, key = (apply_rope(x, cos[:, None], sin[:, None]) for x in (query, key))
    where = write_at.long()
    keys.view(-1, kv_heads, dim)[where] = key.to(keys.dtype)
    values.view(-1, kv_heads, dim)[where] = value.reshape(tokens, kv_heads, dim).to(values.dtype)
    return query.to(projected.dtype)


@jit
def _attention_inputs_kernel(
    projected: tl.tensor,
    query_weight: tl.tensor,
    key_weight: tl.tensor,
    table: tl.tensor,
    positions: tl.tensor,
    write_at: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    query: tl.tensor,
    stride: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    QUERY_STEP: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    # Attention, which may come next, reads its plan before it waits: released here, all before this has ended.
    wait(OVERLAP)
    release(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, W)
    inside = lane < D
    is_query = head < HEADS
    first = tl.where(is_query, head * QUERY_STEP, HEADS * QUERY_STEP + (head - HEADS) * D)
    source = projected + token * stride + first
    # Lane i rotates with its partner half the rotated width away.
    partner = tl.where(lane < HALF, lane + HALF, tl.where(lane < 2 * HALF, lane - HALF, lane))
    own = tl.load(source + lane, mask=inside, other=0).to(tl.float32)
    other = tl.load(source + partner, mask=inside, other=0).to(tl.float32)
    if NORM:
        weight = query_weight if is_query else key_weight
        scale = tl.rsqrt(tl.sum(own * own, 0) / D + eps)
        own *= scale * tl.load(weight + lane, mask=inside, other=0).to(tl.float32)
        other *= scale * tl.load(weight + partner, mask=inside, other=0).to(tl.float32)
    rotated = lane < 2 * HALF
    angle = table + tl.load(positions + token) * (2 * HALF) + lane % HALF
    cos = tl.load(angle, mask=rotated, other=1)
    sin = tl.load(angle + HALF, mask=rotated, other=0)
    result = own * cos + tl.where(lane < HALF, -other, other) * sin
    if is_query:
        tl.store(query + (token * HEADS + head) * D + lane, result.to(query.dtype.element_ty), mask=inside)
    else:
        kv_head = head - HEADS
        place = (tl.load(write_at + token).to(tl.int64) * KV_HEADS + kv_head) * D + lane
        value = tl.load(source + KV_HEADS * D + lane, mask=inside, other=0)
        tl.store(keys + place, result.to(keys.dtype.element_ty), mask=inside)
        tl.store(values + place, value.to(values.dtype.element_ty), mask=inside)


def attention_inputs_triton(
    projected: torch.Tensor,
    heads: int,
    kv_heads: int,
    gated: bool,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float,
    table: torch.Tensor,
    positions: torch.Tensor,
    write_at: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """:func:`attention_inputs` in one kernel, a program a token and head."""
    tokens, dim = projected.shape[0], keys.shape[-1]
    query = torch.empty((tokens, heads, dim), dtype=projected.dtype, device=projected.device)
    overlaps = overlap()
    _attention_inputs_kernel[(tokens, heads + kv_heads)](
        projected,
        table if query_weight is None else query_weight,
        table if key_weight is None else key_weight,
        table,
        positions,
        write_at,
        keys,
        values,
        query,
        projected.stride(0),
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        QUERY_STEP=dim * (2 if gated else 1),
        D=dim,
        W=power_of_two(dim),
        HALF=table.shape[2],
        NORM=query_weight is not None,
        OVERLAP=overlaps,
        num_warps=2 if dim >= 128 else 1,
        launch_pdl=overlaps,
    )
    return query
