"""Drives a model without an engine: real pools and page arrays, one forward pass a call."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from denizen.kernels.page_gather import page_gather
from denizen.worker.attention import paged_attention
from denizen.worker.models.base import Batch, Model
from denizen.worker.models.checkpoint import Checkpoint
from denizen.worker.models.registry import model_class
from denizen.worker.pools.storage import allocate_state

CPU = torch.device("cpu")
SINK = 0


def load(path) -> Model:
    checkpoint = Checkpoint.open(path)
    return model_class(checkpoint).load(checkpoint, CPU, torch.float32)


@dataclass
class Sequence:
    """A request's place in the tables."""

    row: int
    length: int = 0
    pages: list[int] = field(default_factory=list)


class Harness:
    """One model's pools. Pages are handed out in random order, so that nothing works by being contiguous."""

    def __init__(self, model: Model, rows: int = 16, pages: int = 512, page_size: int = 4) -> None:
        self.model = model
        self.page_size = page_size
        (spec,) = model.kv_pools
        self.kv_key = spec.key
        self.attention = paged_attention(spec, pages, page_size, CPU, torch.float32)
        # What nobody has written must not matter: the sink page and the pools' free memory hold NaN.
        self.attention.keys.fill_(float("nan"))
        self.attention.values.fill_(float("nan"))
        self.state = {pool.key: allocate_state(pool, rows, CPU, torch.float32) for pool in model.state_pools}
        for tensors in self.state.values():
            for tensor in tensors.values():
                tensor.fill_(float("nan"))
        self.table = torch.zeros((rows, pages), dtype=torch.int32)
        self.free_pages = list(range(1, pages))
        random.Random(0).shuffle(self.free_pages)
        self.free_rows = list(range(rows - 1, 0, -1))

    def admit(self) -> Sequence:
        return Sequence(self.free_rows.pop())

    def release(self, sequence: Sequence) -> None:
        self.free_rows.append(sequence.row)
        self.free_pages.extend(sequence.pages)

    def step(self, walk: str, parts: list[tuple[Sequence, list[int]]], padding: int = 0) -> list[torch.Tensor]:
        """Runs new tokens of several sequences in one batch; returns the logits of each, ``[new, vocab]``.

        ``padding``: rows of the null row behind them (decode only).
        """
        fresh = [sequence.length == 0 for sequence, _ in parts] + [True] * padding
        positions: list[int] = []
        for sequence, ids in parts:
            positions += range(sequence.length, sequence.length + len(ids))
            sequence.length += len(ids)
            while len(sequence.pages) * self.page_size < sequence.length:
                page = self.free_pages.pop()
                self.table[sequence.row, len(sequence.pages)] = page
                sequence.pages.append(page)
        counts = [len(ids) for _, ids in parts] + [1] * padding
        slots = torch.tensor([sequence.row for sequence, _ in parts] + [0] * padding, dtype=torch.int32)
        lengths = torch.tensor([sequence.length for sequence, _ in parts] + [0] * padding, dtype=torch.int32)
        rows = len(counts)
        indptr = torch.zeros(rows + 1, dtype=torch.int32)
        indices = torch.zeros(self.table.shape[1] + rows, dtype=torch.int32)
        last_page_len = torch.zeros(rows, dtype=torch.int32)
        page_gather(slots, self.table, lengths, self.page_size, SINK, indptr, indices, last_page_len)
        cu_seqlens = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        bound = self.attention.bind(indptr, indices, last_page_len, cu_seqlens, max(counts))
        batch = Batch(
            walk=walk,
            slots=slots,
            token_ids=torch.tensor([token for _, ids in parts for token in ids] + [0] * padding),
            positions=torch.tensor(positions + [0] * padding),
            cu_seqlens=cu_seqlens,
            max_seqlen=max(counts),
            attention={self.kv_key: bound},
            state=self.state,
            state_slots=dict.fromkeys(self.state, slots),
            fresh=torch.tensor(fresh),
        )
        logits = self.model.logits(self.model.forward(batch))
        return list(logits.split(counts))[: len(parts)]

    def prefill(self, sequence: Sequence, ids: list[int], chunk: int | None = None) -> torch.Tensor:
        """Logits of the whole prompt, fed ``chunk`` tokens at a time."""
        size = chunk or len(ids)
        parts = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
        return torch.cat([self.step("prefill", [(sequence, part)])[0] for part in parts])
