"""FlashInfer's fa2 plan, computed on the device: what lets a graph run without a host that knows any length.

The planner splits every row's context into chunks of equal page counts, as small as the number of resident blocks
allows, and lists the (row, query tile, chunk) that each block works on. This writes the same arrays, bit for bit, to
where the captured launches read them. The arrays and their places are private to FlashInfer: :class:`PlanLayout` is
read from a plan that its own planner made, and a test on the GPU compares the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.kernels.jit import jit, power_of_two, tl

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Entries that a program of the kernel writes. Few, since it compares each with every row.
_BLOCK = 32


@dataclass(frozen=True)
class PlanLayout:
    """Where a captured plan's arrays lie in the planner's int workspace, in bytes, and what they were planned for."""

    blocks: int  #: entries, used and unused: the launch's grid
    tile: int  #: query rows a block
    total_rows: int
    request: int
    query_tile: int
    chunk: int
    merge_indptr: int
    out_indptr: int
    chunk_size: int
    valid: int
    group: int  #: query heads a KV head
    page_size: int
    resident: int  #: blocks that run at once, a KV head

    @classmethod
    def of(cls, info: Sequence[int], group: int, page_size: int, kv_heads: int, multiprocessors: int) -> PlanLayout:
        """``info``: the 15 integers of a tensor-core plan. Raises ValueError for a plan that a graph cannot hold."""
        if len(info) != 15 or not info[13] or not info[14]:
            raise ValueError(f"not a plan of the tensor-core path in graph mode: {list(info)}")
        blocks, _, total, tile, request, query_tile, chunk, merge, out, size, _, _, valid, _, _ = info
        return cls(
            blocks, tile, total, request, query_tile, chunk, merge, out, size, valid,
            group, page_size, 2 * multiprocessors // kv_heads,
        )  # fmt: skip

    @classmethod
    def of_cuda_cores(cls, info: Sequence[int], page_size: int, workspace: int) -> PlanLayout:
        """``info``: the 10 integers of a decode plan of the CUDA-core path, in ``workspace`` bytes.

        Such a plan is one of a query tile a row, without the arrays that number tiles and queries: what belongs there
        goes to the workspace's end. Where the rows fill the device by themselves, no row is split: its blocks have no
        mask, and no chunk is ever small enough.
        """
        if len(info) != 10 or not info[8]:
            raise ValueError(f"not a plan of the CUDA-core path in graph mode: {list(info)}")
        blocks, _, _, request, chunk, out, valid, size, _, split = info
        total = workspace // 16 * 16 - 16
        tiles = total - -(-blocks // 4) * 16
        mask = tiles - -(-blocks // 16) * 16
        return cls(
            blocks, 1, total, request, tiles, chunk, out, out, size, valid if split else mask,
            1, page_size, blocks if split else 0,
        )  # fmt: skip


def attention_plan(
    qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, layout: PlanLayout, workspace: torch.Tensor
) -> None:
    """Writes the plan of ``qo_indptr`` and ``kv_indptr`` (int32 ``[B + 1]``: queries, pages) to uint8 ``workspace``."""
    if workspace.is_cuda:
        attention_plan_triton(qo_indptr, kv_indptr, layout, workspace)
        return
    queries = (qo_indptr[1:] - qo_indptr[:-1]).tolist()
    pages = [max(count, 1) for count in (kv_indptr[1:] - kv_indptr[:-1]).tolist()]
    tiles = [-(-count * layout.group // layout.tile) for count in queries]
    low, high = max(128 // layout.page_size, 1), max(pages)
    while low < high:
        middle = (low + high) // 2
        if sum(n * -(-count // middle) for n, count in zip(tiles, pages, strict=True)) > layout.resident:
            low = middle + 1
        else:
            high = middle
    entries: list[tuple[int, int, int]] = []
    merge, out = [0], [0]
    for row, (count, tile_count, page_count) in enumerate(zip(queries, tiles, pages, strict=True)):
        chunks = -(-page_count // low)
        entries += [(row, tile, chunk) for tile in range(tile_count) for chunk in range(chunks)]
        for _ in range(count):
            merge.append(merge[-1] + chunks)
        out.append(out[-1] + count * chunks)

    def put(offset: int, values: list[int]) -> None:
        workspace[offset : offset + 4 * len(values)].view(torch.int32).copy_(torch.tensor(values, dtype=torch.int32))

    for place, column in zip(
        (layout.request, layout.query_tile, layout.chunk), zip(*entries, strict=True), strict=True
    ):
        put(place, list(column))
    put(layout.merge_indptr, merge)
    put(layout.out_indptr, out)
    put(layout.chunk_size, [low * layout.page_size])
    put(layout.total_rows, [sum(queries)])
    workspace[layout.valid : layout.valid + layout.blocks] = torch.arange(layout.blocks) < len(entries)


@jit
def _plan_kernel(
    qo_indptr: tl.tensor,
    kv_indptr: tl.tensor,
    words: tl.tensor,
    valid: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    request: tl.tensor,
    query_tile: tl.tensor,
    chunk: tl.tensor,
    merge_indptr: tl.tensor,
    out_indptr: tl.tensor,
    chunk_size: tl.tensor,
    total_rows: tl.tensor,
    resident: tl.tensor,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    LEAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    # Every program searches the chunk size anew, which costs less than a launch that would share it.
    lane = tl.arange(0, ROWS)
    inside = lane < rows
    begins = tl.load(qo_indptr + lane, mask=inside, other=0)
    queries = tl.load(qo_indptr + lane + 1, mask=inside, other=0) - begins
    pages = tl.load(kv_indptr + lane + 1, mask=inside, other=0) - tl.load(kv_indptr + lane, mask=inside, other=0)
    pages = tl.maximum(pages, 1)
    queries = tl.where(inside, queries, 0)
    tiles = (queries * GROUP + (TILE - 1)) // TILE
    low = rows * 0 + LEAST
    high = tl.max(pages, 0)
    while low < high:
        middle = (low + high) // 2
        crowded = tl.sum(tiles * ((pages + middle - 1) // middle), 0) > resident
        low, high = tl.where(crowded, middle + 1, low), tl.where(crowded, high, middle)
    chunks = (pages + low - 1) // low
    counts = tiles * chunks
    ends = tl.cumsum(counts, 0)
    outs = tl.cumsum(queries * chunks, 0)
    total = tl.sum(queries, 0)
    if tl.program_id(0) == 0:
        tl.store(words + out_indptr, 0)
        tl.store(words + out_indptr + 1 + lane, outs, mask=inside)
        tl.store(words + chunk_size, low * PAGE)
        tl.store(words + total_rows, total)
        tl.store(words + merge_indptr, 0)

    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = entry < tl.sum(counts, 0)
    before = (ends[None, :] <= entry[:, None]) & inside[None, :]
    row = tl.sum(tl.where(before, 1, 0), 1)
    own = lane[None, :] == row[:, None]
    offset = entry - tl.sum(tl.where(own, (ends - counts)[None, :], 0), 1)
    own_chunks = tl.maximum(tl.sum(tl.where(own, chunks[None, :], 0), 1), 1)
    tl.store(words + request + entry, row, mask=used)
    tl.store(words + query_tile + entry, offset // own_chunks, mask=used)
    tl.store(words + chunk + entry, offset % own_chunks, mask=used)
    tl.store(valid + entry, tl.where(used, 1, 0).to(tl.uint8), mask=entry < blocks)

    # Partial results of each query, which the merge adds up. Queries share the programs with the entries.
    for first in range(tl.program_id(0) * BLOCK, total, tl.num_programs(0) * BLOCK):
        query = first + tl.arange(0, BLOCK)
        passed = (begins + queries)[None, :] <= query[:, None]
        row = tl.sum(tl.where(passed & inside[None, :], 1, 0), 1)
        own = lane[None, :] == row[:, None]
        place = query + 1 - tl.sum(tl.where(own, begins[None, :], 0), 1)
        merged = tl.sum(tl.where(own, (outs - queries * chunks)[None, :], 0), 1)
        merged += place * tl.sum(tl.where(own, chunks[None, :], 0), 1)
        tl.store(words + merge_indptr + 1 + query, merged, mask=query < total)


def attention_plan_triton(
    qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, layout: PlanLayout, workspace: torch.Tensor
) -> None:
    """:func:`attention_plan` in one kernel, for graphs."""
    rows = qo_indptr.shape[0] - 1
    _plan_kernel[(-(-layout.blocks // _BLOCK),)](
        qo_indptr, kv_indptr, workspace.view(torch.int32), workspace[layout.valid :], rows, layout.blocks,
        layout.request // 4, layout.query_tile // 4, layout.chunk // 4, layout.merge_indptr // 4,
        layout.out_indptr // 4, layout.chunk_size // 4, layout.total_rows // 4, layout.resident,
        TILE=layout.tile, GROUP=layout.group, PAGE=layout.page_size, LEAST=max(128 // layout.page_size, 1),
        ROWS=power_of_two(rows), BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
