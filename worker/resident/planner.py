"""Turns the scheduler's choice of rows into a step: slots padded to a bucket, row writes, page plans.

A plan is prepared without moving anything that a later plan reads, except that the pages it appends are taken from the
pool. Then it is either committed (the mirror advances, once) or dropped (its pages go back). A step that was prepared
while the one before it ran, and is then committed as it is, is *promoted*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.phases import Stopwatch
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.pools.state import NULL_SLOT
from denizen.worker.resident.mirror import Advance
from denizen.worker.resident.tables import OUTPUT_COUNT, PAGES, ROW_TABLE, STATE_SLOTS, kv_table
from denizen.worker.resident.writes import RowWrites
from denizen.worker.sampling.params import Feature
from denizen.worker.sampling.sampler import SamplePlan
from denizen.worker.sampling.state import SamplerRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from denizen.worker.models.base import Walk
    from denizen.worker.pools.kv import KvPool
    from denizen.worker.request import Request
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.resident.tables import TableLayout

#: Graph slots of a bucket: step N+1 is prepared in one while N runs from the other.
GRAPH_SLOTS = 2


class PlanMode(Enum):
    """What a KV pool of a step needs from the host."""

    HOST_PLAN_FREE = "host_plan_free"  #: nothing: the step gathers its own page arrays
    LENGTHS_ONLY = "lengths_only"  #: the prefix sum of page counts, from the mirror
    FULL = "full"  #: the page arrays themselves

    def of_span(self, span: int) -> PlanMode:
        """The mode of a pool with this span: one that is only read keeps its full plan, also beside one that is not."""
        return self if span else PlanMode.FULL


@dataclass(frozen=True, slots=True)
class Entry:
    """A request's part in a step."""

    request: Request
    row: int
    start: int  #: position of its first token in the step
    count: int  #: tokens
    samples: bool  #: its last token is followed by a sampled one


#: Words to which sections of a step's inputs are aligned: 16 bytes.
_ALIGN = 4
_PADDING = np.zeros(_ALIGN, np.int32)


class StepInputs:
    """Everything a step reads from the host, in one int32 buffer, so that it travels in one copy."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self.sections: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        self._size = 0

    def put(self, name: str, values: np.ndarray) -> None:
        flat = values.reshape(-1)
        self.sections[name] = (self._size, self._size + len(flat), values.shape)
        self._parts.append(flat)
        self._size += len(flat)
        if padding := -self._size % _ALIGN:
            self._parts.append(_PADDING[:padding])
            self._size += padding

    def section(self, buffer: np.ndarray, name: str) -> np.ndarray | None:
        """The flat section ``name`` of a packed buffer; None if there is none."""
        place = self.sections.get(name)
        return None if place is None else buffer[place[0] : place[1]]

    def pack(self) -> np.ndarray:
        """The buffer; sections are ``buffer[begin:end]``, reshaped."""
        return np.concatenate(self._parts, dtype=np.int32, casting="unsafe")


@dataclass(frozen=True, eq=False)
class PageLists:
    """Host-made page arrays of a pool that a step only reads, padding rows included: see ``kernels/page_gather.py``.

    A context does not grow, so that they stay the same object for as long as the same rows decode together.
    """

    indptr: np.ndarray  #: int32 [bucket + 1]
    indices: np.ndarray  #: int32
    last_page_len: np.ndarray  #: int32 [bucket]

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same memory, for a step on the CPU."""
        return torch.from_numpy(self.indptr), torch.from_numpy(self.indices), torch.from_numpy(self.last_page_len)


@dataclass
class StepPlan:
    """A prepared step. ``number`` and ``graph_slot`` are given when it is committed."""

    walk: str
    bucket: int
    requests: list[Request]
    starts: np.ndarray  #: int32 [n], position of each request's first token in the step
    samples: list[bool] | None  #: whose last token is followed by a sampled one; None = all
    inputs: StepInputs
    buffer: np.ndarray
    modes: Mapping[str, PlanMode]
    sample: SamplePlan
    advance: Advance
    max_seqlen: int
    begins: list[SamplerRow] = field(default_factory=list)
    appended: list[tuple[Request, str, int]] = field(default_factory=list)  #: (request, pool key, page)
    reads: Mapping[str, PageLists] = field(default_factory=dict)  #: by key of the pools that the walk only reads
    all_logits: bool = False  #: logits of every token, for scoring
    number: int = 0
    graph_slot: int = 0

    @property
    def needs_host_plan(self) -> bool:
        """Whether any of its pools leaves something to the host."""
        return any(mode is not PlanMode.HOST_PLAN_FREE for mode in self.modes.values())

    @property
    def entries(self) -> list[Entry]:
        """Each request's part. Made when asked for: the steady step does not need it."""
        samples = self.samples or [True] * len(self.requests)
        advance = self.advance
        columns = (self.requests, advance.rows.tolist(), self.starts.tolist(), advance.counts.tolist(), samples)
        return [Entry(*parts) for parts in zip(*columns, strict=True)]

    @property
    def sampling(self) -> list[Request]:
        """The requests that get a token, in the order of the result's."""
        if self.samples is None:
            return self.requests
        return [request for request, samples in zip(self.requests, self.samples, strict=True) if samples]


