"""From logits to tokens, for the rows of one step.

Order, as in ``transformers``: penalties, bias, end ids held back by ``min_tokens``; then temperature, top-k, top-p,
min-p; then the draw. ``logprobs`` are of the model's own distribution: before penalties, bias, temperature and filters,
as in OpenAI's API and vLLM.

Groups of rows are chosen on the host, which knows every row's parameters, so that plain greedy rows cost one argmax
and no softmax, and drawing rows that filter need noise for their candidates only. A row's token does not depend on the
group that it shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.kernels.adjust import IN_PROMPT
from denizen.kernels.draw import log_exponential
from denizen.worker.sampling.params import ROW_BYTES, Feature, SamplingParams, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from denizen.worker.sampling.state import SamplerState

#: Candidates that a filtering row looks at first. A row whose filters keep them all looks at more, at last at all.
CANDIDATES = 128
_MORE = 8


def _no_rows() -> np.ndarray:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class SamplePlan:
    """Which rows of a step's logits ask for what: indices int64 of rows."""

    features: int
    greedy: np.ndarray = field(default_factory=_no_rows)
    plain: np.ndarray = field(default_factory=_no_rows)  #: draw from the whole vocabulary
    filtered: np.ndarray = field(default_factory=_no_rows)
    penalty: np.ndarray = field(default_factory=_no_rows)
    bias: np.ndarray = field(default_factory=_no_rows)
    min_tokens: np.ndarray = field(default_factory=_no_rows)
    alternatives: int = 0
    candidates: int = CANDIDATES

    @classmethod
    def of(cls, bits: np.ndarray, padded: int, rows: Callable[[], Sequence[tuple[SamplingParams, int]]]) -> SamplePlan:
        """``bits`` int32 ``[n]``: features of each row; the batch has ``padded`` rows, null rows being greedy.

        ``rows``: gives the parameters of each row and the index of its output token to come. Few steps need them.
        """
        features = int(np.bitwise_or.reduce(bits))
        if not features:
            return PLAIN
        asked = np.zeros(padded, np.int32)
        asked[: len(bits)] = bits
        min_tokens = _no_rows()
        alternatives, candidates = 0, CANDIDATES
        if features & (Feature.MIN_TOKENS | Feature.LOGPROBS | Feature.FILTER):
            known = rows()
            alternatives = max(p.logprobs or 0 for p, _ in known)
            top_k = [p.top_k for p, _ in known if p.features & Feature.FILTER]
            candidates = max([CANDIDATES] + [k + 1 for k in top_k if k < CANDIDATES * _MORE])
            early = [bool(p.features & Feature.MIN_TOKENS) and index < p.min_tokens for p, index in known]
            min_tokens = np.flatnonzero(early)
            if not len(min_tokens):
                features &= ~Feature.MIN_TOKENS
        draws = asked & (Feature.DRAW | Feature.FILTER)
        return cls(
            features,
            np.flatnonzero(draws == 0),
            np.flatnonzero(draws == Feature.DRAW),
            np.flatnonzero(draws > Feature.DRAW),
            np.flatnonzero(asked & Feature.PENALTY),
            np.flatnonzero(asked & Feature.BIAS),
            min_tokens,
            alternatives,
            candidates,
        )


#: No row asks for anything: all are greedy.
PLAIN = SamplePlan(0)


@dataclass
class Sampled:
    """``tokens`` int64 ``[B]``; with LOGPROBS also ``logprob`` fp32 ``[B]`` and the alternatives ``[B, n]``."""

    tokens: torch.Tensor
    logprob: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None


