"""One token a row from its logits: the most likely one, or a Gumbel-max draw, without probabilities of the vocabulary.

``argmax(logits / T - log E)`` is a draw from ``softmax(logits / T)`` (``kernels/draw.py``). On the GPU it takes two
kernels: blocks of the vocabulary, then the best of the blocks. A row's token depends on its own logits, seed and
position alone, never on its row, the batch or the bucket.
"""

from __future__ import annotations

import torch
from denizen.kernels.draw import draw_key, draw_log_exponential, draw_uniform, log_exponential
from denizen.kernels.jit import jit, power_of_two, tl

#: Launch shape of the first kernel.
BLOCK, BLOCK_WARPS = 1024, 1


def gumbel_argmax(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    threshold: torch.Tensor | None = None,
) -> torch.Tensor:
    """Tokens int64 ``[B]`` of ``logits`` ``[B, vocab]`` (bf16 or fp32; contiguous rows, left as they are).

    ``temperature`` fp32 ``[B]``, 0 = greedy (the lowest id among equals); ``seed`` int64 ``[B]``; ``position`` int64
    ``[B]``: absolute position of the token to come. Each of them may be strided. ``threshold`` fp32 ``[B]`` of
    ``kernels/filter.py``: the least logit that may be drawn.
    """
    if logits.is_cuda:
        return gumbel_argmax_triton(logits, temperature, seed, position, threshold)
    ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    drawing = temperature > 0
    scaled = logits.float() / torch.where(drawing, temperature, 1.0)[:, None]
    if threshold is not None:
        scaled.masked_fill_(logits.float() < threshold[:, None], -torch.inf)
    noise = log_exponential(seed, position, ids).masked_fill_(~drawing[:, None], 0)
    return torch.argmax(scaled - noise, dim=-1)


@jit
def _best_of_block_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    threshold: tl.tensor,
    best: tl.tensor,
    best_id: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    temperature_stride: tl.tensor,
    seed_stride: tl.tensor,
    position_stride: tl.tensor,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    FILTER: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    value = tl.load(logits + row * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    heat = tl.load(temperature + row * temperature_stride)
    if heat > 0:
        low, high = draw_key(tl.load(seed + row * seed_stride), tl.load(position + row * position_stride))
        noise = draw_log_exponential(draw_uniform(low, high, ids))
        if FILTER:
            inside = inside & (value >= tl.load(threshold + row))
        value = tl.where(inside, value * (1 / heat) - noise, float("-inf"))
    # The lowest id among equals in two reductions: a quarter of the instructions that carry (value, id) pairs take.
    top = tl.max(value, 0)
    tl.store(best + row * BLOCKS + block, top)
    tl.store(best_id + row * BLOCKS + block, tl.min(tl.where(value == top, ids, block * BLOCK + BLOCK), 0))


@jit
def _best_of_row_kernel(
    best: tl.tensor, best_id: tl.tensor, tokens: tl.tensor, vocab: tl.tensor, BLOCKS: tl.constexpr, W: tl.constexpr
) -> None:
    row = tl.program_id(0)
    lane = tl.arange(0, W)
    inside = lane < BLOCKS
    value = tl.load(best + row * BLOCKS + lane, mask=inside, other=float("-inf"))
    ids = tl.load(best_id + row * BLOCKS + lane, mask=inside, other=0)
    _, at = tl.max(value, 0, return_indices=True)
    token = tl.sum(tl.where(lane == at, ids, 0), 0)
    # Logits that are not numbers choose anything, but never an id that is none.
    tl.store(tokens + row, tl.minimum(token, vocab - 1).to(tl.int64))


def gumbel_argmax_triton(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    threshold: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`gumbel_argmax` for the GPU."""
    rows, vocab = logits.shape
    blocks = -(-vocab // BLOCK)
    best = torch.empty((rows, blocks), dtype=torch.float32, device=logits.device)
    best_id = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _best_of_block_kernel[(rows, blocks)](
        logits,
        temperature,
        seed,
        position,
        temperature if threshold is None else threshold,
        best,
        best_id,
        vocab,
        logits.stride(0),
        temperature.stride(0),
        seed.stride(0),
        position.stride(0),
        BLOCKS=blocks,
        BLOCK=BLOCK,
        FILTER=threshold is not None,
        num_warps=BLOCK_WARPS,
    )
    _best_of_row_kernel[(rows,)](best, best_id, tokens, vocab, BLOCKS=blocks, W=power_of_two(blocks), num_warps=1)
    return tokens
