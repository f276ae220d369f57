"""Steps with static arrays, one a (walk, bucket, graph slot): what a CUDA graph records, and what runs without one.

A step reads the host through one pinned block, which its first node copies, and the device tables; it leaves its tokens
in a mailbox. Nothing else passes between it and the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.kernels.decode_step import DecodeInputs, advance_rows, decode_inputs
from denizen.kernels.mailbox import allocate_mailbox, publish
from denizen.kernels.page_gather import page_gather
from denizen.kernels.prefill_step import PrefillInputs, prefill_inputs
from denizen.kernels.row_writes import apply_row_writes
from denizen.worker.models.base import Batch
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.resident.planner import PlanMode
from denizen.worker.sampling.captured import Logprobs, Variant, sample_captured

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from denizen.worker.attention.flashinfer import FlashInferStep
    from denizen.worker.models.base import Model
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.resident.tables import DeviceTables
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
        self.box = allocate_mailbox(rows, device)
        self.view = self.box.numpy()
        self.logprobs = Logprobs.allocate(rows, vocab, device)
        self.delivered = torch.zeros(1, dtype=torch.int32, device=device)
        self.expected = 0  #: step count that the newest queued step will leave

    def reset(self) -> None:
        """After warming up and capturing: no step has been delivered."""
        self.delivered.zero_()
        self.box.zero_()
        self.expected = 0


@dataclass(frozen=True)
class Surroundings:
    """What the steps of a model share."""

    model: Model
    key: str  #: the KV pool
    tables: DeviceTables
    state: Mapping[str, Mapping[str, torch.Tensor]]
    sampler: SamplerState
    page_size: int
    mode: PlanMode


class StaticStep:
    """The common part of decode and prefill steps."""

    inputs: DecodeInputs | PrefillInputs

    def __init__(self, around: Surroundings, attention: FlashInferStep, block: HostBlock, mailbox: Mailbox) -> None:
        self.attention = attention
        self.block = block
        self.mailbox = mailbox
        self._around = around

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

    def _begin(self) -> torch.Tensor:
        block = self.block
        block.copy()
        words = self._around.tables.words
        apply_row_writes(words, block.device["runs"].view(-1, 2), block.device["payload"])
        return block.device["slots"]

    def _bind_pages(self, slots: torch.Tensor) -> None:
        """Gathers pages and plans, as far as the plan mode leaves that to the device."""
        around, pages = self._around, self.attention.pages
        if around.mode is PlanMode.FULL:
            return
        table = around.tables.block_table[around.key]
        arrays = (pages.indptr, pages.indices, pages.last_page_len)
        page_gather(slots, table, self.inputs.lengths, around.page_size, SINK_PAGE, *arrays)
        if around.mode is PlanMode.HOST_PLAN_FREE:
            self.attention.record_plan()

    def _batch(
        self,
        walk: str,
        slots: torch.Tensor,
        tokens: torch.Tensor,
        max_seqlen: int,
        cu_seqlens: torch.Tensor,
        fresh: torch.Tensor | None = None,
    ) -> Batch:
        around = self._around
        columns = around.tables.state_slots
        rows = slots.long() if columns else slots
        return Batch(
            walk,
            slots,
            tokens,
            self.inputs.positions,
            cu_seqlens,
            max_seqlen,
            {around.key: self.attention},
            around.state,
            {key: column[rows] for key, column in columns.items()},
            fresh,
        )

    def _deliver(
        self, logits: torch.Tensor, slots: torch.Tensor, variant: Variant, sampled: torch.Tensor | None
    ) -> None:
        around, box = self._around, self.mailbox
        tables, lengths = around.tables, self.inputs.lengths
        tokens = sample_captured(
            variant,
            logits,
            slots,
            tables.sampler,
            tables.output_count,
            lengths.long(),
            around.sampler,
            box.logprobs,
            sampled,
        )
        advance_rows(
            slots, tokens, lengths, tables.lengths[around.key], tables.last_token, tables.output_count, sampled
        )
        publish(tokens, box.delivered, box.box)


class DecodeStep(StaticStep):
    """One token for each of at most ``rows`` rows."""

    def __init__(
        self, around: Surroundings, attention: FlashInferStep, rows: int, device: torch.device, mailbox: Mailbox
    ) -> None:
        block = HostBlock({"slots": rows, "runs": 2 * rows, "payload": rows}, device)
        super().__init__(around, attention, block, mailbox)
        self.inputs = DecodeInputs.allocate(rows, device)
        attention.write_at = self.inputs.write_at

    def fill(self, plan: StepPlan) -> bool:
        slots = plan.inputs.section(plan.buffer, "slots")
        assert slots is not None
        self.block.host["slots"][:] = slots
        return super().fill(plan)

    def forward(self) -> torch.Tensor:
        around, tables = self._around, self._around.tables
        slots = self._begin()
        assert isinstance(self.inputs, DecodeInputs)
        decode_inputs(
            slots,
            tables.last_token,
            tables.lengths[around.key],
            tables.block_table[around.key],
            around.page_size,
            SINK_PAGE,
            self.inputs,
        )
        self._bind_pages(slots)
        batch = self._batch("decode", slots, self.inputs.tokens, 1, self.attention.qo_indptr)
        return around.model.forward(batch)

    def finish(self, hidden: torch.Tensor, variant: Variant) -> None:
        self._deliver(self._around.model.logits(hidden), self.block.device["slots"], variant, None)


class PrefillStep(StaticStep):
    """At most ``tokens`` prompt tokens of at most ``rows`` rows; rows at their prompt's end sample."""

    def __init__(
        self,
        around: Surroundings,
        attention: FlashInferStep,
        rows: int,
        tokens: int,
        device: torch.device,
        mailbox: Mailbox,
    ) -> None:
        sections = {
            "slots": rows,
            "runs": 2 * 2 * rows,
            "payload": rows * _PAYLOAD_A_ROW,
            "cu_seqlens": rows + 1,
            "fresh": rows,
            "sampled": rows,
            "tokens": tokens,
        }
        super().__init__(around, attention, HostBlock(sections, device), mailbox)
        self.rows, self.tokens = rows, tokens
        self.inputs = PrefillInputs.allocate(rows, tokens, device)
        attention.write_at = self.inputs.write_at

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
        return super().fill(plan)

    def forward(self) -> torch.Tensor:
        around, tables = self._around, self._around.tables
        slots = self._begin()
        given = self.block.device
        assert isinstance(self.inputs, PrefillInputs)
        prefill_inputs(
            slots,
            given["cu_seqlens"],
            tables.lengths[around.key],
            tables.block_table[around.key],
            around.page_size,
            SINK_PAGE,
            self.inputs,
        )
        self.attention.qo_indptr.copy_(given["cu_seqlens"])
        self._bind_pages(slots)
        fresh = given["fresh"] != 0
        batch = self._batch("prefill", slots, given["tokens"].long(), self.tokens, given["cu_seqlens"], fresh)
        return around.model.forward(batch)

    def finish(self, hidden: torch.Tensor, variant: Variant) -> None:
        assert isinstance(self.inputs, PrefillInputs)
        logits = self._around.model.logits(hidden[self.inputs.last])
        self._deliver(logits, self.block.device["slots"], variant, self.block.device["sampled"] != 0)


_PREFILL_SECTIONS = ("slots", "cu_seqlens", "starts", "tokens", "sampled")
