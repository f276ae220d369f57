"""The runner of a CUDA worker: a step is one graph, captured at load by (walk, bucket, graph slot, sampler variant).

One thread plans, launches and collects: a launch returns at once, the GPU works through what was queued, and results
are polled from host memory. So at most two steps of a walk are under way, one a graph slot, and what a slot owns (input
block, planner workspace, mailbox) is rewritten only after its tokens have arrived (E2, E3, E6).

Decode steps run in the caller's stream, prefill steps in one of their own beside it, each in the order of its launches
(E1, E4). No event lies between the two: a row decodes only after the host has seen its last prefill step arrive, and
steps of the two walks have no row, page, state slot or scratch memory in common. They share what nobody reads for a
live row (null row, sink page, null slot) and what nobody writes (weights, tables of angles), and nothing else.
"""

from __future__ import annotations

import logging
import time
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.kernels.row_writes import apply_row_writes
from denizen.worker.attention.flashinfer import SlotWorkspace, padded_indptr
from denizen.worker.errors import DeviceError, StepError
from denizen.worker.memory import upload
from denizen.worker.models.base import hears
from denizen.worker.phases import Stopwatch
from denizen.worker.resident.planner import GRAPH_SLOTS, PlanMode
from denizen.worker.row_staging import RowStaging
from denizen.worker.runner import StepResult
from denizen.worker.sampling.captured import Variant
from denizen.worker.sampling.params import Feature
from denizen.worker.sampling.scoring import score_prompt
from denizen.worker.static_step import DecodeStep, Mailbox, PrefillStep, StaticStep, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from denizen.worker.attention.flashinfer import FlashInferAttention
    from denizen.worker.models.base import Model
    from denizen.worker.resident.page_lists import PageLists
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.resident.tables import DeviceTables
    from denizen.worker.sampling.scoring import PromptScores
    from denizen.worker.sampling.state import SamplerState

_log = logging.getLogger(__name__)

#: Batch sizes of decode graphs. Fewer rows than the first run in it: a product of 16 rows costs what one of 1 costs.
DECODE_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
#: Token counts of prefill graphs, and the rows that each can hold.
PREFILL_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
PREFILL_ROWS = 16
#: Token counts beside the most, of a model that hears: its audio costs what its rows cost, its prompts next to nothing.
SPEECH_BUCKETS = (64, 256)

#: Priorities of the two walks' kernels, lower = sooner. A graph's nodes keep that of the stream they were captured in.
DECODE_PRIORITY, PREFILL_PRIORITY = -1, 0

#: While polling: how often the stream is asked whether it has failed, and how long a finished stream may owe a result.
_CHECK_S = 0.25
_LOST_S = 5.0


def decode_buckets(rows: int) -> tuple[int, ...]:
    """The batch sizes that hold up to ``rows``."""
    return (*(bucket for bucket in DECODE_BUCKETS if bucket < rows), rows)


def prefill_tokens(model: Model, chunk: int) -> tuple[int, ...]:
    """The token counts that hold up to ``chunk``."""
    buckets = SPEECH_BUCKETS if hears(model) else PREFILL_BUCKETS
    return (*(bucket for bucket in buckets if bucket < chunk), chunk)


def prefill_rows(model: Model, rows: int) -> tuple[int, ...]:
    """The batch sizes of prefill graphs where ``rows`` may run."""
    if not hears(model):
        return (min(PREFILL_ROWS, rows),)
    fitting = tuple(bucket for bucket in model.prefill_rows if bucket <= rows)
    return fitting or (rows,)


#: Rows of a decode graph; rows and tokens of a prefill graph.
Bucket = int | tuple[int, int]


def _size(bucket: Bucket) -> tuple[int, ...]:
    return bucket if isinstance(bucket, tuple) else (bucket,)


def _stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]


