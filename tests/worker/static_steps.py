"""The runner of CUDA workers on the CPU: its static steps run kernel by kernel, over a stand-in for FlashInfer's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from denizen.worker.attention.flashinfer import PageArrays
from denizen.worker.graphs import GraphRunner, prefill_rows
from denizen.worker.models.base import hears
from denizen.worker.resident.planner import PlanMode
from denizen.worker.resident.tables import DeviceTables
from denizen.worker.scheduler import Scheduler

from tests.worker.toy import CPU, serve_toy

if TYPE_CHECKING:
    from denizen.worker.attention.torch_ref import PagedAttention

BUCKETS, TOKENS, PREFILL_ROWS = [2, 5, 8], [8, 16], (3,)


class Step:
    """A static step whose attention is the CPU reference over the step's page arrays."""

    lengths_only = True

    def __init__(self, pool: Pool, rows: int, tokens: int, causal: bool) -> None:
        self.pages = PageArrays(rows, pool.reference.keys.shape[1], CPU)
        self.qo_indptr = torch.arange(rows + 1, dtype=torch.int32)
        self.write_at = torch.zeros(tokens, dtype=torch.int32)
        self.shape = SimpleNamespace(rows=rows, tokens=tokens)
        self.planned: list[list[int]] = []
        self.recorded = 0
        self._pool = pool
        self._causal = causal

    def record_plan(self) -> None:
        self.recorded += 1

    def plan(self, kv_indptr: torch.Tensor, qo_indptr: torch.Tensor | None = None) -> None:
        self.planned.append(kv_indptr.tolist())

    def run(self, layer: int, query: torch.Tensor, key, value, scale: float) -> torch.Tensor:
        if key is not None:
            where = self.write_at.long()
            for cache, new in zip(self.cache(layer), (key, value), strict=True):
                cache.view(-1, *new.shape[1:])[where] = new
        return self.attend(layer, query, scale)

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pool.keys[layer], self._pool.values[layer]

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        pages, live, reference = self.pages, int(self.qo_indptr[-1]), self._pool.reference
        counts = self.qo_indptr[1:] - self.qo_indptr[:-1]
        rows = int((counts > 0).sum())
        step = reference.bind(
            pages.indptr[: rows + 1],
            pages.indices,
            pages.last_page_len[:rows],
            self.qo_indptr[: rows + 1],
            int(counts.max()),
            self._causal,
        )
        if self.planned:  # the host's plan says the same as the arrays
            assert self.planned[-1] == pages.indptr.tolist()
        out = torch.full_like(query, torch.nan)
        out[:live] = step._attend(layer, query[:live], scale or query.shape[-1] ** -0.5)
        return out


class Pool:
    def __init__(self, reference: PagedAttention) -> None:
        self.reference = reference
        self.page_size = reference.page_size
        self.keys, self.values = reference.keys, reference.values

    def decode_step(self, rows: int, workspace: object) -> Step:
        return Step(self, rows, rows, causal=False)

    def prefill_step(self, rows: int, tokens: int, workspace: object, causal: bool) -> Step:
        return Step(self, rows, tokens, causal)

    def float_workspace(self, rows: int, tokens: int) -> torch.Tensor:
        return torch.empty(1)


def serve_static(*, resident: bool = True, mode: PlanMode = PlanMode.HOST_PLAN_FREE, **options):
    """A model served by the graph runner; a toy unless another is given."""
    served = serve_toy(buckets=BUCKETS, resident=resident, mode=mode, **options)
    old, scheduler = served.runner, served.scheduler
    rows, tokens = PREFILL_ROWS, TOKENS
    if hears(served.model):
        rows, tokens = prefill_rows(served.model, scheduler.rows.capacity), [8, scheduler.prefill_chunk]
    tables = DeviceTables(old.tables.layout, CPU)
    pools = {key: Pool(attention) for key, attention in old.attention.items()}
    served.runner = GraphRunner(
        old.model,
        tables,
        pools,
        old.state,
        old.sampler.state,
        mode if resident else PlanMode.FULL,
        BUCKETS,
        tokens,
        rows,
    )
    served.scheduler = Scheduler(
        scheduler.rows,
        scheduler.kv,
        scheduler.state,
        scheduler.mirror,
        scheduler.planner,
        scheduler.context,
        scheduler.prefill_chunk,
        rows,
        whole=scheduler.whole,
    )
    return served
