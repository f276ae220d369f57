"""The device planner against the planner's algorithm on the host."""

from __future__ import annotations

import torch
from denizen.kernels.attention_plan import PlanLayout, attention_plan, attention_plan_triton
from kernel_support import generator, on_device, same

_RESIDENT = 132  # blocks of an H200 for two KV heads


def _layout(rows: int, tokens: int, group: int, tile: int, page_size: int) -> PlanLayout:
    """Offsets as the planner assigns them: 16-byte aligned, but for the chunk size."""
    blocks = max(_RESIDENT, -(-tokens * group // tile) + rows - 1)
    sizes = (4 * blocks, 4 * blocks, 4 * blocks, 4 * (rows + 1), 4, 4, 4 * (tokens + 1), blocks)
    offsets, at = [], 0
    for size in sizes:
        at = -(-at // 16) * 16
        offsets.append(at)
        at += size
    request, query_tile, chunk, out, chunk_size, total, merge, valid = offsets
    info = [blocks, tokens, total, tile, request, query_tile, chunk, merge, out, chunk_size, 0, 0, valid, 1, 1]
    return PlanLayout.of(info, group, page_size, kv_heads=2, multiprocessors=132)


def _compare(queries: list[int], pages: list[int], tokens: int, group: int, tile: int, page_size: int) -> None:
    layout = _layout(len(queries), tokens, group, tile, page_size)
    qo_indptr = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    kv_indptr = torch.tensor([0, *pages]).cumsum(0).to(torch.int32)
    want = torch.full((1 << 17,), 0xA5, dtype=torch.uint8)
    got = on_device(want)
    attention_plan(qo_indptr, kv_indptr, layout, want)
    attention_plan_triton(on_device(qo_indptr), on_device(kv_indptr), layout, got)
    same(got, want, f"plan of queries {queries[:8]}, pages {pages[:8]}")


def test_decode_plans() -> None:
    g = generator(1)
    for rows in (1, 2, 16, 100, 128, 200):
        for longest in (1, 9, 60, 1000):
            pages = torch.randint(1, longest + 1, (rows,), generator=g).tolist()
            _compare([1] * rows, pages, rows, group=4, tile=16, page_size=16)
    _compare([1] * 3, [8, 9, 7], 3, group=4, tile=16, page_size=16)  # about the least chunk
    _compare([1] * 2, [4000, 1], 2, group=8, tile=16, page_size=64)


def test_prefill_plans_with_padding_rows() -> None:
    g = generator(2)
    for rows, tokens in ((1, 64), (4, 256), (16, 2048)):
        for _ in range(4):
            live = int(torch.randint(1, rows + 1, (1,), generator=g))
            queries = [int(torch.randint(1, tokens // live + 1, (1,), generator=g)) for _ in range(live)]
            pages = [-(-n // 16) + int(torch.randint(0, 30, (1,), generator=g)) for n in queries]
            padding = rows - live
            _compare([*queries, *[0] * padding], [*pages, *[1] * padding], tokens, group=4, tile=64, page_size=16)


def test_a_plan_that_no_graph_holds_is_refused() -> None:
    for info in ([1] * 10, [1] * 13 + [0, 1], [1] * 13 + [1, 0]):
        try:
            PlanLayout.of(info, 4, 16, 2, 132)
        except ValueError:
            continue
        raise AssertionError(f"{info} was taken")