class Launched:
    """A step under way."""

    def __init__(
        self,
        step: StaticStep,
        plan: StepPlan,
        stream: torch.cuda.Stream | None,
        scores: list[PromptScores] | None = None,
        logits: torch.Tensor | None = None,
    ) -> None:
        """``stream``: the step's; None = the caller's. ``logits``: of every token, to go into the result."""
        self._mailbox = step.mailbox
        self._hears = step.hears
        self._plan = plan
        self._scores = scores
        self._logits = logits
        self._stream = stream
        self._count = self._mailbox.expect()

    @property
    def arrived(self) -> bool:
        return bool(self._mailbox.view[0] == self._count)

    def wait(self) -> None:
        """Polls until the tokens are there. Raises what the device raises."""
        view, count = self._mailbox.view, self._count
        check = time.monotonic() + _CHECK_S
        lost: float | None = None
        while view[0] != count:
            now = time.monotonic()
            if now < check:
                continue
            check = now + _CHECK_S
            stream = self._stream or torch.cuda.current_stream()
            if stream.query():  # raises if a kernel failed
                lost = lost or now + _LOST_S
                if now > lost:
                    raise StepError("the step has run, but its tokens have not arrived")

    def result(self) -> StepResult:
        """What has arrived, copied: the slot's next step overwrites it (E6)."""
        plan, logprobs = self._plan, self._mailbox.logprobs
        chosen = slice(len(plan.requests)) if plan.samples is None else np.flatnonzero(plan.samples)
        tokens = self._mailbox.view[1:][chosen].astype(np.int64)
        if self._logits is not None and self._stream is not None:
            # Computed before the tokens were published; their memory belongs to the step's stream.
            self._logits.record_stream(torch.cuda.current_stream())
        result = StepResult(tokens, prompt_scores=self._scores, logits=self._logits)
        if self._hears:
            result.logprob = logprobs.logprob.numpy()[chosen].copy()
            if plan.walk == "prefill":
                result.observed = logprobs.observed.numpy()[chosen].copy()
        if plan.sample.features & Feature.LOGPROBS:
            result.logprob = logprobs.logprob.numpy()[chosen].copy()
            result.top_ids = logprobs.top_ids.numpy()[chosen].copy()
            result.top_logprobs = logprobs.top_logprobs.numpy()[chosen].copy()
        return result