@dataclass(frozen=True)
class _Group:
    """What stays the same while the same requests decode together."""

    requests: list[Request]
    rows: np.ndarray  #: int64 [n]
    ones: np.ndarray  #: int32 [n]
    slots: np.ndarray  #: int32 [bucket]
    sample: SamplePlan | None  #: None: it depends on how many tokens there are
    reads: dict[str, PageLists]


class Planner:
    """Plans the steps of one model. Used by the plan thread only."""

    def __init__(
        self,
        layout: TableLayout,
        mirror: Mirror,
        pools: Mapping[str, KvPool],
        walks: Mapping[str, Walk],
        buckets: Sequence[int],
        mode: PlanMode,
        resident: bool = True,
    ) -> None:
        """``mode``: of pools that a resident walk writes. ``buckets``: batch sizes of decode steps, rising."""
        self.layout = layout
        self.mirror = mirror
        self.pools = pools
        self.walks = walks
        self.resident = resident
        self.stopwatch = Stopwatch()
        self._group: _Group | None = None
        self.buckets = tuple(buckets)
        self._steps = 0
        self._of_walk = dict.fromkeys(walks, 0)
        self._grows = {name: walk.grows for name, walk in walks.items()}
        self._modes = {name: self._walk_modes(walk, mode) for name, walk in walks.items()}

    def _walk_modes(self, walk: Walk, mode: PlanMode) -> dict[str, PlanMode]:
        if not self.resident:
            mode = PlanMode.FULL
        return {key: mode.of_span(walk.streams[key]) for key in self.pools if key in walk.streams}

    def bucket_of(self, rows: int) -> int:
        """The smallest bucket that holds ``rows``."""
        return next(bucket for bucket in self.buckets if bucket >= rows)

    def pages_short(self, request: Request, walk: str = "decode") -> dict[str, int]:
        """Pages by pool that the request's next step of a span-1 walk needs and does not have."""
        row = request.row
        mirror = self.mirror
        short = {}
        for key in self._grows[walk]:
            if mirror.lengths[key][row] >= mirror.pages[key][row] * mirror.page_size[key]:
                short[key] = 1
        return short

    def prepare_decode(self, requests: Sequence[Request]) -> StepPlan | None:
        """One token for every request; None if the pages that it needs are not there (nothing is taken then)."""
        self.stopwatch.lap("plan_rest")
        group = self._group
        if group is None or group.requests != requests:
            group = self._group = self._make_group(list(requests))
        rows = group.rows
        appended = self._append_pages(requests, rows)
        if appended is None:
            return None
        bucket = len(group.slots)
        writes = RowWrites(self.layout)
        if not self.resident:
            for request in requests:
                self._rewrite_row(writes, request, appended)
        else:
            for key in {key for _, key, _ in appended}:
                own = [(request.row, page) for request, pool, page in appended if pool == key]
                where = np.asarray([row for row, _ in own], np.int64)
                writes.put_words(kv_table(key), where, PAGES + self.mirror.pages[key][where], [page for _, page in own])
        inputs = StepInputs()
        inputs.put("slots", group.slots)
        self._put_writes(inputs, writes)
        self._put_pages("decode", inputs, requests, rows, group.ones, bucket, appended)
        starts = self.mirror.lengths[self.walks["decode"].positions][rows]
        self.stopwatch.lap("plan_kv")
        sample = group.sample or self._sample(requests, bucket)
        self.stopwatch.lap("plan_sampler")
        return StepPlan(
            "decode",
            bucket,
            group.requests,
            starts,
            None,
            inputs,
            inputs.pack(),
            self._modes["decode"],
            sample,
            Advance(rows, group.ones, self._grows["decode"]),
            1,
            appended=appended,
            reads=group.reads,
        )

    def prepare_prefill(self, chunks: Sequence[tuple[Request, int]]) -> StepPlan:
        """The next ``count`` tokens of every request; the rows of requests that begin are written."""
        self.stopwatch.lap("plan_rest")
        rows = np.fromiter((request.row for request, _ in chunks), np.int64, len(chunks))
        counts = np.fromiter((count for _, count in chunks), np.int32, len(chunks))
        requests = [request for request, _ in chunks]
        starts = np.fromiter((request.computed for request in requests), np.int32, len(chunks))
        entries = [Entry(r, r.row, r.computed, count, r.computed + count == len(r.tokens)) for r, count in chunks]
        writes = RowWrites(self.layout)
        begins = []
        for request in requests:
            if request.computed == 0:
                self._write_row(writes, request)
                begins += self._sampler_rows(request)
            elif not self.resident:
                self._rewrite_row(writes, request, [])
        cu_seqlens = np.zeros(len(chunks) + 1, np.int32)
        np.cumsum(counts, out=cu_seqlens[1:])
        inputs = StepInputs()
        inputs.put("slots", rows.astype(np.int32))
        self._put_writes(inputs, writes)
        inputs.put("cu_seqlens", cu_seqlens)
        inputs.put("starts", starts)
        inputs.put("counts", counts)
        inputs.put(
            "tokens",
            np.concatenate([r.tokens[e.start : e.start + e.count] for r, e in zip(requests, entries, strict=True)]),
        )
        inputs.put("sampled", np.flatnonzero([entry.samples for entry in entries]).astype(np.int32))
        self._put_pages("prefill", inputs, requests, rows, counts, len(rows), [])
        self.stopwatch.lap("plan_kv")
        sampled = [(e.request.params, e.request.planned) for e in entries if e.samples]
        sample = SamplePlan.of(sampled, len(sampled))
        self.stopwatch.lap("plan_sampler")
        return StepPlan(
            "prefill",
            len(rows),
            requests,
            starts,
            [entry.samples for entry in entries],
            inputs,
            inputs.pack(),
            self._modes["prefill"],
            sample,
            Advance(rows, counts, self._grows["prefill"]),
            int(counts.max()),
            begins,
            reads=self._reads("prefill", requests, rows, len(rows)),
        )

    def _make_group(self, requests: list[Request]) -> _Group:
        rows = np.fromiter((request.row for request in requests), np.int64, len(requests))
        slots = np.full(self.bucket_of(len(requests)), NULL_SLOT, np.int32)
        slots[: len(rows)] = rows
        counted = any(request.params.features & Feature.MIN_TOKENS for request in requests)
        sample = None if counted else self._sample(requests, len(slots))
        reads = self._reads("decode", requests, rows, len(slots))
        return _Group(requests, rows, np.ones(len(rows), np.int32), slots, sample, reads)

    def _sample(self, requests: Sequence[Request], bucket: int) -> SamplePlan:
        return SamplePlan.of([(request.params, request.planned) for request in requests], bucket)

    def row_freed(self) -> None:
        """A request gave up its row: it may come back with another."""
        self._group = None

    def commit(self, plan: StepPlan) -> None:
        """The step will run next: moves the mirror."""
        self._steps += 1
        plan.number = self._steps
        # Slots alternate within a walk: an iteration has a step of each, and two iterations may be on the device.
        self._of_walk[plan.walk] += 1
        plan.graph_slot = self._of_walk[plan.walk] % GRAPH_SLOTS
        for request, key, page in plan.appended:
            assert request.held is not None
            request.held.pages[key].append(page)
            self.mirror.add_pages(request.row, key, 1)
        self.mirror.commit(plan.advance)

    def drop(self, plan: StepPlan) -> None:
        """The prepared step will not run: its pages go back, nothing else has moved."""
        for _, key, page in plan.appended:
            self.pools[key].give([page])

    def _append_pages(self, requests: Sequence[Request], rows: np.ndarray) -> list[tuple[Request, str, int]] | None:
        appended: list[tuple[Request, str, int]] = []
        for key in self._grows["decode"]:
            mirror = self.mirror
            short = mirror.lengths[key][rows] >= mirror.pages[key][rows] * mirror.page_size[key]
            if not short.any():
                continue
            indices = np.flatnonzero(short)
            pages = self.pools[key].take(len(indices))
            if pages is None:
                for _, other, page in appended:
                    self.pools[other].give([page])
                return None
            appended += [(requests[index], key, page) for index, page in zip(indices.tolist(), pages, strict=True)]
        return appended

    def _put_writes(self, inputs: StepInputs, writes: RowWrites) -> None:
        if len(writes):
            runs, payload = writes.pack()
            inputs.put("runs", runs)
            inputs.put("payload", payload)

    def _write_row(self, writes: RowWrites, request: Request) -> None:
        """The whole row of a request that begins: one run a KV pool, and one for the rest.

        Its length is 0 where tokens are yet to come, and its context's where it holds one.
        """
        held = request.held
        assert held is not None
        for key in self.pools:
            length = int(self.mirror.lengths[key][held.row])
            writes.put(kv_table(key), held.row, 0, [length] + [0] * (PAGES - 1) + held.pages[key])
        state = [held.state[key] for key in self.layout.state_pools]
        head = np.zeros(self.layout.sampler_column, np.int32)
        head[OUTPUT_COUNT] = len(request.outputs)
        head[STATE_SLOTS : STATE_SLOTS + len(state)] = state
        writes.put(ROW_TABLE, held.row, 0, np.concatenate([head, request.params.packed]))

    def _rewrite_row(self, writes: RowWrites, request: Request, appended: list[tuple[Request, str, int]]) -> None:
        """Without residency: what the host knows of the row, again. Last token and output count are the device's."""
        held = request.held
        assert held is not None
        for key in self.pools:
            pages = held.pages[key] + [page for owner, pool, page in appended if owner is request and pool == key]
            length = int(self.mirror.lengths[key][held.row])
            writes.put(kv_table(key), held.row, 0, [length] + [0] * (PAGES - 1) + pages)
        head = np.zeros(self.layout.sampler_column - STATE_SLOTS, np.int32)
        head[: len(self.layout.state_pools)] = [held.state[key] for key in self.layout.state_pools]
        writes.put(ROW_TABLE, held.row, STATE_SLOTS, np.concatenate([head, request.params.packed]))

    def _sampler_rows(self, request: Request) -> list[SamplerRow]:
        features = request.params.features
        if not features & (Feature.PENALTY | Feature.BIAS):
            return []
        prompt = request.prompt if features & Feature.PENALTY else None
        return [SamplerRow(request.row, prompt, tuple(request.outputs), request.params.logit_bias)]

    def _put_pages(
        self,
        walk: str,
        inputs: StepInputs,
        requests: Sequence[Request],
        rows: np.ndarray,
        counts: np.ndarray,
        bucket: int,
        appended: list[tuple[Request, str, int]],
    ) -> None:
        """The host's page arrays of written pools that need them: see ``kernels/page_gather.py`` for their meaning."""
        for key, mode in self._modes[walk].items():
            if mode is PlanMode.HOST_PLAN_FREE or not self.walks[walk].streams[key]:
                continue
            lengths = self._lengths(key, rows, counts if key in self._grows[walk] else 0, bucket)
            if mode is PlanMode.LENGTHS_ONLY:
                inputs.put(f"indptr:{key}", _prefix_sum(-(-lengths // self.mirror.page_size[key])))
                continue
            extra: dict[int, list[int]] = {}
            for request, pool, page in appended:
                if pool == key:
                    extra.setdefault(request.row, []).append(page)
            lists = self._page_lists(key, requests, lengths, extra)
            inputs.put(f"indptr:{key}", lists.indptr)
            inputs.put(f"indices:{key}", lists.indices)
            inputs.put(f"last_page_len:{key}", lists.last_page_len)

    def _reads(self, walk: str, requests: Sequence[Request], rows: np.ndarray, bucket: int) -> dict[str, PageLists]:
        """Pools that the walk only reads, which the host always plans in full."""
        return {
            key: self._page_lists(key, requests, self._lengths(key, rows, 0, bucket), {})
            for key, span in self.walks[walk].streams.items()
            if not span
        }

    def _lengths(self, key: str, rows: np.ndarray, counts: np.ndarray | int, bucket: int) -> np.ndarray:
        """Lengths int32 ``[bucket]`` that the step sees in the pool; padding rows have 1."""
        lengths = np.ones(bucket, np.int32)
        lengths[: len(rows)] = np.maximum(self.mirror.step_lengths(key, rows, counts), 1)
        return lengths

    def _page_lists(
        self, key: str, requests: Sequence[Request], lengths: np.ndarray, extra: Mapping[int, list[int]]
    ) -> PageLists:
        """``extra``: pages by row that the plan appends."""
        size = self.mirror.page_size[key]
        page_counts = -(-lengths // size)
        indices: list[int] = []
        for request, count in zip(requests, page_counts, strict=False):
            assert request.held is not None
            pages = request.held.pages[key] + extra.get(request.row, [])
            indices += pages[:count] or [SINK_PAGE]
        indices += [SINK_PAGE] * (len(lengths) - len(requests))
        return PageLists(_prefix_sum(page_counts), np.asarray(indices, np.int32), (lengths - 1) % size + 1)


def _prefix_sum(counts: np.ndarray) -> np.ndarray:
    total = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=total[1:])
    return total
