"""Steps with static arrays, one a (walk, bucket, graph slot): what a CUDA graph records, and what runs without one.

A step reads the host through one pinned block, which its first node copies, and the device tables; it leaves its tokens
in a mailbox. Nothing else passes between it and the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.kernels.context_places import context_places
from denizen.kernels.decode_step import DecodeInputs, advance_rows, decode_inputs
from denizen.kernels.mailbox import allocate_mailbox, publish
from denizen.kernels.page_gather import page_gather
from denizen.kernels.prefill_step import PrefillInputs, prefill_inputs
from denizen.kernels.row_writes import apply_row_writes
from denizen.worker.models.base import CONTEXT, Batch, hears
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.resident.planner import PlanMode
from denizen.worker.sampling.captured import Logprobs, Variant, leave_logprob, sample_captured

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from denizen.worker.attention.flashinfer import FlashInferStep
    from denizen.worker.models.base import Model, Walk
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.resident.tables import DeviceTables
    from denizen.worker.row_staging import RowStaging
    from denizen.worker.sampling.state import SamplerState

#: Words of a row write that a prefill step's block has room for, a row: a sampler block and some 80 pages. Longer ones
#: travel in a copy of their own.
_PAYLOAD_A_ROW = 192
_ALIGN = 4


class HostBlock:
    """What a step reads from the host: named int32 sections of one pinned buffer with a twin on the device."""

    def __init__(self, sections: Mapping[str, int], device: torch.device) -> None:
        size = sum(-(-words // _ALIGN) * _ALIGN for words in sections.values())
        self._pinned = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._twin = torch.zeros(size, dtype=torch.int32, device=device)
        self.host: dict[str, np.ndarray] = {}
        self.device: dict[str, torch.Tensor] = {}
        begin = 0
        for name, words in sections.items():
            self.host[name] = self._pinned[begin : begin + words].numpy()
            self.device[name] = self._twin[begin : begin + words]
            begin += -(-words // _ALIGN) * _ALIGN

    def copy(self) -> None:
        """The one copy of a step from the host to the device."""
        self._twin.copy_(self._pinned, non_blocking=True)


class Mailbox:
    """Where the steps of one walk and graph slot leave their results, in pinned memory that the host polls."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.rows = rows
        self.box = allocate_mailbox(rows, device)
        self.view = self.box.numpy()
        self.logprobs = Logprobs.allocate(rows, vocab, device)
        self.delivered = torch.zeros(1, dtype=torch.int32, device=device)
        self.expected = 0  #: step count that the newest queued step will leave

    def expect(self) -> int:
        """The step count that the step that is now queued will leave: 32 bits with sign, as the device counts, which
        goes on from below zero after 2,147,483,647 steps (a month, where a step takes half a millisecond)."""
        self.expected = (self.expected + 1 + (1 << 31)) % (1 << 32) - (1 << 31)
        return self.expected

    def reset(self) -> None:
        """After warming up and capturing: no step has been delivered."""
        self.delivered.zero_()
        self.box.zero_()
        self.expected = 0


@dataclass(frozen=True)
class Surroundings:
    """What the steps of a model share."""

    model: Model
    tables: DeviceTables
    state: Mapping[str, Mapping[str, torch.Tensor]]
    sampler: SamplerState
    page_size: int
    mode: PlanMode  #: of pools that a walk writes


