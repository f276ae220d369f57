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


def _cuda_core_layout(rows: int, blocks: int, split: bool, workspace: int) -> tuple[PlanLayout, list[int]]:
    """Offsets as the CUDA-core planner assigns them; also its 10 integers."""
    padded = blocks if split else rows
    request, chunk = 0, -(-4 * padded // 16) * 16
    out = 2 * chunk
    size = out + 4 * (padded + 1)
    valid = -(-(size + 4) // 16) * 16 if split else 0
    info = [padded, 0, 0, request, chunk, out, valid, size, 1, int(split)]
    return PlanLayout.of_cuda_cores(info, 16, workspace), info


def _cuda_core_plan(pages: list[int], blocks: int, split: bool) -> tuple[list[int], list[int], list[int], int]:
    """Rows and chunks of the blocks, prefix sum of chunks, pages of a chunk: what the planner's own functions give."""
    low, high = 8, max(pages)
    if not split:
        low = max(low, high)
    while low < high:
        middle = (low + high) // 2
        if sum(-(-count // middle) for count in pages) > blocks:
            low = middle + 1
        else:
            high = middle
    chunks = [-(-count // low) for count in pages]
    rows = [row for row, count in enumerate(chunks) for _ in range(count)]
    return rows, [part for count in chunks for part in range(count)], torch.tensor([0, *chunks]).cumsum(0).tolist(), low


def test_plans_of_the_cuda_core_path() -> None:
    g = generator(3)
    size = 1 << 15
    for rows, blocks, split in ((1, 40, True), (16, 52, True), (33, 40, True), (64, 0, False), (128, 0, False)):
        layout, info = _cuda_core_layout(rows, blocks, split, size)
        used = info[6] + blocks if split else info[7] + 4
        for longest in (1, 9, 60, 1000):
            pages = torch.randint(1, longest + 1, (rows,), generator=g).tolist()
            indptr = torch.tensor([0, *pages]).cumsum(0).to(torch.int32)
            queries = torch.arange(rows + 1, dtype=torch.int32)
            plan = torch.full((size,), 0xA5, dtype=torch.uint8)
            on_gpu = on_device(plan)
            attention_plan(queries, indptr, layout, plan)
            attention_plan_triton(on_device(queries), on_device(indptr), layout, on_gpu)
            label = f"{rows} rows of up to {longest} pages"
            same(on_gpu, plan, label)
            words = plan.view(torch.int32)
            request, chunk, out, low = _cuda_core_plan(pages, blocks, split)
            assert words[info[3] // 4 :][: len(request)].tolist() == request, label
            assert words[info[4] // 4 :][: len(chunk)].tolist() == chunk, label
            assert words[info[5] // 4 :][: rows + 1].tolist() == out, label
            assert int(words[info[7] // 4]) == 16 * low, label
            if split:
                mask = plan[info[6] : info[6] + blocks].tolist()
                assert mask == [1] * len(request) + [0] * (blocks - len(request)), label
            # What the path has no arrays for lies where the planner never does.
            assert (plan[used : layout.valid if not split else layout.query_tile] == 0xA5).all(), label


def test_a_plan_that_no_graph_holds_is_refused() -> None:
    for info in ([1] * 9, [*[1] * 8, 0, 1]):
        try:
            PlanLayout.of_cuda_cores(info, 16, 1 << 15)
        except ValueError:
            continue
        raise AssertionError(f"{info} was taken")
    for info in ([1] * 10, [1] * 13 + [0, 1], [1] * 13 + [1, 0]):
        try:
            PlanLayout.of(info, 4, 16, 2, 132)
        except ValueError:
            continue
        raise AssertionError(f"{info} was taken")
