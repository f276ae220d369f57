"""Attention over the last pages of a pool of more than 2^31 elements a layer, which a GPU of 139 GiB has by default."""

from __future__ import annotations

import torch
from denizen.worker.attention.flashinfer import FlashInferAttention, SlotWorkspace
from denizen.worker.models.base import KvPoolSpec
from gpu_support import CUDA, dense_attention
from kernel_support import close

PAGE = 16
LENGTHS = [700, 37]


def _last_pages(spec: KvPoolSpec, *, tensor_cores: bool) -> None:
    count = sum(-(-length // PAGE) for length in LENGTHS)
    pages = (1 << 31) // (PAGE * spec.kv_heads * spec.head_dim) + count + 1
    pool = FlashInferAttention(spec, spec.heads, pages, PAGE, CUDA, torch.bfloat16)
    keys, values = pool.keys[0], pool.values[0]
    assert keys[: pages - count].numel() >= 1 << 31
    for cache in (keys, values):
        cache[pages - count :].normal_()
    own = torch.arange(pages - count, pages, dtype=torch.int32).flip(0).split([-(-n // PAGE) for n in LENGTHS])
    indptr = torch.tensor([0, *[len(part) for part in own]]).cumsum(0).to(torch.int32)
    last = torch.tensor([(length - 1) % PAGE + 1 for length in LENGTHS], dtype=torch.int32)
    workspace = SlotWorkspace.allocate(pool.float_workspace(2, 64))
    for counts in ([1, 1], [24, 5]):  # a decode step, and a prefill step
        queries = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        ragged = max(counts) > 1
        step = pool.prefill_step(2, 64, workspace) if ragged else pool.decode_step(2, workspace, tensor_cores)
        step.pages.load(indptr.numpy(), torch.cat(own).numpy(), last.numpy())
        step.qo_indptr.copy_(queries)
        step.plan(indptr, queries if ragged else None)
        query = torch.randn(64 if ragged else 2, spec.heads, spec.head_dim, device=CUDA).to(torch.bfloat16)
        got = step.attend(0, query)
        for row, (part, length) in enumerate(zip(own, LENGTHS, strict=True)):
            mine = slice(int(queries[row]), int(queries[row + 1]))
            want = dense_attention(query[mine], keys, values, part.to(CUDA), length, spec.head_dim**-0.5)
            close(got[mine], want, 8e-3, f"{spec.head_dim}, {counts}, row {row}")


def test_the_last_pages_on_tensor_cores() -> None:
    _last_pages(KvPoolSpec("kv", layers=1, kv_heads=2, head_dim=256, heads=8), tensor_cores=True)


def test_the_last_pages_on_cuda_cores() -> None:
    _last_pages(KvPoolSpec("kv", layers=1, kv_heads=20, head_dim=64, heads=20), tensor_cores=False)
