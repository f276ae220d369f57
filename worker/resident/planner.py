"""Turns the scheduler's choice of rows into a step: slots padded to a bucket, row writes, page plans.

A plan is prepared without moving anything that a later plan reads, except that the pages it appends are taken from the
pool. Then it is either committed (the mirror advances, once) or dropped (its pages go back). A step that was prepared
while the one before it ran, and is then committed as it is, is *promoted*.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.phases import Stopwatch
from denizen.worker.resident.inputs import StepInputs, inputs_of
from denizen.worker.resident.ledger import Group
from denizen.worker.resident.mirror import Advance
from denizen.worker.resident.page_lists import PageLists, prefix_sum
from denizen.worker.resident.row_images import Appended, pages_of, rewrite_row, sampler_rows, write_row
from denizen.worker.resident.tables import PAGES, kv_table
from denizen.worker.resident.writes import RowWrites
from denizen.worker.sampling.params import Feature
from denizen.worker.sampling.sampler import PLAIN, SamplePlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from denizen.worker.models.base import Speech, Walk
    from denizen.worker.pools.kv import KvPool
    from denizen.worker.request import Request
    from denizen.worker.resident.ledger import Ledger
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.resident.tables import TableLayout
    from denizen.worker.sampling.params import SamplingParams
    from denizen.worker.sampling.state import SamplerRow

#: Graph slots of a walk's bucket, and so the steps of a walk that may be under way: step N+1 waits in one while N runs
#: from the other.
GRAPH_SLOTS = 2


#: A step that appends pages costs the host some ten microseconds more, however many: they are appended so many steps
#: ahead, unless pages are scarce.
_AHEAD = 16


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


@dataclass(slots=True)
class StepPlan:
    """A prepared step. What stands after ``all_logits`` is given when it is committed."""

    walk: str
    bucket: int
    requests: list[Request]
    starts: np.ndarray | None  #: int32 [n], position of each request's first token in the step; None: the group's
    samples: list[bool] | None  #: whose last token is followed by a sampled one; None = all
    inputs: StepInputs
    buffer: np.ndarray
    modes: Mapping[str, PlanMode]
    sample: SamplePlan
    advance: Advance
    max_seqlen: int
    begins: Sequence[SamplerRow] = ()
    appended: Sequence[Appended] = ()
    group: Group | None = None  #: of a decode step
    clock: int = 0  #: and the mirror's clock before it
    reads: Mapping[str, PageLists] = field(default_factory=dict)  #: by key of the pools that the walk only reads
    all_logits: bool = False  #: logits of every token, for scoring
    number: int = 0
    graph_slot: int = 0
    first: np.ndarray | None = None  #: of a prefill step: its ``positions``
    row_inputs: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)
    #: by name: what the walk's ``inputs`` are of each request, of a prefill step
    ends: Sequence[int] = ()  #: places in ``sampling`` of requests whose last token, by ``max_tokens``, this step gives

    @property
    def entries(self) -> list[Entry]:
        """Each request's part. Made when asked for: the steady step does not need it."""
        samples = self.samples or [True] * len(self.requests)
        advance = self.advance
        starts = self.starts
        if starts is None:
            assert self.group is not None
            starts = self.group.lengths_at + self.clock
        columns = (self.requests, advance.rows.tolist(), starts.tolist(), advance.counts.tolist(), samples)
        return [Entry(*parts) for parts in zip(*columns, strict=True)]

    @property
    def counted(self) -> bool:
        """Who holds its rows is counted by row: not a step of every row that decodes."""
        return self.group is None or not self.group.whole

    @property
    def positions(self) -> np.ndarray:
        """int64 [m], index of the output token that each request of ``sampling`` gets. Known once it is committed."""
        if self.group is not None:
            return self.group.outputs_at + self.clock
        assert self.first is not None
        return self.first

    @property
    def sampling(self) -> list[Request]:
        """The requests that get a token, in the order of the result's."""
        if self.samples is None:
            return self.requests
        return [request for request, samples in zip(self.requests, self.samples, strict=True) if samples]


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
        row_inputs: Callable[[Speech], Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        """``mode``: of pools that a resident walk writes. ``buckets``: batch sizes of decode steps, rising.

        ``row_inputs``: what a request that begins brings into its step, of a model that hears.
        """
        self.layout = layout
        self.mirror = mirror
        self.pools = pools
        self.walks = walks
        self.resident = resident
        self.stopwatch = Stopwatch()
        self._row_inputs = row_inputs
        self.buckets = tuple(buckets)
        #: Steps ahead of which a row gets its next page, by pool: never two pages at once.
        self.ahead = {key: min(_AHEAD, pool.page_size) for key, pool in pools.items()}
        self._steps = 0
        self._of_walk = dict.fromkeys(walks, 0)
        self._slots_alone: dict[int, StepInputs] = {}  #: by bucket: where the slots are if there is nothing else
        self._read_only = {name: [key for key, span in w.streams.items() if not span] for name, w in walks.items()}
        self._grows = {name: walk.grows for name, walk in walks.items()}
        self._modes = {name: self._walk_modes(walk, mode) for name, walk in walks.items()}
        #: A decode step needs nothing from the host but its slots, the pages that it appends, and lists of its group's.
        self._free = resident and mode is PlanMode.HOST_PLAN_FREE

    def _walk_modes(self, walk: Walk, mode: PlanMode) -> dict[str, PlanMode]:
        if not self.resident:
            mode = PlanMode.FULL
        return {key: mode.of_span(walk.streams[key]) for key in self.pools if key in walk.streams}

    def bucket_of(self, rows: int) -> int:
        """The smallest bucket that holds ``rows``."""
        return self.buckets[bisect_left(self.buckets, rows)]

    def pages_short(self, request: Request, walk: str = "decode") -> dict[str, int]:
        """Pages by pool that the request's next step of a span-1 walk needs and does not have."""
        row = request.row
        mirror = self.mirror
        short = {}
        for key in self._grows[walk]:
            if mirror.length(row, key) >= mirror.pages[key][row] * mirror.page_size[key]:
                short[key] = 1
        return short

    def group(self, ledger: Ledger, rows: np.ndarray, whole: bool = True) -> Group:
        """The requests of ``rows`` (int64, rising), to decode together; ``whole``: all that decode."""
        slots = np.zeros(self.bucket_of(len(rows)), np.int32)  # padded with the null row
        slots[: len(rows)] = rows
        inputs = self._slots_alone.get(len(slots))
        if inputs is None:
            inputs = self._slots_alone[len(slots)] = StepInputs()
            inputs.put("slots", slots)
        group = Group.form(ledger, self.mirror, rows, slots, self.walks["decode"].positions, inputs, whole)
        if self._read_only["decode"]:
            group.reads = self._reads("decode", rows, len(slots))
        return group

    def prepare_decode(self, group: Group) -> StepPlan | None:
        """One token for every row of the group; None if the pages that it needs are not there (none are taken then)."""
        self.stopwatch.lap("plan_rest")
        appended = self._append_pages(group)
        if appended is None:
            return None
        inputs, buffer = group.inputs, group.slots
        if appended or not self._free:
            inputs = self._decode_inputs(group, appended)
            buffer = inputs.pack()
        self.stopwatch.lap("plan_kv")
        sample = group.sample
        if sample is None or sample.features & Feature.MIN_TOKENS:  # which changes with the outputs
            sample = group.sample = self._sample(group)
        self.stopwatch.lap("plan_sampler")
        return StepPlan(
            "decode",
            len(group.slots),
            group.requests,
            None,
            None,
            inputs,
            buffer,
            self._modes["decode"],
            sample,
            group.advance,
            1,
            appended=appended,
            group=group,
            clock=self.mirror.clock,
            reads=group.reads,
        )

    def _decode_inputs(self, group: Group, appended: Sequence[Appended]) -> StepInputs:
        writes = RowWrites(self.layout)
        if not self.resident:
            for index, request in enumerate(group.requests):
                rewrite_row(writes, self.mirror, request, pages_of(index, appended))
        else:
            for key, places, pages in appended:
                where = group.rows[places]
                writes.put_words(kv_table(key), where, PAGES + self.mirror.pages[key][where], pages)
        inputs = StepInputs()
        inputs.put("slots", group.slots)
        self._put_writes(inputs, writes)
        if not self._free:
            counts, bucket = group.advance.counts, len(group.slots)
            self._put_pages("decode", inputs, group.rows, counts, bucket, appended)
        return inputs

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
                write_row(writes, self.mirror, request)
                begins += sampler_rows(request)
            elif not self.resident:
                rewrite_row(writes, self.mirror, request, {})
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
        samples = [entry.samples for entry in entries]
        sampled = np.flatnonzero(samples)
        inputs.put("sampled", sampled.astype(np.int32))
        self._put_pages("prefill", inputs, rows, counts, len(rows), [])
        self.stopwatch.lap("plan_kv")
        # Every token of a request that is being prefilled has arrived.
        asked = [(e.request.params, len(e.request.outputs)) for e in entries if e.samples]
        bits = np.fromiter((params.features for params, _ in asked), np.int32, len(asked))
        sample = SamplePlan.of(bits, len(asked), lambda: asked)
        self.stopwatch.lap("plan_sampler")
        return StepPlan(
            "prefill",
            len(rows),
            requests,
            starts,
            samples,
            inputs,
            inputs.pack(),
            self._modes["prefill"],
            sample,
            Advance(rows, counts, self._grows["prefill"], rows[sampled]),
            int(counts.max()),
            begins,
            reads=self._reads("prefill", rows, len(rows)),
            row_inputs=inputs_of(requests, self._row_inputs) if self._row_inputs else {},
        )

    def _sample(self, group: Group) -> SamplePlan:
        if not group.ledger.asking:
            return PLAIN

        def rows() -> list[tuple[SamplingParams, int]]:
            indices = (group.outputs_at + self.mirror.clock).tolist()
            return [(request.params, index) for request, index in zip(group.requests, indices, strict=True)]

        return SamplePlan.of(group.ledger.features[group.rows], len(group.slots), rows)

    def commit(self, plan: StepPlan) -> None:
        """The step will run, after those of its walk that were committed before: moves the mirror."""
        self._steps += 1
        plan.number = self._steps
        # Slots alternate within a walk: each walk has its own, and its own steps under way.
        self._of_walk[plan.walk] += 1
        plan.graph_slot = self._of_walk[plan.walk] % GRAPH_SLOTS
        mirror, group = self.mirror, plan.group
        for key, places, pages in plan.appended:
            mirror.add_pages(plan.advance.rows[places], key, pages)
        if group is None:
            plan.first = mirror.commit(plan.advance)
            return
        assert plan.clock == mirror.clock
        if group.whole:
            for key, _, _ in plan.appended:
                mirror.enough_until[key] = int(mirror.short_from(key, group.rows).min())
            mirror.tick()
        else:
            mirror.commit(plan.advance)

    def drop(self, plan: StepPlan) -> None:
        """The prepared step will not run: its pages go back, nothing else has moved."""
        self._give_back(plan.appended)

    def _give_back(self, appended: Sequence[Appended]) -> None:
        for key, _, pages in reversed(appended):
            self.pools[key].give(pages)

    def _append_pages(self, group: Group) -> Sequence[Appended] | None:
        """Pages for the rows that have none for this step, and with them for those that soon have none: then most steps
        append nothing. Where pages are scarce, for this step alone; None if there are not even these."""
        appended: list[Appended] = []
        mirror = self.mirror
        clock = mirror.clock
        for key, until in mirror.enough_until.items():
            if clock < until:
                continue
            pool = self.pools[key]
            short = mirror.short_from(key, group.rows)
            first = int(short.min())
            if clock < first:  # who was short has left
                if group.whole:
                    mirror.enough_until[key] = first
                continue
            ahead = self.ahead[key] if 2 * len(group.requests) <= pool.free else 1
            # A row that ends before needs no more; it could outgrow the table.
            ends = group.ledger.limit[group.rows] - group.outputs_at
            places = ((short < clock + ahead) & (short < ends)).nonzero()[0]
            pages = pool.take(len(places))
            if pages is None:
                self._give_back(appended)
                return None
            if pages:
                appended.append((key, places, pages))
        return appended or ()

    def _put_writes(self, inputs: StepInputs, writes: RowWrites) -> None:
        if len(writes):
            runs, payload = writes.pack()
            inputs.put("runs", runs)
            inputs.put("payload", payload)

    def _put_pages(
        self,
        walk: str,
        inputs: StepInputs,
        rows: np.ndarray,
        counts: np.ndarray,
        bucket: int,
        appended: Sequence[Appended],
    ) -> None:
        """The host's page arrays of written pools that need them: see ``kernels/page_gather.py`` for their meaning."""
        for key, mode in self._modes[walk].items():
            if mode is PlanMode.HOST_PLAN_FREE or not self.walks[walk].streams[key]:
                continue
            lengths = self._lengths(key, rows, counts if key in self._grows[walk] else 0, bucket)
            size = self.mirror.page_size[key]
            if mode is PlanMode.LENGTHS_ONLY:
                inputs.put(f"indptr:{key}", prefix_sum(-(-lengths // size)))
                continue
            owned = []
            for index, row in enumerate(rows.tolist()):
                extra = pages_of(index, appended)
                owned.append(self.mirror.pages_of(row, key) + ([extra[key]] if key in extra else []))
            lists = PageLists.of(owned, lengths, size)
            inputs.put(f"indptr:{key}", lists.indptr)
            inputs.put(f"indices:{key}", lists.indices)
            inputs.put(f"last_page_len:{key}", lists.last_page_len)

    def _reads(self, walk: str, rows: np.ndarray, bucket: int) -> dict[str, PageLists]:
        """Pools that the walk only reads, which the host always plans in full."""
        reads = {}
        for key in self._read_only[walk]:
            owned = [self.mirror.pages_of(row, key) for row in rows.tolist()]
            reads[key] = PageLists.of(owned, self._lengths(key, rows, 0, bucket), self.mirror.page_size[key])
        return reads

    def _lengths(self, key: str, rows: np.ndarray, counts: np.ndarray | int, bucket: int) -> np.ndarray:
        """Lengths int32 ``[bucket]`` that the step sees in the pool; padding rows have 1."""
        lengths = np.ones(bucket, np.int32)
        lengths[: len(rows)] = np.maximum(self.mirror.step_lengths(key, rows, counts), 1)
        return lengths
