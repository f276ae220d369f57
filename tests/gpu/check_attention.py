"""FlashInfer steps in CUDA graphs against dense float64: boundaries, padding, several plans for one capture."""

from __future__ import annotations

import torch
from denizen.kernels.page_gather import page_gather
from denizen.worker.attention.flashinfer import FlashInferAttention, FlashInferStep, SlotWorkspace
from denizen.worker.models.base import KvPoolSpec
from gpu_support import CUDA, capture, dense_attention
from kernel_support import close, generator, same

PAGE, PAGES, SINK = 16, 3000, 0
QWEN = KvPoolSpec("kv", layers=2, kv_heads=2, head_dim=256), 8
GROUPED = KvPoolSpec("kv", layers=2, kv_heads=8, head_dim=128), 16
WHISPER = KvPoolSpec("kv", layers=2, kv_heads=20, head_dim=64), 20


def _pool(spec: KvPoolSpec, heads: int) -> tuple[FlashInferAttention, SlotWorkspace]:
    pool = FlashInferAttention(spec, heads, PAGES, PAGE, CUDA, torch.bfloat16)
    pool.keys.normal_()
    pool.values.normal_()
    for cache in (pool.keys, pool.values):
        cache[:, SINK] = float("nan")  # what padding reads must not reach a live row
    return pool, SlotWorkspace.allocate(pool.float_workspace(256, 2048))


