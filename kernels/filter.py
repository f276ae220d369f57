"""Top-k, top-p and min-p as one number a row: the smallest logit that may still be drawn.

All three keep the most likely tokens, so that each is a threshold, and the highest of them is the row's. Tokens that
tie with the threshold are all kept, as in ``transformers``. Finding it needs no sort and no list of candidates: it is
built from its highest bits down, counting (top-k) or weighing (top-p) the logits that lie above.
"""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, tl

_BLOCK = 8192


def filter_threshold(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """fp32 ``[B]``: draw among the logits that are at least this; ``-inf`` where a row does not filter or draw.

    ``logits`` ``[B, vocab]`` bf16 or fp32, before temperature; the rest ``[B]``, may be strided: ``temperature`` fp32
    (0 = greedy), ``top_k`` int32 (0 = all), ``top_p`` fp32 (1 = all) of what top-k left, ``min_p`` fp32 (0 = all).
    """
    if logits.is_cuda:
        return filter_threshold_triton(logits, temperature, top_k, top_p, min_p)
    values = logits.float().sort(dim=-1, descending=True).values
    drawing = temperature > 0
    heat = torch.where(drawing, temperature, 1.0)[:, None]
    rank = (top_k.long() - 1).clamp(0, values.shape[1] - 1)[:, None]
    kth = torch.where(top_k[:, None] > 0, values.gather(1, rank), -torch.inf)
    mass = torch.where(values >= kth, (values - values[:, :1]).div(heat).exp(), 0.0).double().cumsum(dim=-1)
    enough = (mass >= top_p[:, None].double() * mass[:, -1:]).int().argmax(dim=-1, keepdim=True)
    pth = torch.where(top_p[:, None] < 1, values.gather(1, enough), -torch.inf)
    least = values[:, :1] + heat * min_p[:, None].log()
    threshold = torch.maximum(torch.maximum(kth, pth), least)[:, 0]
    return torch.where(drawing, threshold, -torch.inf)


@jit
def _ordered(value: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Unsigned integers in the order of the floats; of bf16 the upper 16 bits say everything."""
    bits = value.to(tl.float32).to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000
    return key >> (32 - BITS)


@jit
def _tally(
    row: tl.tensor,
    vocab: tl.tensor,
    low: tl.tensor,
    step: tl.tensor,
    floor: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    WEIGH: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Count, or weight, of the keys from ``floor`` on that are at least ``low + step``, ``+ 2 step``, ``+ 3 step``."""
    lane = tl.arange(0, BLOCK)
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    third = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, vocab, BLOCK):
        value = tl.load(row + begin + lane, mask=begin + lane < vocab, other=float("-inf")).to(tl.float32)
        key = _ordered(value, BITS)
        weight = tl.where((key >= floor) & (begin + lane < vocab), 1.0, 0.0)
        if WEIGH:
            weight *= tl.exp((value - top) / heat)
        first += tl.where(key >= low + step, weight, 0.0)
        second += tl.where(key >= low + 2 * step, weight, 0.0)
        third += tl.where(key >= low + 3 * step, weight, 0.0)
    return tl.sum(first, 0), tl.sum(second, 0), tl.sum(third, 0)


@jit
def _largest(
    row: tl.tensor,
    vocab: tl.tensor,
    wanted: tl.tensor,
    floor: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    WEIGH: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The largest key with at least ``wanted`` from it on, two bits a pass over the row."""
    low = floor * 0
    for digit in range(0, BITS, 2):
        step = (low * 0 + 1) << (BITS - 2 - digit)
        first, second, third = _tally(row, vocab, low, step, floor, top, heat, WEIGH, BITS, BLOCK)
        steps = tl.where(third >= wanted, 3, tl.where(second >= wanted, 2, tl.where(first >= wanted, 1, 0)))
        low += step * steps.to(tl.uint32)
    return low


@jit
def _threshold_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    threshold: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    temperature_stride: tl.tensor,
    k_stride: tl.tensor,
    p_stride: tl.tensor,
    min_stride: tl.tensor,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    # One program a row, so that sums have one order whatever the batch; rows that do not filter end at once.
    index = tl.program_id(0)
    heat = tl.load(temperature + index * temperature_stride)
    k = tl.load(top_k + index * k_stride)
    p = tl.load(top_p + index * p_stride)
    least = tl.load(min_p + index * min_stride)
    result = heat * 0 - float("inf")
    if (heat > 0) & ((k > 0) | (p < 1) | (least > 0)):
        row = logits + index.to(tl.int64) * stride
        lane = tl.arange(0, BLOCK)
        best = tl.zeros([BLOCK], tl.float32) - float("inf")
        for begin in range(0, vocab, BLOCK):
            value = tl.load(row + begin + lane, mask=begin + lane < vocab, other=float("-inf"))
            best = tl.maximum(best, value.to(tl.float32))
        top = tl.max(best, 0)
        floor = (k * 0).to(tl.uint32)
        if k > 0:
            wanted = tl.minimum(k, vocab).to(tl.float32)
            floor = _largest(row, vocab, wanted, floor, top, heat, False, BITS, BLOCK)
        if p < 1:
            total, _, _ = _tally(row, vocab, floor * 0, floor * 0, floor, top, heat, True, BITS, BLOCK)
            floor = tl.maximum(floor, _largest(row, vocab, p * total, floor, top, heat, True, BITS, BLOCK))
        # Back to a float. Cut-off bits of a negative number are ones then: just below the bf16 it stands for.
        key = ((floor << (32 - BITS)) ^ 0x80000000).to(tl.int32, bitcast=True)
        kept = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        result = tl.where((k > 0) | (p < 1), kept, result)
        result = tl.where(least > 0, tl.maximum(result, top + heat * tl.log(tl.maximum(least, 1e-37))), result)
    tl.store(threshold + index, result)


def filter_threshold_triton(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """:func:`filter_threshold` for the GPU: 8 passes over a bf16 row for top-k, 9 more for top-p."""
    rows, vocab = logits.shape
    threshold = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _threshold_kernel[(rows,)](
        logits, temperature, top_k, top_p, min_p, threshold, vocab,
        logits.stride(0), temperature.stride(0), top_k.stride(0), top_p.stride(0), min_p.stride(0),
        BITS=16 if logits.dtype == torch.bfloat16 else 32, BLOCK=_BLOCK, num_warps=16,
    )  # fmt: skip
    return threshold
