"""A product with a weight kept in int8, one scale a row: half the bytes of bf16, where reading the weight is the time.

Weight only: tokens stay bf16. The kernel turns the weight into bf16 in registers, exactly, multiplies on the tensor
cores with fp32 sums, and scales the sums. As in ``kernels/narrow_linear.py`` the weight is the left operand.

The weight lies in blocks of 64 columns, whose rows follow each other: what a program reads at once is one piece. Two
values share a 16-bit word, column ``j`` of a block in the low byte and column ``32 + j`` in the high one. Words are
loaded into the tensor cores' layout as bf16 would be; each becomes an element of either half's operand. A byte is a
sign and a size, from which the bf16 number is four instructions away.

A token's result depends on the number of tokens, which chooses the tiling, and never on the other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from denizen.kernels.jit import interpreted, jit, power_of_two, tl
from denizen.kernels.overlap import overlap, wait
from torch.nn.functional import linear

#: The greatest magnitude: 8 bits hold a sign and 7 bits of size.
_GREATEST = 127
#: Columns of a block; inputs come in multiples of it. A program takes a block a turn.
BLOCK = 64
_WORDS = BLOCK // 2
#: Fewest tokens of a tile, as in ``kernels/narrow_linear.py``.
_LEAST_TOKENS = 16
#: Rows that are quantised at once: what is computed in fp32 stays small beside the weight.
_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Int8Weight:
    """A weight ``[outputs, inputs]`` of whole numbers from -127 to 127 with a scale a row."""

    pairs: torch.Tensor  #: int16 ``[inputs / 64, outputs, 32]``
    scale: torch.Tensor  #: fp32 ``[outputs]``

    @classmethod
    def quantize(cls, weight: torch.Tensor) -> Int8Weight:
        """Each row's greatest magnitude becomes 127. ``inputs``: a multiple of 64."""
        outputs, inputs = weight.shape
        pairs = torch.empty((inputs // BLOCK, outputs, _WORDS), dtype=torch.int16, device=weight.device)
        scale = torch.empty(outputs, dtype=torch.float32, device=weight.device)
        for begin in range(0, outputs, _ROWS_AT_ONCE):
            rows = slice(begin, begin + _ROWS_AT_ONCE)
            part = weight[rows].float()
            greatest = part.abs().amax(1)
            scale[rows] = torch.where(greatest > 0, greatest / _GREATEST, 1.0)
            size = (part.abs() / scale[rows, None]).round().to(torch.uint8)
            values = (size | (part < 0).to(torch.uint8) << 7).view(len(part), -1, 2, _WORDS)
            pairs[:, rows] = values.permute(1, 0, 3, 2).contiguous().view(torch.int16).squeeze(-1)
        return cls(pairs, scale)

    def values(self) -> torch.Tensor:
        """fp32 ``[outputs, inputs]``, not yet scaled."""
        halves = self.pairs.unsqueeze(-1).view(torch.uint8).permute(1, 0, 3, 2).flatten(1)
        size = (halves & 0x7F).float()
        return torch.where(halves > 0x7F, -size, size)

    def dequantize(self) -> torch.Tensor:
        """fp32 ``[outputs, inputs]``."""
        return self.values() * self.scale[:, None]


@dataclass(frozen=True)
class Tiling:
    """How a product is shared among programs."""

    rows: int  #: rows of the weight a program
    tokens: int  #: most tokens a program, a power of two of at least 16
    stages: int  #: blocks under way
    warps: int


def choose_tiling(tokens: int) -> Tiling:
    """The fastest that was measured on an H200, for any number of tokens."""
    if tokens <= 16:
        return Tiling(128, 16, 5, 4)
    if tokens <= 64:
        return Tiling(256, 64, 4, 4)
    return Tiling(128, 128, 4, 8)


def int8_linear(x: torch.Tensor, weight: Int8Weight, tiling: Tiling | None = None) -> torch.Tensor:
    """``x @ weight.T``: ``x`` ``[T, inputs]``, bf16 on a GPU; ``[T, outputs]`` of its type.

    ``tiling`` None = that of :func:`choose_tiling`.
    """
    if x.is_cuda:
        return int8_linear_triton(x, weight, tiling)
    return (linear(x.float(), weight.values()) * weight.scale).to(x.dtype)


@jit
def _halves(pair: tl.tensor, ASM: tl.constexpr) -> tl.tuple:
    """The low and the high byte of each word as bf16, exactly.

    A size in the mantissa of 128 makes 128 + size; 128 is taken away again, both with the byte's sign.
    """
    if ASM:
        # Two words at a time: the compiler would take them one by one.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 base, number;
            shl.b32 base, $2, 8;
            lop3.b32 base, base, 0x80008000, 0x43004300, 0xEA;
            lop3.b32 number, $2, 0x007f007f, base, 0xEA;
            sub.rn.bf16x2 $0, number, base;
            shr.u32 number, $2, 8;
            lop3.b32 base, $2, 0x80008000, 0x43004300, 0xEA;
            lop3.b32 number, number, 0x007f007f, base, 0xEA;
            sub.rn.bf16x2 $1, number, base;
            }""",
            "=r,=r,r",
            [pair],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    word = pair.to(tl.int32)
    low = tl.where(word & 0x80 != 0, -(word & 0x7F), word & 0x7F)
    high = tl.where(word & 0x8000 != 0, -((word >> 8) & 0x7F), (word >> 8) & 0x7F)
    return low.to(tl.float32).to(tl.bfloat16), high.to(tl.float32).to(tl.bfloat16)


@jit
def _int8_kernel(
    x: tl.tensor,
    pairs: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    stride: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    ASM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    # Programs of the same rows are neighbours: all but the first find them in the L2 cache.
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, WORDS)
    # Rows past the end repeat the last one; nothing of them is stored. Tokens past the end are not read: every program
    # would ask for the same one.
    row = tl.minimum(column, N - 1)
    inside = (token < tokens)[None, :]
    left = pairs + row[:, None] * WORDS + word[None, :]
    right = x + token.to(tl.int64)[None, :] * stride + word[:, None]
    wait(OVERLAP)
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for begin in range(0, K, 2 * WORDS):
        low, high = _halves(tl.load(left), ASM)
        total = tl.dot(low, tl.load(right + begin, mask=inside, other=0.0), total)
        total = tl.dot(high, tl.load(right + WORDS + begin, mask=inside, other=0.0), total)
        left += N * WORDS
    total *= tl.load(scale + row)[:, None]
    target = out + token.to(tl.int64)[None, :] * N + column[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=inside & (column < N)[:, None])


def int8_linear_triton(x: torch.Tensor, weight: Int8Weight, tiling: Tiling | None = None) -> torch.Tensor:
    """:func:`int8_linear` in one kernel. ``x``'s tokens may be strided."""
    tokens = x.shape[0]
    blocks, outputs, words = weight.pairs.shape
    tiling = tiling or choose_tiling(tokens)
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
    width = max(_LEAST_TOKENS, min(tiling.tokens, power_of_two(tokens)))
    overlaps = overlap()
    _int8_kernel[(-(-tokens // width), -(-outputs // tiling.rows))](
        x, weight.pairs, weight.scale, out, tokens, x.stride(0),
        N=outputs, K=blocks * BLOCK, WORDS=words, TOKENS=width, ROWS=tiling.rows,
        ASM=not interpreted(), OVERLAP=overlaps,
        num_warps=tiling.warps, num_stages=tiling.stages, launch_pdl=overlaps,
    )  # fmt: skip
    return out
