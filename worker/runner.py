"""Runs one planned step on the device: row writes, the model's walk, the sampler, what the step changes in the rows.

Only the device thread calls it, one step at a time and in the order of their numbers; row writes of a step are applied
before it and after the one before it (E4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.kernels.context_places import context_places
from denizen.kernels.page_gather import page_gather
from denizen.kernels.row_writes import apply_row_writes
from denizen.worker.models.base import CONTEXT, Batch, hears
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.resident.planner import PlanMode
from denizen.worker.row_staging import row_tensor
from denizen.worker.sampling.scoring import score_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from denizen.worker.attention.base import AttentionStep
    from denizen.worker.attention.torch_ref import PagedAttention
    from denizen.worker.models.base import Model
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.resident.tables import DeviceTables
    from denizen.worker.sampling.sampler import Sampled, Sampler
    from denizen.worker.sampling.scoring import PromptScores


@dataclass
class StepResult:
    """What comes back to the host, one entry a sampling row in the plan's order."""

    tokens: np.ndarray  #: int64 [n]
    logprob: np.ndarray | None = None  #: fp32 [n]; of every row if the model hears
    top_ids: np.ndarray | None = None  #: int64 [n, alternatives]
    top_logprobs: np.ndarray | None = None  #: fp32 [n, alternatives]
    observed: np.ndarray | None = None  #: fp32 [n], of a prefill step of a model that hears
    prompt_scores: list[PromptScores] | None = None
    logits: torch.Tensor | None = None  #: fp32 [T, vocab] of a scoring step


class _Buffers:
    """Static arrays of one (walk, bucket, graph slot): page arrays by pool."""

    def __init__(self, rows: int, pages: Mapping[str, int], device: torch.device) -> None:
        def empty(size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.int32, device=device)

        self.pages = {key: (empty(rows + 1), empty(count + rows), empty(rows)) for key, count in pages.items()}
        self.cu_seqlens = torch.arange(rows + 1, dtype=torch.int32, device=device)


