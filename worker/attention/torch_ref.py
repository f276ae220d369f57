"""Paged attention in plain torch: the backend of the CPU worker, and the reference for device backends.

A step's gather and scatter indices are computed once when it is bound, from the same page arrays that a device backend
reads, and are shared by all layers. Decode is vectorised over rows; prefill loops over the rows of the chunk, because
their lengths differ and each is a large matrix product anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.worker.pools.storage import allocate_kv
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from denizen.worker.models.base import KvPoolSpec

#: Rows of a decode step share one rectangular gather as long as it reads at most this many times what they hold.
_RECTANGLE_WASTE = 2.0


class PagedAttention:
    """The keys and values of one KV pool and the way to attend over them."""

    def __init__(self, spec: KvPoolSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        self.page_size = page_size
        #: each ``[layers, pages, page_size, kv_heads, head_dim]``
        self.keys, self.values = allocate_kv(spec, pages, page_size, device, dtype)
        # The same memory by position: [layers, pages * page_size, kv_heads * head_dim].
        width = spec.kv_heads * spec.head_dim
        self._flat_keys = self.keys.view(spec.layers, pages * page_size, width)
        self._flat_values = self.values.view(spec.layers, pages * page_size, width)

    def bind(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_seqlen: int,
        causal: bool = True,
    ) -> TorchAttentionStep:
        """The attention of one step; not ``causal``: every query sees all of its row's positions.

        ``indptr``, ``indices`` and ``last_page_len`` are the arrays of ``kernels/page_gather.py``; ``cu_seqlens``
        (int32 ``[B + 1]``) and ``max_seqlen`` are the step's queries, as in a batch. Where attention is causal, row i's
        new positions are the last ``cu_seqlens[i + 1] - cu_seqlens[i]`` of its length.
        """
        indptr = indptr.long()
        lengths = (indptr[1:] - indptr[:-1] - 1) * self.page_size + last_page_len
        pages = _PageArrays(indptr, indices, lengths, self.page_size)
        if max_seqlen == 1:
            return _DecodeStep(self, pages, causal)
        return _PrefillStep(self, pages, causal, cu_seqlens.long())

    def _write(self, layer: int, where: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        tokens = len(where)
        self._flat_keys[layer].index_copy_(0, where, key.reshape(tokens, -1))
        self._flat_values[layer].index_copy_(0, where, value.reshape(tokens, -1))

    def _gather(self, layer: int, where: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[N, kv_heads, head_dim]`` at ``where`` [N]."""
        shape = (-1, self.spec.kv_heads, self.spec.head_dim)
        keys = self._flat_keys[layer].index_select(0, where).view(shape)
        return keys, self._flat_values[layer].index_select(0, where).view(shape)


