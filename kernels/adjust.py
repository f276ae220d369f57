"""Penalties, biases and end ids held back, applied to logits before a token is chosen.

For steps in which some row asks for one of them. What they need lives on the device (``worker/sampling/state.py``): the
host's token lists are a step late under overlap, the counts here are not, because the step itself advances them.
"""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, tl

#: Bits of a row's features: some of those of the worker's sampling parameters.
PENALTY, BIAS, MIN_TOKENS = 4, 8, 16
#: A count holds how often a token was generated, and from this bit on whether it is in the prompt.
IN_PROMPT = 1 << 24

_BLOCK = 2048


def adjust_logits(
    logits: torch.Tensor,
    slots: torch.Tensor,
    features: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
    min_tokens: torch.Tensor,
    output_count: torch.Tensor,
    held_back: torch.Tensor,
    counts: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """fp32 ``[B, vocab]`` of ``logits`` bf16 or fp32 ``[B, vocab]``, which stay as they are.

    ``slots`` int32 ``[B]``: rows of the tables; ``features`` int32 ``[B]``: what a row asks for. Of PENALTY rows:
    ``repetition`` (a factor, 1 = none), ``presence`` and ``frequency`` fp32 ``[B]``, and ``counts`` int32
    ``[rows, vocab]``. Of BIAS rows: ``bias`` fp32 ``[rows, vocab]``. Of MIN_TOKENS rows with fewer than ``min_tokens``
    outputs (``output_count``; both int32 ``[B]``): the ids ``held_back`` int32 ``[B, n]`` become ``-inf``. Vectors may
    be strided.
    """
    if logits.is_cuda:
        return adjust_logits_triton(
            logits, slots, features, repetition, presence, frequency, min_tokens, output_count, held_back, counts, bias
        )
    out = logits.float().clone()
    rows = slots.long()
    asks = [(features & bit).bool() for bit in (PENALTY, BIAS, MIN_TOKENS)]
    seen, values = counts[rows[asks[0]]], out[asks[0]]
    outputs = seen & (IN_PROMPT - 1)
    factor = repetition[asks[0], None]
    values = torch.where(seen > 0, torch.where(values > 0, values / factor, values * factor), values)
    out[asks[0]] = values - frequency[asks[0], None] * outputs - presence[asks[0], None] * (outputs > 0)
    out[asks[1]] += bias[rows[asks[1]]]
    for row in (asks[2] & (output_count < min_tokens)).nonzero()[:, 0].tolist():
        out[row, held_back[row].long()] = -torch.inf
    return out


def count_tokens(tokens: torch.Tensor, slots: torch.Tensor, features: torch.Tensor, counts: torch.Tensor) -> None:
    """Counts each PENALTY row's token (int64 ``[B]``), in place; the rows are distinct."""
    if tokens.is_cuda:
        count_tokens_triton(tokens, slots, features, counts)
        return
    asks = (features & PENALTY).bool()
    counts[slots[asks].long(), tokens[asks]] += 1


@jit
def _adjust_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    features: tl.tensor,
    repetition: tl.tensor,
    presence: tl.tensor,
    frequency: tl.tensor,
    min_tokens: tl.tensor,
    output_count: tl.tensor,
    held_back: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    feature_stride: tl.tensor,
    repetition_stride: tl.tensor,
    presence_stride: tl.tensor,
    frequency_stride: tl.tensor,
    min_stride: tl.tensor,
    output_stride: tl.tensor,
    held_stride: tl.tensor,
    HELD: tl.constexpr,
    PENALTY: tl.constexpr,
    BIAS: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
    IN_PROMPT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    slot = tl.load(slots + row).to(tl.int64)
    asks = tl.load(features + row * feature_stride)
    value = tl.load(logits + row.to(tl.int64) * stride + ids, mask=inside, other=0).to(tl.float32)
    if (asks & PENALTY) != 0:
        seen = tl.load(counts + slot * vocab + ids, mask=inside, other=0)
        outputs = seen & (IN_PROMPT - 1)
        factor = tl.load(repetition + row * repetition_stride)
        value = tl.where(seen > 0, tl.where(value > 0, value / factor, value * factor), value)
        value -= tl.load(frequency + row * frequency_stride) * outputs.to(tl.float32)
        value -= tl.where(outputs > 0, tl.load(presence + row * presence_stride), 0.0)
    if (asks & BIAS) != 0:
        value += tl.load(bias + slot * vocab + ids, mask=inside, other=0)
    early = tl.load(output_count + row * output_stride) < tl.load(min_tokens + row * min_stride)
    if ((asks & MIN_TOKENS) != 0) & early:
        for index in range(HELD):
            value = tl.where(ids == tl.load(held_back + row * held_stride + index), float("-inf"), value)
    tl.store(out + row.to(tl.int64) * vocab + ids, value, mask=inside)


def adjust_logits_triton(
    logits: torch.Tensor,
    slots: torch.Tensor,
    features: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
    min_tokens: torch.Tensor,
    output_count: torch.Tensor,
    held_back: torch.Tensor,
    counts: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """:func:`adjust_logits` in one kernel; rows that ask for nothing are converted only."""
    rows, vocab = logits.shape
    out = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
    _adjust_kernel[(rows, -(-vocab // _BLOCK))](
        logits, slots, features, repetition, presence, frequency, min_tokens, output_count, held_back, counts, bias,
        out, vocab, logits.stride(0), features.stride(0), repetition.stride(0), presence.stride(0),
        frequency.stride(0), min_tokens.stride(0), output_count.stride(0), held_back.stride(0),
        HELD=held_back.shape[1], PENALTY=PENALTY, BIAS=BIAS, MIN_TOKENS=MIN_TOKENS, IN_PROMPT=IN_PROMPT,
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


@jit
def _count_kernel(
    tokens: tl.tensor,
    slots: tl.tensor,
    features: tl.tensor,
    counts: tl.tensor,
    vocab: tl.tensor,
    feature_stride: tl.tensor,
    PENALTY: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    if (tl.load(features + row * feature_stride) & PENALTY) != 0:
        place = counts + tl.load(slots + row).to(tl.int64) * vocab + tl.load(tokens + row)
        tl.store(place, tl.load(place) + 1)


def count_tokens_triton(
    tokens: torch.Tensor, slots: torch.Tensor, features: torch.Tensor, counts: torch.Tensor
) -> None:
    """:func:`count_tokens` in one kernel."""
    _count_kernel[(tokens.shape[0],)](
        tokens, slots, features, counts, counts.shape[1], features.stride(0), PENALTY=PENALTY, num_warps=1
    )
