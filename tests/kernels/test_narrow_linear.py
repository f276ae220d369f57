"""How products of few tokens are shared among programs: every choice is one that the kernel can run."""

from __future__ import annotations

import pytest
import torch
from denizen.kernels.narrow_linear import MOST_TOKENS, Tiling, Use, choose_tiling, narrow_linear, narrow_silu_mul
from torch.nn.functional import linear, silu

_SHAPES = [
    (n, k) for n in (64, 576, 960, 1024, 2048, 2560, 5120, 8224, 9728, 151936) for k in (64, 576, 1024, 3584, 9728)
]


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize("tokens", [1, 16, 17, 32, 33, 64, 65, 128, 129, 256])
def test_every_choice_fits(use: Use, tokens: int) -> None:
    found = 0
    for outputs, inputs in _SHAPES:
        tiling = choose_tiling(use, tokens, outputs, inputs)
        if tiling is None:
            continue
        found += 1
        assert use is Use.PARTIAL or tiling.splits == 1
        split, remainder = divmod(inputs, tiling.splits)
        assert not remainder
        assert split % tiling.depth == 0
        assert tiling.depth & (tiling.depth - 1) == 0
        # Weight and tokens of all turns under way, bf16, in one multiprocessor's 227 KB.
        columns = max(16, 1 << (tokens - 1).bit_length())
        depth = split if tiling.stages == 0 else tiling.stages * tiling.depth
        assert 2 * depth * (tiling.rows + columns) <= 227 << 10, f"{tokens} x {inputs} -> {outputs}: {tiling}"
    assert found or (use is Use.PLAIN and tokens > 128)


def test_larger_products_are_general_ones() -> None:
    assert choose_tiling(Use.PLAIN, 16, 248320, 1024) is None  # a head: bound by its bytes whoever multiplies
    assert choose_tiling(Use.GATED, MOST_TOKENS + 1, 7168, 1024) is None
    assert choose_tiling(Use.PLAIN, 16, 5120, 1000) is None


def test_references_are_the_plain_product() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 128, generator=generator), torch.randn(40, 128, generator=generator)
    bias = torch.randn(40, generator=generator)
    want = linear(x, weight, bias)
    torch.testing.assert_close(narrow_linear(x, weight, Tiling(64, 64, 1, 2), bias), want)
    parts = narrow_linear(x, weight, Tiling(64, 32, 4, 2), bias)
    assert parts.shape == (4, 3, 40)
    torch.testing.assert_close(parts.sum(0), want)
    gate, up = linear(x, weight).chunk(2, dim=-1)
    torch.testing.assert_close(narrow_silu_mul(x, weight, Tiling(64, 64, 1, 2)), silu(gate) * up)