@dataclass
class _PageArrays:
    indptr: torch.Tensor  #: int64 [B + 1]
    indices: torch.Tensor  #: int32, pages
    lengths: torch.Tensor  #: int64 [B]
    page_size: int

    def locate(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Index in the flattened pool of ``positions`` of ``rows`` (int64, broadcast against each other)."""
        page = torch.div(positions, self.page_size, rounding_mode="floor")
        pages = self.indices[self.indptr[rows] + page]
        return pages.long() * self.page_size + torch.remainder(positions, self.page_size)


class TorchAttentionStep:
    """What both kinds of step share: see :class:`denizen.worker.attention.base.AttentionStep`."""

    def __init__(self, pool: PagedAttention, causal: bool, write_at: torch.Tensor) -> None:
        self._pool = pool
        self._causal = causal
        self.write_at = write_at  #: int64 [T], flattened position of each new token

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pool.keys[layer], self._pool.values[layer]

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        return self._attend(layer, query, query.shape[-1] ** -0.5)

    def run(
        self, layer: int, query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """Writes, then attends. Without ``key`` the pool is read only."""
        if key is not None and value is not None:
            self._pool._write(layer, self.write_at, key, value)
        return self._attend(layer, query, scale)

    def _attend(self, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        raise NotImplementedError


@dataclass
class _Rectangle:
    """Rows of near lengths, whose contexts are gathered into one padded rectangle."""

    rows: torch.Tensor | None  #: int64 [R], rows of the step; None = all, in order
    where: torch.Tensor  #: int64 [R * longest]
    mask: torch.Tensor | None  #: additive [R, 1, 1, longest]; None = nothing to hide


class _DecodeStep(TorchAttentionStep):
    """One query a row, the last of its context: causal or not, it sees all of it."""

    def __init__(self, pool: PagedAttention, pages: _PageArrays, causal: bool) -> None:
        rows = torch.arange(len(pages.lengths), device=pages.lengths.device)
        super().__init__(pool, causal, pages.locate(rows, pages.lengths - 1))
        self._rectangles = [self._rectangle(pages, part) for part in _split(pages.lengths)]

    def _rectangle(self, pages: _PageArrays, part: torch.Tensor | None) -> _Rectangle:
        device = pages.lengths.device
        rows = torch.arange(len(pages.lengths), device=device) if part is None else part
        lengths = pages.lengths[rows]
        longest = int(lengths.max())
        positions = torch.arange(longest, device=device).expand(len(rows), longest)
        hidden = positions >= lengths[:, None]
        # What is hidden reads the row's own first position: a weight of 0 does not hide a NaN of someone else's.
        where = pages.locate(rows[:, None], positions.masked_fill(hidden, 0))
        mask = None
        if bool(hidden.any()):
            mask = torch.zeros(hidden.shape, device=device, dtype=self._pool.keys.dtype)
            mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None, :]
        return _Rectangle(part, where.reshape(-1), mask)

    def _attend(self, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        if len(self._rectangles) == 1:
            return self._attend_rectangle(layer, query, scale, self._rectangles[0])
        out = torch.empty_like(query)
        for part in self._rectangles:
            assert part.rows is not None
            out[part.rows] = self._attend_rectangle(layer, query[part.rows], scale, part)
        return out

    def _attend_rectangle(self, layer: int, query: torch.Tensor, scale: float, part: _Rectangle) -> torch.Tensor:
        rows, heads, dim = query.shape
        kv_heads = self._pool.spec.kv_heads
        keys, values = self._pool._gather(layer, part.where)
        keys = keys.view(rows, -1, kv_heads, dim).transpose(1, 2)
        values = values.view(rows, -1, kv_heads, dim).transpose(1, 2)
        # The query heads that share a KV head stand where queries of one sequence would: no copy of K and V.
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=part.mask, scale=scale)
        return out.reshape(rows, heads, dim)


class _PrefillStep(TorchAttentionStep):
    """Several queries a row, ragged."""

    def __init__(self, pool: PagedAttention, pages: _PageArrays, causal: bool, cu_seqlens: torch.Tensor) -> None:
        device = cu_seqlens.device
        counts = cu_seqlens[1:] - cu_seqlens[:-1]
        rows = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
        first = pages.lengths - counts
        positions = torch.arange(len(rows), device=device) - cu_seqlens[rows] + first[rows]
        super().__init__(pool, causal, pages.locate(rows, positions.clamp_min(0)))
        self._spans: list[tuple[int, int]] = []  # queries of each row in the step
        self._where: list[torch.Tensor] = []  # the whole context of each row in the pool
        self._masks: list[torch.Tensor | None] = []  # None: the row's queries are its whole context, or one
        bounds = cu_seqlens.tolist()
        for row, length in enumerate(pages.lengths.tolist()):
            self._spans.append((bounds[row], bounds[row + 1]))
            self._where.append(pages.locate(torch.tensor(row, device=device), torch.arange(length, device=device)))
            new = bounds[row + 1] - bounds[row]
            mask = None
            if causal and 1 < new < length:
                # Query j stands at position length - new + j. (is_causal would align it with position j.)
                mask = torch.ones((new, length), dtype=torch.bool, device=device).tril_(length - new)
            self._masks.append(mask)

    def _attend(self, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        out = torch.empty_like(query)
        grouped = query.shape[1] != self._pool.spec.kv_heads
        for (begin, end), where, mask in zip(self._spans, self._where, self._masks, strict=True):
            keys, values = self._pool._gather(layer, where)
            out[begin:end] = scaled_dot_product_attention(
                query[begin:end].transpose(0, 1)[None],
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                attn_mask=mask,
                is_causal=self._causal and mask is None and end - begin > 1,
                scale=scale,
                enable_gqa=grouped,
            )[0].transpose(0, 1)
        return out


def _split(lengths: torch.Tensor) -> list[torch.Tensor | None]:
    """Rows in groups of near lengths, so that one long row does not make every other pay for a padded gather."""
    values: list[int] = lengths.tolist()
    if len(values) * max(values) <= _RECTANGLE_WASTE * sum(values):
        return [None]
    order = sorted(range(len(values)), key=values.__getitem__)
    groups: list[list[int]] = [[order[0]]]
    held = values[order[0]]
    for row in order[1:]:
        # Ascending, so the row at hand is its group's longest.
        if (len(groups[-1]) + 1) * values[row] <= _RECTANGLE_WASTE * (held + values[row]):
            groups[-1].append(row)
            held += values[row]
        else:
            groups.append([row])
            held = values[row]
    return [torch.tensor(group, device=lengths.device) for group in groups]
