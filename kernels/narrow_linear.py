"""Products of few tokens with a large weight, where the time is that of reading the weight.

The weight is the left operand, ``[outputs, inputs] @ [inputs, tokens]``: its rows fill the tensor cores' 64, which few
tokens would not, and every weight is read once. The inner dimension may be split over programs, which then leave fp32
partial sums: the norm that follows adds them up (``kernels/norm.py``), in their order, so that no program waits for
another. A launch begins while the kernel before it still runs (``kernels/overlap.py``), and may load its weight or
have it on its way to the L2 cache before its tokens are there.

A token's result depends on the number of tokens, which chooses the tiling, and never on the other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from denizen.kernels.overlap import overlap, prefetch, release, wait
from torch.nn.functional import linear, silu

#: Tokens beyond which a general matrix product is as fast.
MOST_TOKENS = 256
#: Fewest tokens of a tile: the tensor cores' 8 columns twice.
_LEAST_TOKENS = 16
#: About one for each multiprocessor.
_PROGRAMS = 128
_MOST_SPLITS = 8


@dataclass(frozen=True)
class Tiling:
    """How a product is shared among programs."""

    rows: int  #: rows of the weight a program
    depth: int  #: of the inner dimension a turn, a power of two
    splits: int  #: of the inner dimension over programs
    stages: int  #: turns under way; 0 = the weight is loaded whole before the tokens are there
    warps: int = 4
    fetch: bool = False  #: the weight is brought to the L2 cache before the tokens are there
    release: bool = False  #: the next kernel may begin at once, not only at the end of this one


class Use(Enum):
    """What becomes of a product."""

    PLAIN = auto()  #: :func:`narrow_linear` without splits
    GATED = auto()  #: :func:`narrow_silu_mul`
    PARTIAL = auto()  #: :func:`narrow_linear`, whose partial sums are welcome


def choose_tiling(use: Use, tokens: int, outputs: int, inputs: int) -> Tiling | None:
    """The fastest way that was measured in a whole step on an H200; None = a general product is as fast.

    Wide outputs give each multiprocessor a program; narrow ones are split. Few tokens: a split's part of the weight is
    loaded at once, before the tokens are there. More tokens: turns, with the tokens beside the weight.
    """
    if tokens > MOST_TOKENS or inputs % 128:
        return None
    blocks = -(-outputs // 64)
    warps = 4 if tokens <= 128 else 8
    if use is Use.PARTIAL:
        most = _PROGRAMS // blocks if tokens <= 128 else _PROGRAMS // (2 * blocks)
        splits = next((n for n in range(min(most, _MOST_SPLITS), 1, -1) if inputs % (n * 128) == 0), 1)
        if splits == 1:
            return None
        split = inputs // splits
        if tokens <= 32 and split <= 512:
            return Tiling(64, min(split & -split, 256), splits, 0, release=True)
        return Tiling(64, 64, splits, 4, warps, fetch=True, release=tokens <= 128)
    if not _PROGRAMS // 2 <= blocks <= 2 * _PROGRAMS:
        return None
    # What follows a plain product has programs that hold much, such as the state of a delta net. Where there are many
    # of them, early ones only take room.
    release = tokens <= 32 or (use is Use.GATED and 64 < tokens <= 128)
    if tokens <= 16 and inputs % 256 == 0:
        return Tiling(64, 256, 1, 3, release=release)
    if tokens <= 64:
        return Tiling(64, 128, 1, 4, release=release)
    if tokens <= 128:
        return Tiling(64, 64, 1, 6, release=release)
    return Tiling(64, 64, 1, 4, warps) if use is Use.GATED else None


def narrow_linear(
    x: torch.Tensor, weight: torch.Tensor, tiling: Tiling, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias``: ``x`` ``[T, inputs]``, ``weight`` ``[outputs, inputs]``; ``[T, outputs]``.

    With more than one split: fp32 partial sums ``[splits, T, outputs]``, the bias in the first.
    """
    if x.is_cuda:
        return narrow_linear_triton(x, weight, tiling, bias)
    if tiling.splits == 1:
        return linear(x, weight, bias)
    parts = [
        linear(a.float(), b.float())
        for a, b in zip(x.chunk(tiling.splits, 1), weight.chunk(tiling.splits, 1), strict=True)
    ]
    if bias is not None:
        parts[0] += bias
    return torch.stack(parts)