class Sampler:
    """Samples for the rows of one model. Only the device thread calls it."""

    def __init__(self, vocab: int, state: SamplerState) -> None:
        self.state = state
        self._ids = torch.arange(vocab, dtype=torch.int32, device=state.counts.device)

    def sample(
        self,
        plan: SamplePlan,
        logits: torch.Tensor,
        rows: torch.Tensor,
        blocks: torch.Tensor,
        output_count: torch.Tensor,
        position: torch.Tensor,
    ) -> Sampled:
        """Next tokens of ``logits`` fp32 ``[B, vocab]``, which may be overwritten.

        ``rows`` int64 ``[B]``: rows of the tables; ``blocks`` int32 ``[rows of the tables, ROW_BYTES // 4]``: the
        sampler blocks; ``output_count`` int32 ``[B]``; ``position`` int64 ``[B]``: absolute position of the token to
        come.
        """
        if not plan.features:
            return Sampled(_argmax(logits))
        params = blocks.index_select(0, rows).view(torch.uint8).view(-1, ROW_BYTES)
        changes = plan.features & (Feature.PENALTY | Feature.BIAS | Feature.MIN_TOKENS)
        raw = logits.clone() if changes and plan.features & Feature.LOGPROBS else logits
        if plan.features & Feature.PENALTY:
            self._penalties(logits, _index(plan.penalty, logits), rows, params)
        if plan.features & Feature.BIAS:
            index = _index(plan.bias, logits)
            logits.index_add_(0, index, self.state.bias.index_select(0, rows[index]))
        if plan.features & Feature.MIN_TOKENS:
            _hold_back(logits, _index(plan.min_tokens, logits), params, output_count)
        tokens = self._choose(plan, logits, params, position)
        if plan.features & Feature.PENALTY:
            index = _index(plan.penalty, logits)
            one = torch.ones((), dtype=torch.int32, device=logits.device)
            self.state.counts.index_put_((rows[index], tokens[index]), one, accumulate=True)
        return _logprobs(raw, tokens, plan.alternatives) if plan.features & Feature.LOGPROBS else Sampled(tokens)

    def _choose(
        self, plan: SamplePlan, logits: torch.Tensor, params: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        if not plan.features & Feature.DRAW:
            return _argmax(logits)
        tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        greedy, plain, filtered = (_index(group, logits) for group in (plan.greedy, plan.plain, plan.filtered))
        seed, temperature = unpack(params, "seed"), unpack(params, "temperature")
        if greedy.numel():
            tokens[greedy] = _argmax(logits[greedy])
        if plain.numel():
            scaled = logits[plain].div_(temperature[plain, None])
            noise = log_exponential(seed[plain], position[plain], self._ids)
            tokens[plain] = _argmax(scaled.sub_(noise))
        if filtered.numel():
            scaled = logits[filtered].div_(temperature[filtered, None])
            tokens[filtered] = draw_filtered(
                scaled, params[filtered], seed[filtered], position[filtered], plan.candidates
            )
        return tokens

    def _penalties(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor, params: torch.Tensor) -> None:
        counts = self.state.counts.index_select(0, rows[index])
        outputs = counts & (IN_PROMPT - 1)
        values = logits[index]
        repetition, presence, frequency = (
            unpack(params, name)[index, None]
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        )
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(counts > 0, repeated, values)
        values -= frequency * outputs
        values -= presence * (outputs > 0)
        logits.index_copy_(0, index, values)


def draw_filtered(
    scaled: torch.Tensor, params: torch.Tensor, seed: torch.Tensor, position: torch.Tensor, candidates: int
) -> torch.Tensor:
    """Draws from logits ``[n, vocab]``, temperature applied, after top-k, top-p and min-p: ids int64 ``[n]``."""
    values, ids = torch.topk(scaled, min(candidates, scaled.shape[1]), dim=-1)
    keep = kept_candidates(values, torch.softmax(scaled, dim=-1).gather(1, ids), params)
    noise = log_exponential(seed, position, ids.to(torch.int32))
    best = torch.argmax((values - noise).masked_fill_(~keep, -math.inf), dim=-1, keepdim=True)
    tokens = ids.gather(1, best)[:, 0]
    if values.shape[1] < scaled.shape[1]:
        deep = keep[:, -1].nonzero()[:, 0]  # the filters keep the last candidate, so perhaps more
        if deep.numel():
            tokens[deep] = draw_filtered(scaled[deep], params[deep], seed[deep], position[deep], candidates * _MORE)
    return tokens


def kept_candidates(values: torch.Tensor, mass: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
    """Which of the candidates top-k, then top-p, then min-p keep: bool ``[n, K]``.

    ``values`` fp32 ``[n, K]``: the largest logits, falling; ``mass`` fp32 ``[n, K]``: their part of the whole row's
    softmax. Each filter keeps what is at least as likely as the last token that it needs, as ``kernels/filter.py``:
    a choice among equals would depend on how many candidates there are, hence on the row's neighbours. Top-p needs
    tokens until they hold p of what top-k left.
    """
    top_k, top_p, min_p = (unpack(params, name)[:, None] for name in ("top_k", "top_p", "min_p"))
    kth = values.gather(1, (top_k.long() - 1).clamp(0, values.shape[1] - 1))
    keep = (top_k == 0) | (values >= kth)
    mass = mass * keep
    total = torch.cumsum(mass, dim=-1)  # whose order of summing does not depend on K
    left = torch.where(top_k == 0, 1.0, total[:, -1:])
    needed = (keep & (total - mass < top_p * left)).sum(dim=-1, keepdim=True).clamp_(min=1)
    keep &= (top_p >= 1.0) | (values >= values.gather(1, needed - 1))
    return keep & (values >= values[:, :1] + torch.log(min_p))


def _hold_back(logits: torch.Tensor, index: torch.Tensor, params: torch.Tensor, output_count: torch.Tensor) -> None:
    """End ids of rows with fewer than ``min_tokens`` outputs cannot be sampled."""
    ids = unpack(params, "masked_ids")[index].long()
    early = (output_count[index] < unpack(params, "min_tokens")[index])[:, None]
    values = logits[index]
    # A row's list repeats its first id up to its fixed length, so equal writes meet in one place at worst.
    values.scatter_(1, ids, torch.where(early, -math.inf, values.gather(1, ids)))
    logits.index_copy_(0, index, values)


def _logprobs(raw: torch.Tensor, tokens: torch.Tensor, alternatives: int) -> Sampled:
    scores = torch.log_softmax(raw, dim=-1)
    values, ids = torch.topk(scores, alternatives, dim=-1)
    return Sampled(tokens, scores.gather(1, tokens[:, None])[:, 0], ids, values)


def _argmax(values: torch.Tensor) -> torch.Tensor:
    """Index of the first maximum of each row, int64 ``[B]``. On the CPU by numpy, which vectorises it."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().argmax(-1))
    return torch.argmax(values, dim=-1)


def _index(group: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(group, device=like.device)
