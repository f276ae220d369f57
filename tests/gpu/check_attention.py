"""FlashInfer steps in CUDA graphs against dense float64: boundaries, padding, several plans for one capture."""

from __future__ import annotations

import functools

import torch
from denizen.kernels.page_gather import page_gather
from denizen.worker.attention.flashinfer import FlashInferAttention, FlashInferStep, SlotWorkspace
from denizen.worker.graphs import DECODE_BUCKETS, PREFILL_BUCKETS, PREFILL_ROWS
from denizen.worker.models.base import KvPoolSpec
from gpu_support import CUDA, capture, dense_attention
from kernel_support import close, generator, same

PAGE, PAGES, SINK = 16, 12000, 0
QWEN = KvPoolSpec("kv", layers=2, kv_heads=2, head_dim=256), 8
GROUPED = KvPoolSpec("kv", layers=2, kv_heads=8, head_dim=128), 16
WHISPER = KvPoolSpec("kv", layers=2, kv_heads=20, head_dim=64), 20
CROSS = KvPoolSpec("kv", layers=2, kv_heads=8, head_dim=64), 8


def _pool(spec: KvPoolSpec, heads: int) -> tuple[FlashInferAttention, SlotWorkspace]:
    pool = FlashInferAttention(spec, heads, PAGES, PAGE, CUDA, torch.bfloat16)
    pool.keys.normal_()
    pool.values.normal_()
    for cache in (pool.keys, pool.values):
        cache[:, SINK] = float("nan")  # what padding reads must not reach a live row
    return pool, SlotWorkspace.allocate(pool.float_workspace(256, 8192))


