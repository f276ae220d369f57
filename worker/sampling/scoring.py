"""Log-probabilities of prompt tokens, computed chunk by chunk while the prompt is prefilled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from denizen.worker.request import Request
    from denizen.worker.resident.planner import StepPlan

#: Positions that go through the LM head at once, so that logits of a long chunk never exist as a whole.
_BLOCK = 128


@dataclass(frozen=True)
class PromptScores:
    """``(logprob, alternatives)`` of the prompt positions from ``first`` on."""

    request: Request
    first: int
    scores: list[tuple[float, tuple[tuple[int, float], ...]]]


def score_prompt(
    plan: StepPlan, hidden: torch.Tensor, logits: Callable[[torch.Tensor], torch.Tensor]
) -> list[PromptScores]:
    """Scores for the entries that ask for them. ``hidden`` ``[T, H]`` of the step; a token's score comes from the
    position before it, so a chunk scores the positions after its own, up to the first of the next chunk."""
    results = []
    offset = 0
    for entry in plan.entries:
        request = entry.request
        count = min(entry.count, len(request.prompt) - 1 - entry.start)
        if request.prompt_logprobs is not None and count > 0:
            targets = torch.as_tensor(request.prompt[entry.start + 1 : entry.start + 1 + count]).long()
            scores: list[tuple[float, tuple[tuple[int, float], ...]]] = []
            for begin in range(0, count, _BLOCK):
                end = min(begin + _BLOCK, count)
                block = logits(hidden[offset + begin : offset + end]).float()
                scores += _score(block, targets[begin:end].to(block.device), request.prompt_logprobs)
            results.append(PromptScores(request, entry.start + 1, scores))
        offset += entry.count
    return results


def _score(
    logits: torch.Tensor, targets: torch.Tensor, alternatives: int
) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
    total = torch.logsumexp(logits, dim=-1, keepdim=True)
    own = (logits.gather(1, targets[:, None]) - total)[:, 0].tolist()
    values, ids = torch.topk(logits, alternatives, dim=-1)
    tops = zip(ids.tolist(), (values - total).tolist(), strict=True)
    return [(score, tuple(zip(*top, strict=True))) for score, top in zip(own, tops, strict=True)]