class Runner:
    """Executes the steps of one model over its tables and pools."""

    def __init__(
        self,
        model: Model,
        tables: DeviceTables,
        attention: Mapping[str, PagedAttention],
        pages: Mapping[str, int],
        state: Mapping[str, Mapping[str, torch.Tensor]],
        sampler: Sampler,
    ) -> None:
        """``pages``: pages of each KV pool."""
        self.model = model
        self.tables = tables
        self.attention = attention
        self.state = state
        self.sampler = sampler
        self._pages = pages
        self._device = tables.words.device
        self._buffers: dict[tuple[str, int, int], _Buffers] = {}
        self._contexts = {spec.key: spec.context for spec in model.kv_pools}

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Runs the step; the rows' lengths, last tokens and output counts have moved when it returns."""
        words = torch.from_numpy(plan.buffer).to(self._device)
        inputs = {name: words[begin:end].view(shape) for name, (begin, end, shape) in plan.inputs.sections.items()}
        if "runs" in inputs:
            apply_row_writes(self.tables.words, inputs["runs"], inputs["payload"])
        for row in plan.begins:
            self.sampler.state.begin(row)
        return self._decode(plan, inputs) if plan.walk == "decode" else self._prefill(plan, inputs)

    def _decode(self, plan: StepPlan, inputs: Mapping[str, torch.Tensor]) -> StepResult:
        tables = self.tables
        slots = inputs["slots"]
        rows = slots.long()
        live = (slots > 0).to(torch.int32)
        buffers = self._buffers_for(plan)
        lengths = self._step_lengths("decode", rows, live)
        length = lengths[self.model.walks["decode"].positions].long()
        batch = Batch(
            "decode",
            slots,
            tables.last_token.index_select(0, rows).long(),
            (length - 1).clamp_(min=0),
            buffers.cu_seqlens,
            1,
            self._bind(plan, inputs, slots, lengths, buffers.cu_seqlens, buffers),
            self.state,
            {key: column.index_select(0, rows) for key, column in tables.state_slots.items()},
            lengths=lengths,
        )
        logits = self.model.logits(self.model.forward(batch))
        kept = logits.clone() if plan.all_logits else None
        sampled = self._sample(plan, logits, batch, rows, length)
        self._advance("decode", rows, lengths)
        return self._result(sampled, len(plan.requests), kept)

    def _prefill(self, plan: StepPlan, inputs: Mapping[str, torch.Tensor]) -> StepResult:
        tables = self.tables
        slots, cu_seqlens = inputs["slots"], inputs["cu_seqlens"]
        starts, counts, tokens = inputs["starts"], inputs["counts"], inputs["tokens"].long()
        rows = slots.long()
        lengths = self._step_lengths("prefill", rows, counts)
        fresh = starts == 0
        first = torch.repeat_interleave((starts - cu_seqlens[:-1]).long(), counts.long(), output_size=len(tokens))
        batch = Batch(
            "prefill",
            slots,
            tokens,
            first + torch.arange(len(tokens), device=self._device),
            cu_seqlens,
            plan.max_seqlen,
            self._bind(plan, inputs, slots, lengths, cu_seqlens, self._buffers_for(plan), fresh),
            self.state,
            {key: column.index_select(0, rows) for key, column in tables.state_slots.items()},
            fresh,
            lengths,
            {
                name: row_tensor(spec, plan.row_inputs[name], self._device)
                for name, spec in self.model.walks["prefill"].inputs.items()
            },
        )
        hidden = self.model.forward(batch)
        self._advance("prefill", rows, lengths)
        scores = score_prompt(plan, hidden, self.model.logits)
        kept = self.model.logits(hidden) if plan.all_logits else None
        index = inputs["sampled"].long()
        if not len(index):
            return StepResult(torch.empty(0, dtype=torch.int64).numpy(), prompt_scores=scores, logits=kept)
        logits = self.model.logits(hidden.index_select(0, cu_seqlens[1:].long()[index] - 1))
        length = lengths[self.model.walks["prefill"].positions].long()[index]
        result = self._result(self._sample(plan, logits, batch, rows[index], length), len(index), kept)
        result.prompt_scores = scores
        if hears(self.model):
            result.observed = self.model.observe(hidden, batch).cpu().numpy()
        return result

    def _buffers_for(self, plan: StepPlan) -> _Buffers:
        if plan.walk != "decode":  # ragged: as many rows as there are chunks
            return _Buffers(plan.bucket, self._pages, self._device)
        key = (plan.walk, plan.bucket, plan.graph_slot)
        buffers = self._buffers.get(key)
        if buffers is None:
            buffers = self._buffers[key] = _Buffers(plan.bucket, self._pages, self._device)
        return buffers

    def _step_lengths(self, walk: str, rows: torch.Tensor, counts: torch.Tensor) -> dict[str, torch.Tensor]:
        """The one source of this step's lengths, its own positions included: int32 ``[B]`` by pool key."""
        lengths = {}
        for key, span in self.model.walks[walk].streams.items():
            lengths[key] = self.tables.lengths[key].index_select(0, rows)
            if span not in (0, CONTEXT):
                lengths[key] += counts * abs(span)
        return lengths

    def _bind(
        self,
        plan: StepPlan,
        inputs: Mapping[str, torch.Tensor],
        slots: torch.Tensor,
        lengths: Mapping[str, torch.Tensor],
        cu_seqlens: torch.Tensor,
        buffers: _Buffers,
        fresh: torch.Tensor | None = None,
    ) -> dict[str, AttentionStep]:
        walk = self.model.walks[plan.walk]
        steps: dict[str, AttentionStep] = {}
        for key, mode in plan.modes.items():
            attention = self.attention[key]
            if lists := plan.reads.get(key):
                arrays = lists.tensors()
            elif mode is PlanMode.FULL:
                arrays = (inputs[f"indptr:{key}"], inputs[f"indices:{key}"], inputs[f"last_page_len:{key}"])
            else:
                arrays = buffers.pages[key]
                table = self.tables.block_table[key]
                page_gather(slots, table, lengths[key], attention.page_size, SINK_PAGE, *arrays)
            step = steps[key] = attention.bind(*arrays, cu_seqlens, plan.max_seqlen, causal=key in walk.grows)
            if walk.streams[key] == CONTEXT:
                assert fresh is not None
                table, size = self.tables.block_table[key], attention.page_size
                step.write_at = context_places(slots, fresh, table, self._contexts[key], size, SINK_PAGE)
        return steps

    def _sample(
        self, plan: StepPlan, logits: torch.Tensor, batch: Batch, rows: torch.Tensor, length: torch.Tensor
    ) -> Sampled:
        """Samples the token at position ``length`` of each of ``rows``, and puts it into the row."""
        tables = self.tables
        count = tables.output_count.index_select(0, rows)
        scores = None
        if hears(self.model):
            assert len(rows) == len(batch.slots)  # prompts are whole: every row samples
            logits = self.model.constrain(logits, batch)
            scores = torch.log_softmax(logits.float(), dim=-1)
        sampled = self.sampler.sample(plan.sample, logits, rows, tables.sampler, count, length)
        if scores is not None:
            sampled.logprob = scores.gather(1, sampled.tokens[:, None])[:, 0]
        tables.last_token.index_copy_(0, rows, sampled.tokens.to(torch.int32))
        tables.output_count.index_copy_(0, rows, count + 1)
        return sampled

    def _advance(self, walk: str, rows: torch.Tensor, lengths: Mapping[str, torch.Tensor]) -> None:
        """Device lengths move once, at the end of the step, in the pools that it wrote; row 0's stays 0 (E7)."""
        for key in self.model.walks[walk].grows:
            self.tables.lengths[key].index_copy_(0, rows, lengths[key])

    def _result(self, sampled: Sampled, live: int, logits: torch.Tensor | None) -> StepResult:
        result = StepResult(sampled.tokens[:live].cpu().numpy(), logits=logits)
        if sampled.logprob is not None:
            result.logprob = sampled.logprob[:live].cpu().numpy()
        if sampled.top_ids is not None and sampled.top_logprobs is not None:
            result.top_ids = sampled.top_ids[:live].cpu().numpy()
            result.top_logprobs = sampled.top_logprobs[:live].cpu().numpy()
        return result