class GraphRunner:
    """Launches the steps of one model. Used by the engine's thread only."""

    def __init__(
        self,
        model: Model,
        tables: DeviceTables,
        attention: Mapping[str, FlashInferAttention],
        state: Mapping[str, Mapping[str, torch.Tensor]],
        sampler: SamplerState,
        mode: PlanMode,
        rows: Sequence[int],
        tokens: Sequence[int],
        prefill_rows: Sequence[int],
    ) -> None:
        """``attention``: by KV pool key. ``rows``: buckets of decode; ``tokens``, ``prefill_rows``: of prefill; rising.
        ``mode``: of pools that a walk writes.

        Raises :class:`DeviceError` for a FlashInfer release that cannot run so.
        """
        self.model = model
        self.tables = tables
        self.sampler = sampler
        self.attention = attention
        self.state = state
        self.stopwatch = Stopwatch()
        #: host plans made for pools that a walk only reads: one for each graph slot when its rows change
        self.read_plans = 0
        self._device = tables.words.device
        self._rows, self._tokens, self._prefill_rows = tuple(rows), tuple(tokens), tuple(prefill_rows)
        (page_size,) = {pool.page_size for pool in attention.values()}
        self._around = Surroundings(model, tables, state, sampler, page_size, mode)
        on_gpu = self._device.type == "cuda"
        #: where eager and captured prefill steps run; None on a CPU
        self._prefill_stream = _stream(self._device, PREFILL_PRIORITY) if on_gpu else None
        self._steps: dict[tuple[str, Bucket, int], StaticStep] = {}
        self._graphs: dict[tuple[str, Bucket, int, Variant], torch.cuda.CUDAGraph] = {}
        self._mailboxes: list[Mailbox] = []
        self._planned: dict[tuple[str, int, str], PageLists] = {}
        self._make_decode_steps(attention)
        self._make_prefill_steps(attention)
        for step in self._steps.values():
            for key, bound in step.attention.items():
                if step.mode(key) is not PlanMode.FULL and not bound.lengths_only:
                    raise DeviceError(
                        "this FlashInfer release has no known planner: use --no-resident, or FlashInfer 0.6.14"
                    )

    def _make_decode_steps(self, attention: Mapping[str, FlashInferAttention]) -> None:
        largest = max(self._rows)
        for slot, workspaces in enumerate(self._workspaces("decode", attention, largest, largest)):
            box = self._mailbox(largest)
            for bucket in self._rows:
                bound = {key: attention[key].decode_step(bucket, memory) for key, memory in workspaces.items()}
                self._steps["decode", bucket, slot] = DecodeStep(self._around, bound, bucket, self._device, box)

    def _make_prefill_steps(self, attention: Mapping[str, FlashInferAttention]) -> None:
        walk, most = self.model.walks["prefill"], max(self._prefill_rows)
        for slot, workspaces in enumerate(self._workspaces("prefill", attention, most, max(self._tokens))):
            box = self._mailbox(most)
            staging = {name: RowStaging(spec, most, self._device) for name, spec in walk.inputs.items()}
            for rows, tokens in product(self._prefill_rows, self._tokens):
                bound = {
                    key: attention[key].prefill_step(rows, tokens, memory, causal=key in walk.grows)
                    for key, memory in workspaces.items()
                }
                step = PrefillStep(self._around, bound, rows, tokens, self._device, box, staging)
                self._steps["prefill", (rows, tokens), slot] = step

    def _workspaces(
        self, walk: str, attention: Mapping[str, FlashInferAttention], rows: int, tokens: int
    ) -> list[dict[str, SlotWorkspace]]:
        """The planner's memory, by graph slot and pool. All share the partial results, since they run in one stream."""
        keys = self.model.walks[walk].streams
        floats = max((attention[key].float_workspace(rows, tokens) for key in keys), key=torch.Tensor.numel)
        return [{key: SlotWorkspace.allocate(floats) for key in keys} for _ in range(GRAPH_SLOTS)]

    def _mailbox(self, rows: int) -> Mailbox:
        box = Mailbox(rows, self.model.vocab_size, self._device)
        self._mailboxes.append(box)
        return box

    @torch.inference_mode()
    def capture(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Captures every graph. Rows are padding meanwhile, so that no table, state or page changes.

        ``progress(done, total)`` is called after each. A walk's graphs share one memory pool, since they never run at
        once, and one capture stream, by which torch gives them a cuBLAS workspace of their own.
        """
        began = time.monotonic()
        variants = {walk: self._variants(walk) for walk in ("decode", "prefill")}
        total = sum(len(variants[walk]) for walk, _, _ in self._steps)
        pools = {walk: torch.cuda.graph_pool_handle() for walk in ("decode", "prefill")}
        priorities = {"decode": DECODE_PRIORITY, "prefill": PREFILL_PRIORITY}
        sides = {walk: _stream(self._device, priority) for walk, priority in priorities.items()}
        # Largest first: what the smaller ones need then fits into memory that the pool has already.
        for (walk, bucket, slot), step in sorted(self._steps.items(), key=lambda item: _size(item[0][1]), reverse=True):
            self._plan_padding(step)
            for variant in variants[walk]:
                if slot == 0:
                    step.finish(step.forward(), variant)  # compiles kernels and lets libraries choose theirs
                torch.cuda.synchronize(self._device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.stream(sides[walk]):
                    graph.capture_begin(pool=pools[walk])
                    step.finish(step.forward(), variant)
                    graph.capture_end()
                self._graphs[walk, bucket, slot, variant] = graph
                if progress is not None:
                    progress(len(self._graphs), total)
            for bound in step.attention.values():
                bound.freeze()
        torch.cuda.synchronize(self._device)
        self._planned.clear()
        for box in self._mailboxes:
            box.reset()
        torch.cuda.synchronize(self._device)
        _log.info("captured %d graphs in %.1f s", total, time.monotonic() - began)

    def _variants(self, walk: str) -> Sequence[Variant]:
        """What is captured; the rest runs kernel by kernel. Prefill of audio is long, and nearly always plain."""
        return (Variant.PLAIN,) if walk == "prefill" and hears(self.model) else tuple(Variant)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Queues the step on its walk's stream and returns at once, unless it scores a prompt."""
        stream = self._prefill_stream if plan.walk == "prefill" else None
        if stream is None:
            return self._launch(plan, None)
        with torch.cuda.stream(stream):
            return self._launch(plan, stream)

    def _launch(self, plan: StepPlan, stream: torch.cuda.Stream | None) -> Launched:
        step = self._step(plan)
        for row in plan.begins:
            self.sampler.begin(row)
        if not step.fill(plan):
            self._write_rows(plan)
        if step.host_plans:
            self.stopwatch.lap("device_work")
            self._plan_on_host(step, plan)
            self.stopwatch.lap("plan_attention")
        variant = Variant.of(plan.sample.features)
        if plan.all_logits or self._scores_prompt(plan):
            return self._score(step, plan, variant, stream)
        graph = self._graphs.get((plan.walk, self._bucket(plan), plan.graph_slot, variant))
        if graph is None:  # not captured: the same step, kernel by kernel
            step.finish(step.forward(), variant)
        else:
            graph.replay()
        return Launched(step, plan, stream)

    def run(self, plan: StepPlan) -> StepResult:
        """Launches and waits."""
        launched = self.launch(plan)
        launched.wait()
        return launched.result()

    def _score(self, step: StaticStep, plan: StepPlan, variant: Variant, stream: torch.cuda.Stream | None) -> Launched:
        """Without a graph: steps that need more than the sampled rows' logits."""
        hidden = step.forward()
        scores = score_prompt(plan, hidden, self.model.logits) if plan.walk == "prefill" else None
        logits = None
        if plan.all_logits:
            logits = self.model.logits(hidden[: int(plan.advance.counts.sum())]).float()
        step.finish(hidden, variant)  # last: when its tokens are there, so is everything else
        return Launched(step, plan, stream, scores, logits)

    def _scores_prompt(self, plan: StepPlan) -> bool:
        return plan.walk == "prefill" and any(request.prompt_logprobs is not None for request in plan.requests)

    def _step(self, plan: StepPlan) -> StaticStep:
        return self._steps[plan.walk, self._bucket(plan), plan.graph_slot]

    def _bucket(self, plan: StepPlan) -> Bucket:
        if plan.walk == "decode":
            return plan.bucket
        _, _, (tokens,) = plan.inputs.sections["tokens"]
        rows = next(bucket for bucket in self._prefill_rows if bucket >= plan.bucket)
        return rows, next(bucket for bucket in self._tokens if bucket >= tokens)

    def _write_rows(self, plan: StepPlan) -> None:
        """Row writes too long for the step's block, in copies of their own."""
        runs, payload = (plan.inputs.section(plan.buffer, name) for name in ("runs", "payload"))
        assert runs is not None
        assert payload is not None
        apply_row_writes(self.tables.words, upload(runs, self._device).view(-1, 2), upload(payload, self._device))

    def _plan_padding(self, step: StaticStep) -> None:
        for key, bound in step.attention.items():
            if step.mode(key) is not PlanMode.HOST_PLAN_FREE:
                indptr = torch.arange(bound.shape.rows + 1, dtype=torch.int32)
                bound.plan(indptr, torch.zeros_like(indptr) if isinstance(step, PrefillStep) else None)

    def _plan_on_host(self, step: StaticStep, plan: StepPlan) -> None:
        """What the plan modes leave to the host: page counts to FlashInfer's planner, page arrays to the device."""
        queries = None
        if plan.walk == "prefill":
            queries = torch.from_numpy(step.block.host["cu_seqlens"]).clone()
        for key, bound in step.attention.items():
            lists = plan.reads.get(key)
            if lists is not None:
                self._plan_read(step, plan, key, lists, queries)
                continue
            mode = step.mode(key)
            if mode is PlanMode.HOST_PLAN_FREE:
                continue
            names = (f"{name}:{key}" for name in ("indptr", "indices", "last_page_len"))
            indptr, indices, last = (plan.inputs.section(plan.buffer, name) for name in names)
            assert indptr is not None
            if mode is PlanMode.FULL:
                assert indices is not None
                assert last is not None
                bound.pages.load(indptr, indices, last)
            bound.plan(torch.from_numpy(padded_indptr(indptr, bound.shape.rows)), queries)

    def _plan_read(
        self, step: StaticStep, plan: StepPlan, key: str, lists: PageLists, queries: torch.Tensor | None
    ) -> None:
        """Plans a pool that the step only reads, unless the slot holds just this plan from its last step."""
        place = plan.walk, plan.graph_slot, key
        if self._planned.get(place) is lists:  # which belong to one group of rows, hence to one bucket
            return
        self._planned.pop(place, None)
        bound = step.attention[key]
        bound.pages.load(lists.indptr, lists.indices, lists.last_page_len)
        bound.plan(torch.from_numpy(padded_indptr(lists.indptr, bound.shape.rows)), queries)
        self._planned[place] = lists
        self.read_plans += 1
