"""The sampler of captured steps: which kernels run is fixed when a graph is captured, what they do is up to the rows.

Three variants suffice. A row's token does not depend on the variant that its step runs: a row that asks for nothing
passes every kernel unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from denizen.kernels.adjust import adjust_logits, count_tokens
from denizen.kernels.filter import filter_threshold
from denizen.kernels.sample import gumbel_argmax
from denizen.worker.sampling.params import MAX_LOGPROBS, ROW_BYTES, Feature, unpack

if TYPE_CHECKING:
    from denizen.worker.sampling.state import SamplerState


class Variant(IntEnum):
    """What a captured step can do; each does all that the ones before it do."""

    PLAIN = 0  #: greedy and draws from the whole vocabulary
    FILTERED = 1  #: top-k, top-p, min-p
    FULL = 2  #: penalties, bias, min_tokens, log-probabilities

    @classmethod
    def of(cls, features: int) -> Variant:
        """The least variant for rows that ask for ``features`` (bits of :class:`Feature`)."""
        if features & ~(Feature.DRAW | Feature.FILTER):
            return cls.FULL
        return cls.FILTERED if features & Feature.FILTER else cls.PLAIN


@dataclass(frozen=True)
class Logprobs:
    """Host memory that a FULL step leaves log-probabilities in: pinned, of one walk and graph slot.

    Every step of a model that hears leaves the first column, and its prefill steps what the model observed.
    """

    logprob: torch.Tensor  #: fp32 [rows]
    top_ids: torch.Tensor  #: int64 [rows, MAX_LOGPROBS]
    top_logprobs: torch.Tensor  #: fp32 [rows, MAX_LOGPROBS]
    observed: torch.Tensor  #: fp32 [rows]

    @classmethod
    def allocate(cls, rows: int, vocab: int, device: torch.device) -> Logprobs:
        def pinned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")

        width = min(MAX_LOGPROBS, vocab)
        return cls(pinned(rows), pinned(rows, width, dtype=torch.int64), pinned(rows, width), pinned(rows))


def sample_captured(
    variant: Variant,
    logits: torch.Tensor,
    slots: torch.Tensor,
    blocks: torch.Tensor,
    output_count: torch.Tensor,
    position: torch.Tensor,
    state: SamplerState,
    logprobs: Logprobs,
    sampled: torch.Tensor | None = None,
) -> torch.Tensor:
    """Tokens int64 ``[B]`` of ``logits`` ``[B, vocab]``; FULL also counts them and fills ``logprobs``.

    ``slots`` int32 ``[B]``; ``blocks`` int32 ``[rows of the tables, ROW_BYTES // 4]`` and ``output_count`` int32
    ``[rows of the tables]``: columns of the tables; ``position`` int64 ``[B]``: of the token to come; ``sampled`` bool
    ``[B]``: rows whose token counts (None = all).
    """
    rows = slots.long()
    params = blocks[rows].view(torch.uint8).view(-1, ROW_BYTES)
    temperature, seed = unpack(params, "temperature"), unpack(params, "seed")
    if variant is Variant.PLAIN:
        return gumbel_argmax(logits, temperature, seed, position)
    raw = logits
    features = unpack(params, "features")
    if variant is Variant.FULL:
        if sampled is not None:
            features = features * sampled
        logits = adjust_logits(
            logits,
            slots,
            features,
            unpack(params, "repetition_penalty"),
            unpack(params, "presence_penalty"),
            unpack(params, "frequency_penalty"),
            unpack(params, "min_tokens"),
            output_count[rows],
            unpack(params, "masked_ids"),
            state.counts,
            state.bias,
        )
    threshold = filter_threshold(
        logits, temperature, unpack(params, "top_k"), unpack(params, "top_p"), unpack(params, "min_p")
    )
    tokens = gumbel_argmax(logits, temperature, seed, position, threshold)
    if variant is Variant.FULL:
        count_tokens(tokens, slots, features, state.counts)
        _leave_logprobs(raw, tokens, logprobs)
    return tokens


def leave_logprob(raw: torch.Tensor, tokens: torch.Tensor, out: Logprobs) -> torch.Tensor:
    """The sampled tokens' own, of the model's distribution ``raw`` ``[B, vocab]``: before penalties, bias, temperature
    and filters. Returns the log of its total, fp32 ``[B, 1]``."""
    total = torch.logsumexp(raw.float(), dim=-1, keepdim=True)
    scores = raw.gather(1, tokens[:, None]).float() - total
    out.logprob[: len(tokens)].copy_(scores[:, 0], non_blocking=True)
    return total


def _leave_logprobs(raw: torch.Tensor, tokens: torch.Tensor, out: Logprobs) -> None:
    rows = len(tokens)
    total = leave_logprob(raw, tokens, out)
    values, ids = torch.topk(raw, out.top_ids.shape[1], dim=-1)
    out.top_ids[:rows].copy_(ids, non_blocking=True)
    out.top_logprobs[:rows].copy_(values.float() - total, non_blocking=True)
