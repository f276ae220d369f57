"""One hosted model with everything that is its own: pools, tables, planner, scheduler, runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.admission import ON_GPU, Admission
from denizen.worker.attention import flashinfer_attention, paged_attention
from denizen.worker.capacity import Capacity
from denizen.worker.errors import RequestError
from denizen.worker.graphs import GraphRunner, decode_buckets, prefill_rows, prefill_tokens
from denizen.worker.models.base import hears
from denizen.worker.models.streams import check_streams
from denizen.worker.pools.kv import KvPool
from denizen.worker.pools.state import SlotPool
from denizen.worker.pools.storage import allocate_state, with_state_dtype
from denizen.worker.protocol import ReadyModel
from denizen.worker.request import Request
from denizen.worker.resident.mirror import Mirror
from denizen.worker.resident.planner import PlanMode, Planner
from denizen.worker.resident.tables import DeviceTables, TableLayout
from denizen.worker.runner import Runner
from denizen.worker.sampling.params import MAX_LOGPROBS, SamplingParams
from denizen.worker.sampling.sampler import Sampler
from denizen.worker.sampling.state import SamplerState
from denizen.worker.scheduler import Scheduler
from denizen.worker.speech import speech_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
    from denizen.worker.models.base import Model
    from denizen.worker.phases import Stopwatch
    from denizen.worker.protocol import Submit

#: Windows of audio in a prefill step on a CPU: more would only make the rows that decode wait longer.
_CPU_WINDOWS = 1


@dataclass
class ServedModel:
    """A model that takes requests. The plan thread owns the scheduler, the device thread the runner."""

    name: str
    model: Model
    scheduler: Scheduler
    runner: Runner | GraphRunner
    context: int
    kv_tokens: int
    fingerprint: str = ""

    @property
    def launches(self) -> bool:
        """The runner queues steps on a device and returns at once."""
        return hasattr(self.runner, "launch")

    def time_with(self, stopwatch: Stopwatch) -> None:
        """Phases of planning and launching go to ``stopwatch``."""
        self.scheduler.planner.stopwatch = stopwatch
        if isinstance(self.runner, GraphRunner):
            self.runner.stopwatch = stopwatch

    @classmethod
    def build(
        cls,
        name: str,
        model: Model,
        device: torch.device,
        dtype: torch.dtype,
        pools: PoolConfig,
        limits: SchedulerConfig,
        engine: EngineConfig,
        *,
        fingerprint: str = "",
        share: float = 1.0,
        buckets: Sequence[int] | None = None,
        mode: PlanMode = PlanMode.HOST_PLAN_FREE,
    ) -> ServedModel:
        """Allocates pools and tables. ``share``: of the memory, this model's part.

        Raises :class:`CapacityError`, and :class:`ModelError` for walks that do not fit the pools.

        ``buckets`` None = on CUDA those of ``graphs.py``, on the CPU every batch size: there a padded row costs as much
        as a live one. ``mode``: of walks that write the pool, unless ``engine`` says that the host plans everything
        or the model names no resident "decode". On CUDA it also captures the graphs.
        """
        check_streams(model)
        resident = engine.resident and "decode" in model.resident_walks
        state_pools = model.state_pools
        if pools.state_dtype != "float32":
            own = getattr(torch, pools.state_dtype)
            state_pools = tuple(with_state_dtype(spec, own) for spec in state_pools)
        context = min(limits.max_context or model.context_length, model.context_length)
        size = pools.page_size
        capacity = Capacity(model, state_pools, device, dtype, size, share)
        max_rows = limits.max_rows or capacity.rows(context)
        rows = max_rows + 1
        tokens = capacity.tokens(max_rows, context) if pools.kv_tokens is None else pools.kv_tokens
        capacity.check(max_rows, tokens)
        pages = -(-tokens // size)
        context = min(context, pages * size)
        # A context pool has room for every row's context, so that it never keeps a request waiting.
        sizes = {
            spec.key: 1 + (max_rows * -(-spec.context // size) if spec.context else pages) for spec in model.kv_pools
        }
        kv = {spec.key: KvPool(spec.key, sizes[spec.key], size, spec.context) for spec in model.kv_pools}
        state = {spec.key: SlotPool(spec.key, rows) for spec in model.state_pools}
        layout = TableLayout(rows, {key: pool.pages_for(context) for key, pool in kv.items()}, list(state))
        mirror = Mirror(rows, dict.fromkeys(kv, size), layout.max_pages, model.walks["decode"].grows)
        if buckets is None:
            buckets = decode_buckets(max_rows) if device.type == "cuda" else range(1, rows)
        planner = Planner(
            layout,
            mirror,
            kv,
            model.walks,
            buckets,
            mode,
            resident=resident,
            row_inputs=model.row_inputs if hears(model) else None,
        )
        tables = DeviceTables(layout, device)
        states = {spec.key: allocate_state(spec, rows, device, dtype) for spec in state_pools}
        sampler = SamplerState(rows, model.vocab_size, device)
        runner: Runner | GraphRunner
        # Prompts that come with audio are never split, so a step must hold the longest.
        chunk = max(limits.prefill_chunk, context) if hears(model) else limits.prefill_chunk
        at_once: Sequence[int] = (_CPU_WINDOWS,) if hears(model) else (max_rows,)
        policy = Admission()
        if device.type == "cuda":
            at_once = prefill_rows(model, max_rows)
            policy = ON_GPU
            runner = GraphRunner(
                model,
                tables,
                {s.key: flashinfer_attention(s, sizes[s.key], size, device, dtype) for s in model.kv_pools},
                states,
                sampler,
                mode if resident else PlanMode.FULL,
                buckets,
                prefill_tokens(model, chunk),
                at_once,
            )
            runner.capture()
        else:
            runner = Runner(
                model,
                tables,
                {s.key: paged_attention(s, sizes[s.key], size, device, dtype) for s in model.kv_pools},
                sizes,
                states,
                Sampler(model.vocab_size, sampler),
            )
        scheduler = Scheduler(
            SlotPool("rows", rows),
            kv,
            state,
            mirror,
            planner,
            context,
            chunk,
            at_once,
            policy,
            whole=hears(model),
        )
        return cls(name, model, scheduler, runner, context, pages * size, fingerprint)

    def ready(self) -> ReadyModel:
        return ReadyModel(
            self.name,
            self.model.family,
            self.model.kind,
            self.context,
            self.model.vocab_size,
            self.scheduler.rows.capacity,
            self.kv_tokens,
            self.fingerprint,
        )

    def request(self, id: int, body: Submit, attachment: bytes | None = None) -> Request:
        """A request from SUBMIT, not yet queued. Raises :class:`RequestError` for what would harm the worker."""
        vocab = self.model.vocab_size
        prompt = np.asarray(body.ids, np.int64)
        if not len(prompt):
            raise RequestError("the prompt is empty; send at least one token", param="ids")
        if prompt.min() < 0 or prompt.max() >= vocab:
            raise RequestError(f"prompt ids must be below {vocab}", param="ids")
        if body.max_tokens < 1:
            raise RequestError("max_tokens must be at least 1", param="max_tokens")
        if (body.prompt_logprobs or 0) > MAX_LOGPROBS:
            raise RequestError(f"prompt_logprobs must be at most {MAX_LOGPROBS}", param="prompt_logprobs")
        params = SamplingParams.from_submit(body, vocab)
        request = Request(id, prompt.astype(np.int32), params, body.max_tokens, body.prompt_logprobs)
        request.speech = speech_of(self.model, request.prompt, body, attachment, request.outputs)
        if body.prompt_logprobs is not None:
            request.scored = [None] * len(prompt)
        return request
