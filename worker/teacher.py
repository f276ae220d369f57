"""Teacher forcing through the worker's own path: scheduler, pools, tables, attention. For exactness checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.asr import AsrOptions
from denizen.worker.models.base import Speech
from denizen.worker.request import Request
from denizen.worker.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from denizen.worker.models.base import Model
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.runner import StepResult
    from denizen.worker.served import ServedModel


def teacher_forced(
    served: ServedModel,
    sequences: Sequence[Sequence[int]],
    prompts: Sequence[int] | None = None,
    audio: Sequence[np.ndarray] | None = None,
) -> list[torch.Tensor]:
    """fp32 logits ``[len(sequence), vocab]`` of every position of every sequence, computed together.

    ``prompts``: how many tokens of each sequence are prefilled, at least 1 (None = all); the others are fed by decode
    steps. Chunks, batches and preemptions come from the model's own scheduler, so ``prefill_chunk``, ``max_rows`` and
    ``kv_tokens`` decide them. A sequence may be one shorter than the context. No engine may run meanwhile. On a GPU,
    steps that give all logits run outside of their graphs. ``audio``: fp32 samples of each, for a model that hears.
    """
    device = served.runner.tables.words.device
    logits = [torch.full((len(ids), served.model.vocab_size), torch.nan, device=device) for ids in sequences]
    for plan, result, numbers in forced_steps(served, sequences, prompts, audio, all_logits=True):
        assert result.logits is not None
        offset = 0
        for entry, number in zip(plan.entries, numbers, strict=True):
            logits[number][entry.start : entry.start + entry.count] = result.logits[offset : offset + entry.count]
            offset += entry.count
    return logits


def forced_steps(
    served: ServedModel,
    sequences: Sequence[Sequence[int]],
    prompts: Sequence[int] | None = None,
    audio: Sequence[np.ndarray] | None = None,
    *,
    all_logits: bool = False,
) -> Iterator[tuple[StepPlan, StepResult, list[int]]]:
    """Each step that has run, its result, and the number of the sequence behind each of its rows.

    The steps are those of an engine, graphs included, unless ``all_logits`` asks for those of every token. What a step
    sampled is replaced by the sequences' own tokens. See :func:`teacher_forced`.
    """
    lengths = prompts or [len(ids) for ids in sequences]
    index = {}
    for number, (ids, length) in enumerate(zip(sequences, lengths, strict=True)):
        request = Request(
            number + 1, np.asarray(ids[:length], np.int32), SamplingParams(), max_tokens=len(ids) - length + 1
        )
        if audio is not None:
            request.speech = Speech(request.prompt, request.outputs, AsrOptions(), audio[number])
        served.scheduler.submit(request)
        index[request.id] = number
    while not served.scheduler.idle:
        for walk in ("decode", "prefill"):
            plan = served.scheduler.plan_decode() if walk == "decode" else served.scheduler.plan_prefill()
            if plan is None:
                continue
            plan.all_logits = all_logits
            served.scheduler.commit(plan)
            result = served.runner.run(plan)
            served.scheduler.complete(plan)
            yield plan, result, [index[request.id] for request in plan.requests]
            _force(served, plan, sequences, index)


def _force(served: ServedModel, plan: StepPlan, sequences: Sequence[Sequence[int]], index: dict[int, int]) -> None:
    rows, tokens = [], []
    for entry in plan.entries:
        request, end = entry.request, entry.start + entry.count
        ids = sequences[index[request.id]]
        if not entry.samples:
            continue
        if end == len(ids):
            served.scheduler.end(request)
            continue
        request.outputs.append(ids[end])
        rows.append(entry.row)
        tokens.append(ids[end])
    last_token = served.runner.tables.last_token
    last_token[torch.tensor(rows, dtype=torch.int64, device=last_token.device)] = torch.tensor(
        tokens, dtype=torch.int32, device=last_token.device
    )
    if last_token.is_cuda:
        torch.cuda.synchronize()  # steps may run in streams of their own


class KeptLogits:
    """Keeps the logits that each step computes, captured ones too. Wrap a model before its graphs are captured.

    While the tensor of a capture is referred to, its memory belongs to that graph alone, so that after a replay it
    holds the step's logits, whatever ran in between.
    """

    def __init__(self, model: Model) -> None:
        self._captured: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None
        self._logits = model.logits
        model.logits = self._keep  # type: ignore[method-assign]

    def _keep(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._logits(hidden)
        if logits.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured.append(logits)
        else:
            self._last = logits
        return logits

    def of(self, served: ServedModel, plan: StepPlan) -> torch.Tensor:
        """fp32 ``[rows, vocab]`` of the step that has just run: a row a request of the plan, then padding.

        Rows of a prefill step whose prompts go on are meaningless. On a CPU worker only sampled rows have logits.
        """
        runner = served.runner
        graphs = getattr(runner, "_graphs", {})
        if not graphs:
            assert self._last is not None
            return self._last.float()
        assert len(self._captured) == len(graphs)
        step = (plan.walk, runner._bucket(plan), plan.graph_slot)  # type: ignore[union-attr]
        # A step's variants are captured one after the other; teacher forcing, which is greedy, runs the first.
        return self._captured[[key[:3] for key in graphs].index(step)].float()
