"""Top-k, top-p and min-p as one number a row: the smallest logit that may still be drawn.

All three keep the most likely tokens, so that each is a threshold, and the highest of them is the row's. Tokens that
tie with the threshold are all kept, as in ``transformers``.

On the GPU it takes two kernels and no sort. The first notes the greatest logit and the weight of each group of 32. They
bound the threshold from below: the k-th greatest of the greatest is at most the k-th greatest logit, and what the
groups can hold below a logit is at most so much. Few groups reach that bound; the second kernel searches the threshold
among their logits, by count (top-k) or by weight (top-p).
"""

from __future__ import annotations

from typing import Any

import torch
from denizen.kernels.jit import jit, power_of_two, tl

#: Logits a group: one number of the second kernel's.
_GROUP = 32
#: Groups of a program of the first kernel; that the second holds in registers; that it takes at a time if it has more.
_GROUPS, _HELD, _TURN = 128, 64, 256
#: Launch shapes.
GROUP_WARPS, SEARCH_WARPS = 4, 16


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
def _ordered(value: tl.tensor) -> tl.tensor:
    """Unsigned integers in the order of the floats."""
    bits = value.to(tl.float32).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@jit
def _unordered(key: tl.tensor) -> tl.tensor:
    """The floats of :func:`_ordered`'s integers."""
    bits = (key ^ 0x80000000).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def _groups_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    greatest: tl.tensor,
    weights: tl.tensor,
    vocab: tl.tensor,
    groups: tl.tensor,
    stride: tl.tensor,
    temperature_stride: tl.tensor,
    k_stride: tl.tensor,
    p_stride: tl.tensor,
    min_stride: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + row * temperature_stride)
    k = tl.load(top_k + row * k_stride)
    p = tl.load(top_p + row * p_stride)
    if (heat > 0) & ((k > 0) | (p < 1) | (tl.load(min_p + row * min_stride) > 0)):
        group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
        ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        value = tl.load(logits + row * stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        most = tl.max(value, 1)
        place = row * groups + group
        tl.store(greatest + place, most, mask=group < groups)
        if (k <= 0) & (p < 1):
            weight = tl.where(value > float("-inf"), tl.exp((value - most[:, None]) / heat), 0.0)
            tl.store(weights + place, tl.sum(weight, 1), mask=group < groups)


@jit
def _weighed(
    value: tl.tensor,
    key: tl.tensor,
    low: tl.tensor,
    step: tl.tensor,
    least: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    WEIGH: tl.constexpr,
) -> Any:
    """Count, or weight, of the keys from ``least`` on that are at least ``low + step``, ``+ 2 step``, ``+ 3 step``."""
    weight = tl.where(key >= least, 1.0, 0.0)
    if WEIGH:
        weight *= tl.exp((value - top) / heat)
    first = tl.where(key >= low + step, weight, 0.0)
    second = tl.where(key >= low + 2 * step, weight, 0.0)
    third = tl.where(key >= low + 3 * step, weight, 0.0)
    return first, second, third


@jit
def _candidates(
    row: tl.tensor,
    listed: tl.tensor,
    begin: tl.tensor,
    count: tl.tensor,
    vocab: tl.tensor,
    GROUP: tl.constexpr,
    TURN: tl.constexpr,
) -> tl.tensor:
    """Logits of ``TURN`` of the listed groups."""
    at = begin + tl.arange(0, TURN)
    group = tl.load(listed + at, mask=at < count, other=0)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    present = (at < count)[:, None] & (ids < vocab)
    return tl.load(row + ids, mask=present, other=float("-inf")).to(tl.float32)


@jit
def _tally(
    row: tl.tensor,
    listed: tl.tensor,
    count: tl.tensor,
    vocab: tl.tensor,
    low: tl.tensor,
    step: tl.tensor,
    least: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    WEIGH: tl.constexpr,
    GROUP: tl.constexpr,
    TURN: tl.constexpr,
) -> Any:
    """:func:`_weighed` of all listed groups, in one order."""
    firsts = tl.zeros([TURN, GROUP], tl.float32)
    seconds = tl.zeros([TURN, GROUP], tl.float32)
    thirds = tl.zeros([TURN, GROUP], tl.float32)
    for begin in range(0, count, TURN):
        value = _candidates(row, listed, begin, count, vocab, GROUP, TURN)
        first, second, third = _weighed(value, _ordered(value), low, step, least, top, heat, WEIGH)
        firsts += first
        seconds += second
        thirds += third
    return tl.sum(firsts), tl.sum(seconds), tl.sum(thirds)


@jit
def _narrow(
    low: tl.tensor, step: tl.tensor, wanted: tl.tensor, first: tl.tensor, second: tl.tensor, third: tl.tensor
) -> tl.tensor:
    steps = tl.where(third >= wanted, 3, tl.where(second >= wanted, 2, tl.where(first >= wanted, 1, 0)))
    return low + step * steps.to(tl.uint32)


@jit
def _largest_held(
    value: tl.tensor,
    wanted: tl.tensor,
    least: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    WEIGH: tl.constexpr,
    UNIT: tl.constexpr,
) -> tl.tensor:
    """The largest key, ``least`` at least, with at least ``wanted`` from it on; each turn leaves a quarter."""
    key = _ordered(value)
    low = least
    span = (_ordered(top) - low) // UNIT + 1
    while span > 1:
        quarter = (span + 3) // 4
        step = quarter * UNIT
        first, second, third = _weighed(value, key, low, step, least, top, heat, WEIGH)
        low = _narrow(low, step, wanted, tl.sum(first), tl.sum(second), tl.sum(third))
        span = quarter
    return low


@jit
def _largest_listed(
    row: tl.tensor,
    listed: tl.tensor,
    count: tl.tensor,
    vocab: tl.tensor,
    wanted: tl.tensor,
    least: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    WEIGH: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    TURN: tl.constexpr,
) -> tl.tensor:
    """:func:`_largest_held` of logits that do not fit the registers."""
    low = least
    span = (_ordered(top) - low) // UNIT + 1
    while span > 1:
        quarter = (span + 3) // 4
        step = quarter * UNIT
        first, second, third = _tally(row, listed, count, vocab, low, step, least, top, heat, WEIGH, GROUP, TURN)
        low = _narrow(low, step, wanted, first, second, third)
        span = quarter
    return low


@jit
def _most_below(
    key: tl.tensor,
    weight: tl.tensor,
    rest: tl.tensor,
    bound: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """What all logits below the key ``bound`` weigh at most: groups below it all, others no more than their rest."""
    at_most = (GROUP - 1) * tl.exp((_unordered(bound) - top) / heat)
    return tl.sum(tl.where(key < bound, weight, tl.minimum(rest, at_most)))


@jit
def _bound_by_weight(
    most: tl.tensor,
    weight_of_group: tl.tensor,
    p: tl.tensor,
    least: tl.tensor,
    top: tl.tensor,
    heat: tl.tensor,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
) -> Any:
    """A key that top-p's threshold is not below, and the weight of all logits."""
    key = _ordered(most)
    own = tl.where(most > float("-inf"), tl.exp((most - top) / heat), 0.0)
    weight = own * weight_of_group
    rest = own * tl.maximum(weight_of_group - 1, 0)
    mass = tl.sum(weight)
    allowed = (1 - p) * mass * 0.9999  # less, for rounding
    low = least
    span = (_ordered(top) - low) // UNIT + 1
    while span > 1:
        quarter = (span + 3) // 4
        step = quarter * UNIT
        first = _most_below(key, weight, rest, low + step, top, heat, GROUP) <= allowed
        second = _most_below(key, weight, rest, low + 2 * step, top, heat, GROUP) <= allowed
        third = _most_below(key, weight, rest, low + 3 * step, top, heat, GROUP) <= allowed
        low += step * tl.where(third, 3, tl.where(second, 2, tl.where(first, 1, 0))).to(tl.uint32)
        span = quarter
    return low, mass


@jit
def _threshold_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    greatest: tl.tensor,
    weights: tl.tensor,
    listed: tl.tensor,
    threshold: tl.tensor,
    vocab: tl.tensor,
    groups: tl.tensor,
    stride: tl.tensor,
    temperature_stride: tl.tensor,
    k_stride: tl.tensor,
    p_stride: tl.tensor,
    min_stride: tl.tensor,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    HELD: tl.constexpr,
    TURN: tl.constexpr,
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
        lane = tl.arange(0, WIDTH)
        groups_of_row = index.to(tl.int64) * groups
        most = tl.load(greatest + groups_of_row + lane, mask=lane < groups, other=float("-inf"))
        top = tl.max(most, 0)
        if (k > 0) | (p < 1):
            floor = _ordered(top * 0 - float("inf"))
            mass = heat * 0
            if k > 0:
                floor = _largest_held(most, k.to(tl.float32), floor, top, heat, False, UNIT)
            else:
                weight = tl.load(weights + groups_of_row + lane, mask=lane < groups, other=0)
                floor, mass = _bound_by_weight(most, weight, p, floor, top, heat, UNIT, GROUP)
            within = (_ordered(most) >= floor) & (lane < groups)
            place = listed + groups_of_row
            count = tl.sum(within.to(tl.int32), 0)
            tl.store(place + tl.cumsum(within.to(tl.int32), 0) - 1, lane, mask=within)
            tl.debug_barrier()  # other threads of the program read the list
            wanted = tl.minimum(k, vocab).to(tl.float32)
            if count <= HELD:
                value = _candidates(row, place, 0, count, vocab, GROUP, HELD)
                if k > 0:
                    floor = _largest_held(value, wanted, floor, top, heat, False, UNIT)
                    mass = tl.sum(tl.where(_ordered(value) >= floor, tl.exp((value - top) / heat), 0.0))
                if p < 1:
                    floor = _largest_held(value, p * mass, floor, top, heat, True, UNIT)
            else:
                if k > 0:
                    floor = _largest_listed(
                        row, place, count, vocab, wanted, floor, top, heat, False, UNIT, GROUP, TURN
                    )
                    none = floor * 0
                    mass, _, _ = _tally(row, place, count, vocab, none, none, floor, top, heat, True, GROUP, TURN)
                if p < 1:
                    floor = _largest_listed(
                        row, place, count, vocab, p * mass, floor, top, heat, True, UNIT, GROUP, TURN
                    )
            result = _unordered(floor)
        if least > 0:
            result = tl.maximum(result, top + heat * tl.log(tl.maximum(least, 1e-37)))
    tl.store(threshold + index, result)


def filter_threshold_triton(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """:func:`filter_threshold` for the GPU."""
    rows, vocab = logits.shape
    groups = -(-vocab // _GROUP)
    greatest = torch.empty((rows, groups), dtype=torch.float32, device=logits.device)
    weights = torch.empty_like(greatest)
    listed = torch.empty((rows, groups), dtype=torch.int32, device=logits.device)
    threshold = torch.empty(rows, dtype=torch.float32, device=logits.device)
    strides = [x.stride(0) for x in (logits, temperature, top_k, top_p, min_p)]
    _groups_kernel[(rows, -(-groups // _GROUPS))](
        logits, temperature, top_k, top_p, min_p, greatest, weights, vocab, groups, *strides,
        GROUP=_GROUP, GROUPS=_GROUPS, num_warps=GROUP_WARPS,
    )  # fmt: skip
    # Keys of bf16 are 65,536 apart: the lower 16 bits say nothing.
    unit = 1 << 16 if logits.dtype == torch.bfloat16 else 1
    _threshold_kernel[(rows,)](
        logits, temperature, top_k, top_p, min_p, greatest, weights, listed, threshold, vocab, groups, *strides,
        UNIT=unit, GROUP=_GROUP, WIDTH=power_of_two(groups), HELD=_HELD, TURN=_TURN, num_warps=SEARCH_WARPS,
    )  # fmt: skip
    return threshold
