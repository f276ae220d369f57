"""Paged attention against dense softmax over the same history, with everything unowned poisoned."""

from __future__ import annotations

import itertools

import pytest
import torch
from denizen.worker.attention.torch_ref import PagedAttention
from denizen.worker.models.base import KvPoolSpec

from tests.models.harness import CPU

PAGE, HEADS, DIM, LAYERS = 4, 6, 8, 2
SCALE = 0.3


class Pool:
    """A pool full of NaN, rows with random pages, and the dense history of each."""

    def __init__(self, kv_heads: int, rows: int) -> None:
        self.attention = PagedAttention(KvPoolSpec("kv", LAYERS, kv_heads, DIM), 256, PAGE, CPU, torch.float32)
        self.attention.keys.fill_(torch.nan)
        self.attention.values.fill_(torch.nan)
        self.kv_heads = kv_heads
        self.free = (torch.randperm(255) + 1).tolist()
        self.pages: list[list[int]] = [[] for _ in range(rows)]
        self.history = [[(torch.empty(0, kv_heads, DIM),) * 2 for _ in range(LAYERS)] for _ in range(rows)]

    def step(self, counts: dict[int, int], padding: int = 0, write: bool = True) -> None:
        """New positions of some rows (``write`` False: queries only), checked on every layer."""
        lengths = []
        for row, count in counts.items():
            lengths.append(len(self.history[row][0][0]) + (count if write else 0))
            while len(self.pages[row]) * PAGE < lengths[-1]:
                self.pages[row].append(self.free.pop())
        lists = [self.pages[row] for row in counts] + [[0]] * padding
        sizes = [*counts.values(), *[1] * padding]
        indptr = torch.tensor([0, *itertools.accumulate(len(pages) for pages in lists)], dtype=torch.int32)
        indices = torch.tensor([page for pages in lists for page in pages] + [-1] * 3, dtype=torch.int32)
        last = torch.tensor([(length - 1) % PAGE + 1 for length in lengths] + [1] * padding, dtype=torch.int32)
        bounds = [0, *itertools.accumulate(sizes)]
        starts = torch.tensor(bounds, dtype=torch.int32)
        step = self.attention.bind(indptr, indices, last, starts, max(sizes), causal=write)
        for layer in range(LAYERS):
            query = torch.randn(bounds[-1], HEADS, DIM)
            key, value = torch.randn(2, bounds[-1], self.kv_heads, DIM)
            out = step.run(layer, query, key if write else None, value if write else None, SCALE)
            for row, begin, end in zip(counts, bounds, bounds[1:], strict=False):
                if write:
                    keys, values = self.history[row][layer]
                    added = torch.cat((keys, key[begin:end])), torch.cat((values, value[begin:end]))
                    self.history[row][layer] = added
                expected = dense(query[begin:end], *self.history[row][layer], causal=write)
                assert (out[begin:end] - expected).abs().max() < 2e-6


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool) -> torch.Tensor:
    group = HEADS // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1).double(), values.repeat_interleave(group, 1).double()
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * SCALE
    if causal:
        new, length = len(query), len(keys)
        later = torch.arange(length)[None, :] > torch.arange(new)[:, None] + length - new
        scores = scores.masked_fill(later, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_prefill_chunks_and_decode_equal_dense_attention(kv_heads):
    pool = Pool(kv_heads, rows=1)
    for count in (1, PAGE - 1, PAGE, PAGE + 1, 17, 1, 1, 1, 1, 5):
        pool.step({0: count})


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("padding", [0, 2])
def test_rows_of_all_lengths_share_a_step(kv_heads, padding):
    """Near lengths share one gather, far ones are split: both are here, and change as rows grow."""
    pool = Pool(kv_heads, rows=7)
    pool.step({0: 1, 1: PAGE, 2: PAGE + 1, 3: 200, 4: 2, 5: 31, 6: 33})
    for _ in range(PAGE + 1):
        pool.step(dict.fromkeys((6, 3, 0, 4, 1, 2, 5), 1), padding)
    pool.step({3: 1, 0: 9, 5: 2})
    pool.step(dict.fromkeys((0, 1, 2), 1), padding)


@pytest.mark.parametrize("queries", [1, 3])
def test_a_pool_that_is_only_read_shows_all_of_its_context(queries):
    pool = Pool(2, rows=2)
    pool.step({0: 9, 1: 30})
    before = pool.attention.keys.clone()
    pool.step({0: queries, 1: queries}, write=False)
    assert torch.equal(pool.attention.keys.nan_to_num(7), before.nan_to_num(7))