class StaticStep:
    """The common part of decode and prefill steps."""

    def __init__(
        self,
        around: Surroundings,
        walk: Walk,
        attention: Mapping[str, FlashInferStep],
        inputs: Mapping[str, DecodeInputs] | Mapping[str, PrefillInputs],
        block: HostBlock,
        mailbox: Mailbox,
    ) -> None:
        """``attention``: of every pool of the walk; ``inputs``: of those that grow in it."""
        self.attention = attention
        self.block = block
        self.mailbox = mailbox
        self._around = around
        self.hears = hears(around.model)
        self._walk = walk
        self._grown = inputs
        self._bound: Batch | None = None  #: of the last forward pass
        self._nobody = torch.zeros(mailbox.rows, dtype=torch.bool, device=mailbox.delivered.device)
        self._contexts = {spec.key: spec.context for spec in around.model.kv_pools}
        #: some pool leaves something to the host
        self.host_plans = any(self.mode(key) is not PlanMode.HOST_PLAN_FREE for key in attention)
        for key, given in inputs.items():
            attention[key].write_at = given.write_at

    def fill(self, plan: StepPlan) -> bool:
        """Writes the plan into the block, whose last step must be over (E2, E3). False: its row writes do not fit."""
        host = self.block.host
        runs = plan.inputs.section(plan.buffer, "runs")
        payload = plan.inputs.section(plan.buffer, "payload")
        host["runs"].fill(0)
        if runs is None or payload is None:
            return True
        if runs.size > host["runs"].size or payload.size > host["payload"].size:
            return False
        host["runs"][: runs.size] = runs
        host["payload"][: payload.size] = payload
        return True

    def forward(self) -> torch.Tensor:
        """Everything up to the hidden states ``[T, hidden]``."""
        raise NotImplementedError

    def finish(self, hidden: torch.Tensor, variant: Variant) -> None:
        """From hidden states to tokens in the mailbox; moves the rows on."""
        raise NotImplementedError

    def mode(self, key: str) -> PlanMode:
        """The plan mode of a pool in this step: what its graph leaves to the host."""
        return self._around.mode.of_span(self._walk.streams[key])

    def _begin(self) -> torch.Tensor:
        block = self.block
        block.copy()
        words = self._around.tables.words
        apply_row_writes(words, block.device["runs"].view(-1, 2), block.device["payload"])
        return block.device["slots"]

    def _bind_pages(self, slots: torch.Tensor, fresh: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Binds every pool's pages to the step's rows, as far as its plan mode leaves that to the device.

        Returns the lengths by pool; those of a pool that does not grow are gathered, and its table stays as it is.
        """
        around, lengths = self._around, {}
        for key, step in self.attention.items():
            table, size = around.tables.block_table[key], around.page_size
            grown = self._grown.get(key)
            lengths[key] = around.tables.lengths[key].index_select(0, slots) if grown is None else grown.lengths
            if self._walk.streams[key] == CONTEXT:
                assert fresh is not None
                step.write_at = context_places(slots, fresh, table, self._contexts[key], size, SINK_PAGE)
            mode = self.mode(key)
            if mode is PlanMode.FULL:
                continue
            pages = step.pages
            arrays = (pages.indptr, pages.indices, pages.last_page_len)
            page_gather(slots, table, lengths[key], size, SINK_PAGE, *arrays)
            if mode is PlanMode.HOST_PLAN_FREE:
                step.record_plan()
        return lengths

    def _batch(
        self,
        slots: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        max_seqlen: int,
        cu_seqlens: torch.Tensor,
        lengths: Mapping[str, torch.Tensor],
        fresh: torch.Tensor | None = None,
        inputs: Mapping[str, torch.Tensor] | None = None,
    ) -> Batch:
        around = self._around
        columns = around.tables.state_slots
        rows = slots.long() if columns else slots
        self._bound = Batch(
            self._walk.name,
            slots,
            tokens,
            positions,
            cu_seqlens,
            max_seqlen,
            self.attention,
            around.state,
            {key: column[rows] for key, column in columns.items()},
            fresh,
            lengths,
            inputs or {},
        )
        return self._bound

    def _deliver(
        self, logits: torch.Tensor, slots: torch.Tensor, variant: Variant, sampled: torch.Tensor | None
    ) -> None:
        around, box, model = self._around, self.mailbox, self._around.model
        tables, own = around.tables, self._walk.positions
        if hears(model):
            assert self._bound is not None
            logits = model.constrain(logits, self._bound)
        tokens = sample_captured(
            variant,
            logits,
            slots,
            tables.sampler,
            tables.output_count,
            self._grown[own].lengths.long(),
            around.sampler,
            box.logprobs,
            sampled,
        )
        if hears(model) and variant is not Variant.FULL:
            leave_logprob(logits, tokens, box.logprobs)
        for key, given in self._grown.items():
            who = sampled if key == own else self._nobody[: len(slots)]  # a row's token moves once, its lengths all
            advance_rows(slots, tokens, given.lengths, tables.lengths[key], tables.last_token, tables.output_count, who)
        publish(tokens, box.delivered, box.box)


class DecodeStep(StaticStep):
    """One token for each of at most ``rows`` rows."""

    def __init__(
        self,
        around: Surroundings,
        attention: Mapping[str, FlashInferStep],
        rows: int,
        device: torch.device,
        mailbox: Mailbox,
    ) -> None:
        walk = around.model.walks["decode"]
        pages = rows * len(walk.grows)  # a row may get a page in each
        block = HostBlock({"slots": rows, "runs": 2 * pages, "payload": pages}, device)
        self.inputs = {key: DecodeInputs.allocate(rows, device) for key in walk.grows}
        super().__init__(around, walk, attention, self.inputs, block, mailbox)

    def fill(self, plan: StepPlan) -> bool:
        slots = plan.inputs.section(plan.buffer, "slots")
        assert slots is not None
        self.block.host["slots"][:] = slots
        return super().fill(plan)

    def forward(self) -> torch.Tensor:
        around, tables = self._around, self._around.tables
        slots = self._begin()
        for key, given in self.inputs.items():
            lengths, table = tables.lengths[key], tables.block_table[key]
            decode_inputs(slots, tables.last_token, lengths, table, around.page_size, SINK_PAGE, given)
        own = self.inputs[self._walk.positions]
        queries = self.attention[self._walk.positions].qo_indptr
        bound = self._bind_pages(slots)
        return around.model.forward(self._batch(slots, own.tokens, own.positions, 1, queries, bound))

    def finish(self, hidden: torch.Tensor, variant: Variant) -> None:
        self._deliver(self._around.model.logits(hidden), self.block.device["slots"], variant, None)


class PrefillStep(StaticStep):
    """At most ``tokens`` prompt tokens of at most ``rows`` rows; rows at their prompt's end sample."""

    def __init__(
        self,
        around: Surroundings,
        attention: Mapping[str, FlashInferStep],
        rows: int,
        tokens: int,
        device: torch.device,
        mailbox: Mailbox,
        staging: Mapping[str, RowStaging],
    ) -> None:
        """``staging``: of the walk's ``inputs``, shared by the steps of a graph slot."""
        walk, pools = around.model.walks["prefill"], len(around.model.kv_pools)
        sections = {
            "slots": rows,
            "runs": 2 * rows * (pools + 1),
            "payload": rows * pools * _PAYLOAD_A_ROW,
            "cu_seqlens": rows + 1,
            "fresh": rows,
            "sampled": rows,
            "tokens": tokens,
        }
        self.inputs = {key: PrefillInputs.allocate(rows, tokens, device) for key in walk.grows}
        super().__init__(around, walk, attention, self.inputs, HostBlock(sections, device), mailbox)
        self.rows, self.tokens = rows, tokens
        self._staging = staging

    def fill(self, plan: StepPlan) -> bool:
        host = self.block.host
        section = {name: plan.inputs.section(plan.buffer, name) for name in _PREFILL_SECTIONS}
        slots, cu_seqlens, starts = section["slots"], section["cu_seqlens"], section["starts"]
        tokens, sampled = section["tokens"], section["sampled"]
        assert slots is not None
        assert cu_seqlens is not None
        assert starts is not None
        assert tokens is not None
        live = len(slots)
        host["slots"][:live] = slots
        host["slots"][live:] = 0
        host["cu_seqlens"][: live + 1] = cu_seqlens
        host["cu_seqlens"][live + 1 :] = cu_seqlens[live]
        host["fresh"][:live] = starts == 0
        host["sampled"].fill(0)
        host["sampled"][sampled] = 1
        host["tokens"][: len(tokens)] = tokens
        for name, staging in self._staging.items():
            staging.fill(plan.row_inputs[name])
        return super().fill(plan)

    def forward(self) -> torch.Tensor:
        around, tables = self._around, self._around.tables
        slots, given = self._begin(), self.block.device
        starts = given["cu_seqlens"]
        for key, inputs in self.inputs.items():
            lengths, table = tables.lengths[key], tables.block_table[key]
            prefill_inputs(slots, starts, lengths, table, around.page_size, SINK_PAGE, inputs)
        for step in self.attention.values():
            step.qo_indptr.copy_(starts)
        fresh = given["fresh"] != 0
        bound = self._bind_pages(slots, fresh)
        positions = self.inputs[self._walk.positions].positions
        brought = {name: staging.copy(self.rows) for name, staging in self._staging.items()}
        batch = self._batch(slots, given["tokens"].long(), positions, self.tokens, starts, bound, fresh, brought)
        return around.model.forward(batch)

    def finish(self, hidden: torch.Tensor, variant: Variant) -> None:
        last, model = self.inputs[self._walk.positions].last, self._around.model
        if hears(model):
            assert self._bound is not None
            self.mailbox.logprobs.observed[: self.rows].copy_(model.observe(hidden, self._bound), non_blocking=True)
        logits = model.logits(hidden[last])
        self._deliver(logits, self.block.device["slots"], variant, self.block.device["sampled"] != 0)


_PREFILL_SECTIONS = ("slots", "cu_seqlens", "starts", "tokens", "sampled")