def _row_pages(lengths: list[int], seed: int) -> list[torch.Tensor]:
    free = (torch.randperm(PAGES - 1, generator=generator(seed)) + 1).to(torch.int32)
    counts = [-(-length // PAGE) for length in lengths]
    return list(torch.split(free[: sum(counts)], counts))


def _chunk(step: FlashInferStep, lengths: list[int], queries: list[int]) -> int:
    """Positions of a chunk into which the planner splits these rows' contexts; 0 = it splits none."""
    layout = step.layout()
    if not layout.resident:
        return 0
    pages = [-(-length // PAGE) for length in lengths]
    tiles = [-(-count * layout.group // layout.tile) for count in queries]
    low, high = 128 // PAGE, max(pages)
    while low < high:
        middle = (low + high) // 2
        if sum(n * -(-count // middle) for n, count in zip(tiles, pages, strict=True)) > layout.resident:
            low = middle + 1
        else:
            high = middle
    return low * PAGE


def _boundaries(step: FlashInferStep, live: int, queries: list[int], longest: int) -> list[int]:
    """Lengths of ``live`` rows about pages and about the chunks that a plan of just these lengths has."""
    rows = step.shape.rows
    chunk = 8 * PAGE
    for _ in range(12):
        about = [k * chunk + delta for k in (1, 2, 3) for delta in (-1, 0, 1)]
        values = [longest, *about, 1, PAGE - 1, PAGE, PAGE + 1]
        lengths = [max(min(values[row % len(values)], longest), queries[row]) for row in range(live)]
        found = _chunk(step, lengths + [1] * (rows - live), queries)
        if found in (0, chunk):
            break
        chunk = found
    return lengths


def _load(step: FlashInferStep, pages: list[torch.Tensor], lengths: list[int]) -> None:
    """The host's arrays, as a full plan sends them."""
    indptr = torch.tensor([0, *[len(own) for own in pages]]).cumsum(0).to(torch.int32)
    last = torch.tensor([(length - 1) % PAGE + 1 for length in lengths], dtype=torch.int32)
    step.pages.load(indptr.numpy(), torch.cat(pages).numpy(), last.numpy())


def _decode(
    spec: KvPoolSpec,
    heads: int,
    bucket: int,
    *,
    on_device: bool,
    gathered: bool = True,
    tensor_cores: bool | None = None,
) -> int:
    """Boundary lengths and random ones, batch full and padded. Returns how many plans split a row."""
    pool, workspace = _pools(spec, heads)
    step = pool.decode_step(bucket, workspace, tensor_cores)
    assert step.lengths_only
    table = torch.zeros(bucket + 1, 256, dtype=torch.int32, device=CUDA)
    slots = torch.zeros(bucket, dtype=torch.int32, device=CUDA)
    lengths = torch.ones(bucket, dtype=torch.int32, device=CUDA)
    query = torch.zeros(bucket, heads, spec.head_dim, dtype=torch.bfloat16, device=CUDA)

    def walk() -> torch.Tensor:
        pages = step.pages
        if gathered:
            page_gather(slots, table, lengths, PAGE, SINK, pages.indptr, pages.indices, pages.last_page_len)
        if on_device:
            step.record_plan()
        return step.attend(1, query)

    held: list[torch.Tensor] = []
    graph = capture(lambda: held.append(walk()))
    step.freeze()
    split = 0
    for seed in range(4):
        g = generator(100 * bucket + seed)
        live = bucket if seed == 0 else max(1, bucket // 2 + 1 - seed % 2)
        if seed < 3:
            chosen = _boundaries(step, live, [1] * bucket, (4000, 700, 2500)[seed] if bucket <= 32 else 700)
        else:
            chosen = torch.randint(1, 600, (live,), generator=g).tolist()
        split += 0 < _chunk(step, chosen + [1] * (bucket - live), [1] * bucket) < max(chosen)
        pages = _row_pages(chosen, seed)
        query.normal_()
        slots.zero_()
        slots[:live] = torch.arange(1, live + 1, dtype=torch.int32, device=CUDA)
        lengths[:live] = torch.tensor(chosen, dtype=torch.int32, device=CUDA)
        table.zero_()
        for row, own in enumerate(pages):
            table[row + 1, : len(own)] = own.to(CUDA)
        counts = [-(-length // PAGE) for length in chosen] + [1] * (bucket - live)
        if not gathered:
            _load(step, pages, chosen)
        if on_device:
            workspace.ints.fill_(0xFF)  # whatever the host planned before is gone
        else:
            step.plan(torch.tensor([0, *counts]).cumsum(0).to(torch.int32))
        held[-1].fill_(float("nan"))
        graph.replay()
        keys, values = pool.keys[1], pool.values[1]
        want = torch.cat(
            [
                dense_attention(query[row : row + 1], keys, values, own.to(CUDA), length, spec.head_dim**-0.5)
                for row, (own, length) in enumerate(zip(pages, chosen, strict=True))
            ]
        )
        close(held[-1][:live], want, 8e-3, f"decode {spec.head_dim} bucket {bucket} seed {seed} live {live}")
    return split


@functools.cache
def _pools(spec: KvPoolSpec, heads: int) -> tuple[FlashInferAttention, SlotWorkspace]:
    return _pool(spec, heads)


BUCKETS = (1, 2, *DECODE_BUCKETS)


def test_decode_on_tensor_cores_at_boundaries() -> None:
    assert sum(_decode(*QWEN, bucket, on_device=False) for bucket in BUCKETS) > 15


def test_decode_on_tensor_cores_that_plans_for_itself_at_boundaries() -> None:
    assert sum(_decode(*QWEN, bucket, on_device=True) for bucket in BUCKETS) > 15


def test_decode_on_cuda_cores_at_boundaries() -> None:
    """With arrays from the host, as a pool that is only read has them, and gathered."""
    for gathered in (True, False):
        split = [_decode(*WHISPER, bucket, on_device=False, gathered=gathered) for bucket in BUCKETS]
        assert sum(split) > 5, split
        assert 0 in split, split  # batches that fill the GPU are not split


def test_decode_on_cuda_cores_that_plans_for_itself_at_boundaries() -> None:
    split = [_decode(*WHISPER, bucket, on_device=True) for bucket in BUCKETS]
    assert sum(split) > 5, split


def test_decode_of_grouped_heads_on_cuda_cores() -> None:
    for bucket in (4, 64):
        for on_device in (False, True):
            _decode(*GROUPED, bucket, on_device=on_device, tensor_cores=False)


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
    pool, workspace = _pools(*QWEN)
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


def test_the_device_planner_writes_what_the_cuda_core_planner_writes() -> None:
    pool, workspace = _pools(*WHISPER)
    for rows in (1, 2, 16, 24, 48, 128):
        step = pool.decode_step(rows, workspace)
        layout = step.layout()
        split = layout.resident > 0
        for seed in range(8):
            pages = torch.randint(1, (3, 40, 250)[seed % 3], (rows,), generator=generator(rows + seed))
            indptr = torch.tensor([0, *pages.tolist()]).cumsum(0).to(torch.int32)
            found = []
            for on_device in (False, True):
                workspace.ints.fill_(0xFF)
                if on_device:
                    step.pages.indptr.copy_(indptr)
                    step.record_plan()
                else:
                    step.plan(indptr)
                torch.cuda.synchronize()
                words = workspace.ints.view(torch.int32)
                used = int(words[layout.out_indptr // 4 + rows])
                parts = [words[place // 4 :][:used].clone() for place in (layout.request, layout.chunk)]
                parts.append(words[layout.out_indptr // 4 :][: rows + 1].clone())
                if split:  # where no row is split nobody reads the size of a chunk
                    parts.append(words[layout.chunk_size // 4 :][:1].clone())
                    parts.append(workspace.ints[layout.valid : layout.valid + layout.blocks].clone())
                found.append(parts)
            for number, (theirs, mine) in enumerate(zip(*found, strict=True)):
                same(mine, theirs, f"array {number} of {rows} rows, seed {seed}")


def _prefill(spec: KvPoolSpec, heads: int, rows: int, tokens: int, *, causal: bool, on_device: bool) -> None:
    pool, workspace = _pools(spec, heads)
    step = pool.prefill_step(rows, tokens, workspace, causal)
    query = torch.zeros(tokens, heads, spec.head_dim, dtype=torch.bfloat16, device=CUDA)

    def walk() -> torch.Tensor:
        if on_device:
            step.record_plan()
        return step.attend(0, query)

    held: list[torch.Tensor] = []
    graph = capture(lambda: held.append(walk()))
    step.freeze()
    for seed in range(4):
        g = generator(1000 * rows + seed)
        live = rows if seed == 0 else int(torch.randint(1, rows + 1, (1,), generator=g))
        room = min(tokens // live, 500)
        about = [1, PAGE - 1, PAGE, PAGE + 1, room]
        counts = [min(about[(row + seed) % 5], room) for row in range(live)]
        if seed == 3:
            counts = [int(torch.randint(1, room + 1, (1,), generator=g)) for _ in range(live)]
        padding = rows - live
        # Causal: queries are the last of their context, with nothing before them in every other turn.
        alone = causal and seed % 2
        lengths = counts if alone else _boundaries(step, live, [*counts, *[0] * padding], 900)
        pages = _row_pages(lengths, seed)
        indptr = torch.tensor([0, *[len(own) for own in pages], *[1] * padding]).cumsum(0).to(torch.int32)
        starts = torch.tensor([0, *counts, *[0] * padding]).cumsum(0).to(torch.int32)
        _load(step, pages, lengths)
        step.qo_indptr.copy_(starts)
        query.normal_()
        if on_device:
            workspace.ints.fill_(0xFF)
        else:
            step.plan(indptr, starts)
        held[-1].fill_(float("nan"))
        graph.replay()
        for row, (own, n) in enumerate(zip(pages, lengths, strict=True)):
            part = slice(int(starts[row]), int(starts[row + 1]))
            keys, values = pool.keys[0], pool.values[0]
            want = dense_attention(query[part], keys, values, own.to(CUDA), n, spec.head_dim**-0.5, causal)
            close(held[-1][part], want, 8e-3, f"prefill {rows}x{tokens} seed {seed} row {row}")


def test_prefill_at_boundaries() -> None:
    for tokens in PREFILL_BUCKETS:
        for on_device in (False, True):
            _prefill(*QWEN, PREFILL_ROWS, tokens, causal=True, on_device=on_device)
    _prefill(*QWEN, 1, 64, causal=True, on_device=True)


def test_cross_attention_of_ragged_queries_at_boundaries() -> None:
    for tokens in (64, 512):
        for on_device in (False, True):
            _prefill(*CROSS, PREFILL_ROWS, tokens, causal=False, on_device=on_device)
    for rows in (1, 2, 4):  # audio is prefilled in as few rows as there are
        _prefill(*CROSS, rows, 64, causal=False, on_device=True)