def narrow_silu_mul(x: torch.Tensor, weight: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    """``silu(gate) * up`` where ``[gate | up] = x @ weight.T``: ``[T, outputs / 2]``. One split only."""
    if x.is_cuda:
        return narrow_silu_mul_triton(x, weight, tiling)
    gate, up = linear(x.float(), weight.float()).chunk(2, dim=-1)
    return (silu(gate) * up).to(x.dtype)


@jit
def _narrow_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    stride: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    PIECES: tl.constexpr,
    PREFETCH: tl.constexpr,
    HELD: tl.constexpr,
    RELEASE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    part = tl.program_id(1)
    first = part * SPLIT
    lane = tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    depth = tl.arange(0, DEPTH)
    HALF: tl.constexpr = ROWS // 2
    # Rows and tokens past the end repeat the last one instead of being masked; nothing of them is stored.
    if GATED:
        row = block * HALF + lane % HALF
        row = tl.minimum(row, N // 2 - 1) + (lane // HALF) * (N // 2)
    else:
        row = tl.minimum(block * ROWS + lane, N - 1)
    release(RELEASE)
    if PIECES > 0:
        piece = tl.arange(0, ROWS * PIECES)
        if GATED:
            fetched = block * HALF + (piece // PIECES) % HALF
            fetched = tl.minimum(fetched, N // 2 - 1) + (piece // PIECES // HALF) * (N // 2)
        else:
            fetched = tl.minimum(block * ROWS + piece // PIECES, N - 1)
        prefetch(weight + fetched.to(tl.int64) * K + first + (piece % PIECES) * (SPLIT // PIECES), PREFETCH)
    left = weight + row.to(tl.int64)[:, None] * K + (first + depth)[None, :]
    lefts: tl.tuple = ()
    rights: tl.tuple = ()
    if HELD:
        for turn in tl.static_range(SPLIT // DEPTH):
            lefts += (tl.load(left + turn * DEPTH),)
    wait(OVERLAP)
    right = x + tl.minimum(token, tokens - 1).to(tl.int64)[None, :] * stride + (first + depth)[:, None]
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    if HELD:
        for turn in tl.static_range(SPLIT // DEPTH):
            rights += (tl.load(right + turn * DEPTH),)
        for turn in tl.static_range(SPLIT // DEPTH):
            total = tl.dot(lefts[turn], rights[turn], total)
    else:
        for begin in range(0, SPLIT, DEPTH):
            total = tl.dot(tl.load(left + begin), tl.load(right + begin), total)
    if BIAS and part == 0:
        total += tl.load(bias + row).to(tl.float32)[:, None]
    inside = (token < tokens)[None, :]
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(total, (2, HALF, TOKENS)), (1, 2, 0)))
        column = block * HALF + tl.arange(0, HALF)
        value = gate * tl.sigmoid(gate) * up
        target = out + token.to(tl.int64)[None, :] * (N // 2) + column[:, None]
        tl.store(target, value.to(out.dtype.element_ty), mask=inside & (column < N // 2)[:, None])
    else:
        column = block * ROWS + lane
        target = out + (part * tokens + token).to(tl.int64)[None, :] * N + column[:, None]
        tl.store(target, total.to(out.dtype.element_ty), mask=inside & (column < N)[:, None])


def _launch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, tiling: Tiling, gated: bool
) -> None:
    tokens = x.shape[0]
    outputs, inputs = weight.shape
    split = inputs // tiling.splits
    if inputs % tiling.splits or split % tiling.depth or tokens > MOST_TOKENS:
        raise ValueError(f"{tokens} tokens and {inputs} inputs do not fit {tiling}")
    overlaps = overlap()
    pieces = max(1, 32 * tiling.warps // tiling.rows)
    blocks = -(-outputs // tiling.rows)
    _narrow_kernel[(blocks, tiling.splits)](
        x, weight, weight if bias is None else bias, out, tokens, x.stride(0),
        N=outputs, K=inputs, SPLIT=split, TOKENS=max(_LEAST_TOKENS, power_of_two(tokens)), ROWS=tiling.rows,
        DEPTH=tiling.depth, GATED=gated, BIAS=bias is not None, PIECES=pieces if overlaps and tiling.fetch else 0,
        PREFETCH=split // pieces * weight.element_size(), HELD=tiling.stages == 0,
        RELEASE=overlaps and tiling.release, OVERLAP=overlaps,
        num_warps=tiling.warps, num_stages=max(tiling.stages, 1), launch_pdl=overlaps,
    )  # fmt: skip


def narrow_linear_triton(
    x: torch.Tensor, weight: torch.Tensor, tiling: Tiling, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """:func:`narrow_linear` in one kernel. ``x``'s tokens may be strided."""
    shape = (x.shape[0], weight.shape[0])
    if tiling.splits == 1:
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
    else:
        out = torch.empty((tiling.splits, *shape), dtype=torch.float32, device=x.device)
    _launch(x, weight, bias, out, tiling, gated=False)
    return out


def narrow_silu_mul_triton(x: torch.Tensor, weight: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    """:func:`narrow_silu_mul` in one kernel."""
    out = torch.empty((x.shape[0], weight.shape[0] // 2), dtype=x.dtype, device=x.device)
    _launch(x, weight, None, out, tiling, gated=True)
    return out
