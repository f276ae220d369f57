"""A toy model with every kind of pool, and a served one, for tests of the machinery around models.

Its tokens depend on the whole context through a KV pool (attention), on the whole history through a recurrent state,
and, if asked for, on a second KV pool that decode only reads.
"""

from __future__ import annotations

import itertools

import torch
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.models.base import RAGGED, Batch, KvPoolSpec, StatePoolSpec, StateSpec, Walk
from denizen.worker.resident.planner import PlanMode
from denizen.worker.served import ServedModel

CPU = torch.device("cpu")
HEADS, DIM = 2, 8
HIDDEN = HEADS * DIM


class ToyModel:
    family = "toy"
    kind = "text"
    resident_walks = frozenset({"decode"})

    def __init__(self, vocab: int = 97, context: int = 512, context_pool: bool = False, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        self.vocab_size = vocab
        self.context_length = context
        keys = ("self", "context") if context_pool else ("self",)
        self.kv_pools = tuple(KvPoolSpec(key, 1, 1, DIM) for key in keys)
        self.state_pools = (StatePoolSpec("state", (StateSpec("sum", 1, (HIDDEN,), torch.float32),)),)
        self.walks = {
            "prefill": Walk("prefill", dict.fromkeys(keys, RAGGED)),
            "decode": Walk("decode", {key: int(key == "self") for key in keys}),
        }
        self._embedding = random(vocab, HIDDEN)
        self._position = random(context, HIDDEN) * 1.5
        self._qkv = random(HIDDEN, HIDDEN + 2 * DIM) * 0.4
        self._head = random(HIDDEN, vocab)
        self.fail_at: int | None = None
        self.calls = 0
        self.lengths_seen: list[list[int]] = []

    def forward(self, batch: Batch) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("toy failure")
        x = self._embedding[batch.token_ids] + self._position[batch.positions]
        state = batch.state["state"]["sum"][0]
        slots = batch.state_slots["state"].long()
        previous = state[slots]
        if batch.fresh is not None:
            previous = torch.where(batch.fresh[:, None], 0.0, previous)
        bounds = batch.cu_seqlens.tolist()
        mixed = torch.empty_like(x)
        for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
            decay = previous[row]
            for token in range(begin, end):
                decay = 0.5 * decay + x[token]
                mixed[token] = decay
            previous[row] = decay
        state.index_copy_(0, slots, previous)
        for key, span in self.walks[batch.walk].streams.items():
            qkv = mixed @ self._qkv
            query = qkv[:, :HIDDEN].view(-1, HEADS, DIM)
            k, v = (part.view(-1, 1, DIM) for part in qkv[:, HIDDEN:].split(DIM, dim=1))
            out = batch.attention[key].run(0, query, k if span else None, v if span else None, DIM**-0.5)
            mixed = mixed + 2.0 * out.reshape(-1, HIDDEN)
        return mixed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._head


def serve_toy(
    model: ToyModel | None = None,
    *,
    name: str = "toy",
    kv_tokens: int = 512,
    page_size: int = 4,
    max_rows: int = 8,
    prefill_chunk: int = 16,
    overlap: bool = True,
    resident: bool = True,
    buckets: list[int] | None = None,
    mode: PlanMode = PlanMode.HOST_PLAN_FREE,
    max_context: int | None = None,
) -> ServedModel:
    return ServedModel.build(
        name,
        model or ToyModel(),
        CPU,
        torch.float32,
        PoolConfig(page_size, kv_tokens),
        SchedulerConfig(max_rows, max_context, prefill_chunk),
        EngineConfig(overlap, resident),
        buckets=buckets,
        mode=mode,
    )
