"""Teacher forcing through the worker's own path: scheduler, pools, tables, attention. For exactness checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.request import Request
from denizen.worker.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.served import ServedModel


def teacher_forced(
    served: ServedModel, sequences: Sequence[Sequence[int]], prompts: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """fp32 logits ``[len(sequence), vocab]`` of every position of every sequence, computed together.

    ``prompts``: how many tokens of each sequence are prefilled, at least 1 (None = all); the others are fed by decode
    steps. Chunks, batches and preemptions come from the model's own scheduler, so ``prefill_chunk``, ``max_rows`` and
    ``kv_tokens`` decide them. A sequence may be one shorter than the context. No engine may run meanwhile.
    """
    lengths = prompts or [len(ids) for ids in sequences]
    index = {}
    for number, (ids, length) in enumerate(zip(sequences, lengths, strict=True)):
        request = Request(
            number + 1, np.asarray(ids[:length], np.int32), SamplingParams(), max_tokens=len(ids) - length + 1
        )
        served.scheduler.submit(request)
        index[request.id] = number
    device = served.runner.tables.words.device
    logits = [torch.full((len(ids), served.model.vocab_size), torch.nan, device=device) for ids in sequences]
    while not served.scheduler.idle:
        for walk in ("decode", "prefill"):
            plan = served.scheduler.plan_decode() if walk == "decode" else served.scheduler.plan_prefill()
            if plan is not None:
                _run(served, plan, sequences, index, logits)
    return logits


def _run(
    served: ServedModel,
    plan: StepPlan,
    sequences: Sequence[Sequence[int]],
    index: dict[int, int],
    logits: list[torch.Tensor],
) -> None:
    plan.all_logits = True
    served.scheduler.commit(plan)
    result = served.runner.run(plan)
    served.scheduler.complete(plan)
    assert result.logits is not None
    offset = 0
    for entry in plan.entries:
        request = entry.request
        number = index[request.id]
        logits[number][entry.start : entry.start + entry.count] = result.logits[offset : offset + entry.count]
        offset += entry.count
        if not entry.samples:
            continue
        position = entry.start + entry.count
        if position == len(sequences[number]):
            served.scheduler.end(request)
            continue
        forced = sequences[number][position]
        request.outputs.append(forced)
        served.runner.tables.last_token[entry.row] = forced
