"""Teacher forcing through the worker's own path: scheduler, pools, tables, attention. For exactness checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.request import Request
from denizen.worker.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.served import ServedModel


def teacher_forced(
    served: ServedModel,
    sequences: Sequence[Sequence[int]],
    prompts: Sequence[int] | None = None,
    step_logits: Callable[[StepPlan], torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """fp32 logits ``[len(sequence), vocab]`` of every position of every sequence, computed together.

    ``prompts``: how many tokens of each sequence are prefilled, at least 1 (None = all); the others are fed by decode
    steps. Chunks, batches and preemptions come from the model's own scheduler, so ``prefill_chunk``, ``max_rows`` and
    ``kv_tokens`` decide them. A sequence may be one shorter than the context. No engine may run meanwhile.

    Logits of every position take steps outside of their graphs. ``step_logits`` leaves the steps as the engine runs
    them, and gives the logits fp32 ``[rows, vocab]`` of the step that has just run; positions that no step samples
    from are NaN then.
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
                _run(served, plan, sequences, index, logits, step_logits)
    return logits


def _run(
    served: ServedModel,
    plan: StepPlan,
    sequences: Sequence[Sequence[int]],
    index: dict[int, int],
    logits: list[torch.Tensor],
    step_logits: Callable[[StepPlan], torch.Tensor] | None,
) -> None:
    plan.all_logits = step_logits is None
    served.scheduler.commit(plan)
    result = served.runner.run(plan)
    served.scheduler.complete(plan)
    of_rows = None if step_logits is None else step_logits(plan)
    offset = 0
    for row, entry in enumerate(plan.entries):
        request = entry.request
        number = index[request.id]
        end = entry.start + entry.count
        if of_rows is None:
            assert result.logits is not None
            logits[number][entry.start : end] = result.logits[offset : offset + entry.count]
        elif entry.samples:
            logits[number][end - 1] = of_rows[row]
        offset += entry.count
        if not entry.samples:
            continue
        if end == len(sequences[number]):
            served.scheduler.end(request)
            continue
        forced = sequences[number][end]
        request.outputs.append(forced)
        served.runner.tables.last_token[entry.row] = forced
    if served.runner.tables.words.is_cuda:
        torch.cuda.synchronize()  # steps may run in streams of their own