def _row_pages(lengths: list[int], seed: int) -> list[torch.Tensor]:
    free = (torch.randperm(PAGES - 1, generator=generator(seed)) + 1).to(torch.int32)
    counts = [-(-length // PAGE) for length in lengths]
    return list(torch.split(free[: sum(counts)], counts))


def _decode(spec: KvPoolSpec, heads: int, bucket: int, on_device: bool = False) -> None:
    pool, workspace = _pool(spec, heads)
    step = pool.decode_step(bucket, workspace)
    table = torch.zeros(bucket + 1, 256, dtype=torch.int32, device=CUDA)
    slots = torch.zeros(bucket, dtype=torch.int32, device=CUDA)
    lengths = torch.ones(bucket, dtype=torch.int32, device=CUDA)
    query = torch.zeros(bucket, heads, spec.head_dim, dtype=torch.bfloat16, device=CUDA)

    def walk() -> torch.Tensor:
        pages = step.pages
        if step.lengths_only:
            page_gather(slots, table, lengths, PAGE, SINK, pages.indptr, pages.indices, pages.last_page_len)
        if on_device:
            step.record_plan()
        return step.attend(1, query)

    held: list[torch.Tensor] = []
    graph = capture(lambda: held.append(walk()))
    step.freeze()
    edges = [1, PAGE - 1, PAGE, PAGE + 1, 8 * PAGE - 1, 8 * PAGE, 8 * PAGE + 1, 40 * PAGE, 640, 2000]
    for seed in range(6):
        g = generator(100 * bucket + seed)
        live = bucket if seed == 0 else int(torch.randint(1, bucket + 1, (1,), generator=g))
        longest = 10 if seed == 1 else 300 if bucket > 64 else 2000
        chosen = torch.randint(1, longest, (live,), generator=g).tolist()
        for at in range(0, live, 2):
            chosen[at] = min(edges[(at // 2 + seed) % len(edges)], longest if bucket > 64 else 4000)
        pages = _row_pages(chosen, seed)
        query.normal_()
        slots.zero_()
        slots[:live] = torch.arange(1, live + 1, dtype=torch.int32, device=CUDA)
        lengths[:live] = torch.tensor(chosen, dtype=torch.int32, device=CUDA)
        table.zero_()
        for row, own in enumerate(pages):
            table[row + 1, : len(own)] = own.to(CUDA)
        counts = [-(-length // PAGE) for length in chosen] + [1] * (bucket - live)
        indptr = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        if not step.lengths_only:
            step.pages.indptr.copy_(indptr)
            flat = torch.cat([*pages, torch.zeros(bucket - live, dtype=torch.int32)])
            step.pages.indices[: len(flat)] = flat.to(CUDA)
            last = [(length - 1) % PAGE + 1 for length in chosen] + [1] * (bucket - live)
            step.pages.last_page_len.copy_(torch.tensor(last, dtype=torch.int32))
        if on_device:
            workspace.ints.fill_(0xFF)  # whatever the host planned before is gone
        else:
            step.plan(indptr)
        held[-1].fill_(float("nan"))
        graph.replay()
        want = torch.cat(
            [
                dense_attention(
                    query[row : row + 1], pool.keys[1], pool.values[1], own.to(CUDA), length, spec.head_dim**-0.5
                )
                for row, (own, length) in enumerate(zip(pages, chosen, strict=True))
            ]
        )
        close(held[-1][:live], want, 8e-3, f"decode {spec.head_dim} bucket {bucket} seed {seed} live {live}")


def test_decode_of_qwen() -> None:
    for bucket in (1, 2, 16, 128):
        _decode(*QWEN, bucket)


def test_decode_that_plans_for_itself() -> None:
    for bucket in (1, 16, 128):
        _decode(*QWEN, bucket, on_device=True)


def _arrays(step: FlashInferStep, workspace: torch.Tensor, queries: int) -> list[torch.Tensor]:
    """The parts of a plan that mean something: of the entries, those in use."""
    layout = step.layout()
    valid = workspace[layout.valid : layout.valid + layout.blocks]
    used = int(valid.sum())

    def words(offset: int, count: int) -> torch.Tensor:
        return workspace[offset : offset + 4 * count].view(torch.int32).clone()

    return [
        valid.clone(),
        *(words(offset, used) for offset in (layout.request, layout.query_tile, layout.chunk)),
        words(layout.merge_indptr, queries + 1),
        words(layout.out_indptr, step.shape.rows + 1),
        words(layout.chunk_size, 1),
        words(layout.total_rows, 1),
    ]


def test_the_device_planner_writes_what_the_host_planner_writes() -> None:
    pool, workspace = _pool(*QWEN)
    for rows, tokens in ((1, 1), (16, 16), (128, 128), (4, 256), (16, 2048)):
        step = pool.decode_step(rows, workspace) if rows == tokens else pool.prefill_step(rows, tokens, workspace)
        for seed in range(8):
            g = generator(rows + seed)
            counts = [1] * rows
            if rows != tokens:
                counts = [int(torch.randint(0, tokens // rows + 1, (1,), generator=g)) for _ in range(rows)]
            pages = torch.randint(1, (3, 40, 400)[seed % 3], (rows,), generator=g)
            starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
            indptr = torch.tensor([0, *pages.tolist()]).cumsum(0).to(torch.int32)
            step.plan(indptr, None if rows == tokens else starts)
            torch.cuda.synchronize()
            want = _arrays(step, workspace.ints, sum(counts))
            workspace.ints.fill_(0xFF)
            step.qo_indptr.copy_(starts)
            step.pages.indptr.copy_(indptr)
            step.record_plan()
            got = _arrays(step, workspace.ints, sum(counts))
            for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
                same(mine, theirs, f"array {number} of {rows} x {tokens}, seed {seed}")


def test_decode_of_grouped_heads() -> None:
    for bucket in (4, 64):
        _decode(*GROUPED, bucket)


def test_decode_of_whisper() -> None:
    for bucket in (1, 16):
        _decode(*WHISPER, bucket)


def test_prefill_in_a_graph() -> None:
    spec, heads = QWEN
    pool, workspace = _pool(spec, heads)
    for rows, tokens in ((1, 64), (4, 256), (16, 2048)):
        step = pool.prefill_step(rows, tokens, workspace)
        query = torch.zeros(tokens, heads, spec.head_dim, dtype=torch.bfloat16, device=CUDA)
        held: list[torch.Tensor] = []
        graph = capture(lambda step=step, query=query, held=held: held.append(step.attend(0, query)))
        step.freeze()
        for seed in range(5):
            g = generator(1000 * rows + seed)
            live = int(torch.randint(1, rows + 1, (1,), generator=g))
            room = tokens // live
            counts = [int(torch.randint(1, room + 1, (1,), generator=g)) for _ in range(live)]
            lengths = [n + int(torch.randint(0, 300, (1,), generator=g)) * (seed % 2) for n in counts]
            pages = _row_pages(lengths, seed)
            indptr = (
                torch.tensor([0, *[-(-n // PAGE) for n in lengths], *[1] * (rows - live)]).cumsum(0).to(torch.int32)
            )
            starts = torch.tensor([0, *counts, *[0] * (rows - live)]).cumsum(0).to(torch.int32)
            step.pages.indptr.copy_(indptr)
            flat = torch.cat([*pages, torch.zeros(rows - live, dtype=torch.int32)])
            step.pages.indices[: len(flat)] = flat.to(CUDA)
            last = [(n - 1) % PAGE + 1 for n in lengths] + [1] * (rows - live)
            step.pages.last_page_len.copy_(torch.tensor(last, dtype=torch.int32))
            step.qo_indptr.copy_(starts)
            query.normal_()
            step.plan(indptr, starts)
            held[-1].fill_(float("nan"))
            graph.replay()
            for row, (own, n) in enumerate(zip(pages, lengths, strict=True)):
                part = slice(int(starts[row]), int(starts[row + 1]))
                want = dense_attention(query[part], pool.keys[0], pool.values[0], own.to(CUDA), n, spec.head_dim**-0.5)
                close(held[-1][part], want, 8e-3, f"prefill {rows}x{tokens} seed {seed} row {row}")
