"""Products of few tokens against their references: every tiling, ragged outputs, and a token apart from its batch."""

from __future__ import annotations

import torch
from denizen.kernels.narrow_linear import (
    Tiling,
    narrow_linear,
    narrow_linear_triton,
    narrow_silu_mul,
    narrow_silu_mul_triton,
)
from denizen.kernels.norm import add_rms_norm, add_rms_norm_triton
from kernel_support import BOUND, DEVICE, close, generator, on_device, same, strided

_BOUND = BOUND[torch.bfloat16]


def _half(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed)).to(torch.bfloat16)


def test_products_equal_the_reference() -> None:
    # Outputs that are no multiple of a program's rows, tokens that fill no tile, strided tokens.
    for tokens, outputs, inputs, tiling in (
        (1, 200, 256, Tiling(64, 128, 1, 2)),
        (16, 96, 128, Tiling(64, 64, 1, 4)),
        (24, 130, 384, Tiling(64, 128, 3, 3)),
        (7, 64, 512, Tiling(32, 128, 4, 4)),
        (70, 72, 256, Tiling(64, 64, 2, 3, 8)),
        (128, 64, 448, Tiling(64, 64, 7, 2)),
    ):
        x, weight = _half(tokens, inputs, seed=1), _half(outputs, inputs, seed=2) * inputs**-0.5
        for bias in (None, _half(outputs, seed=3)):
            mine = None if bias is None else on_device(bias)
            wide = on_device(strided(x, 16).as_strided((tokens, inputs + 16), (inputs + 16, 1)))[:, :inputs]
            got = narrow_linear_triton(wide, on_device(weight), tiling, mine)
            what = f"{tokens} x {inputs} -> {outputs}, {tiling}, bias {bias is not None}"
            if tiling.splits == 1:
                want = narrow_linear(x.float(), weight.float(), tiling, None if bias is None else bias.float())
                close(got, want, _BOUND, what)
            else:
                want = narrow_linear(x, weight, tiling, bias)
                assert got.dtype == torch.float32
                assert got.shape == (tiling.splits, tokens, outputs), what
                close(got, want, 2e-6, what)


def test_gated_products_equal_the_reference() -> None:
    for tokens, features, inputs, tiling in (
        (1, 96, 256, Tiling(64, 128, 1, 2)),
        (18, 100, 128, Tiling(64, 64, 1, 3)),
        (100, 64, 256, Tiling(64, 64, 1, 4)),
    ):
        x, weight = _half(tokens, inputs, seed=4), _half(2 * features, inputs, seed=5) * (2 * inputs**-0.5)
        want = narrow_silu_mul(x, weight, tiling)
        got = narrow_silu_mul_triton(on_device(x), on_device(weight), tiling)
        close(got, want, _BOUND, f"silu_mul {tokens} x {inputs} -> {features}, {tiling}")


def test_partial_sums_go_into_the_norm() -> None:
    for splits, tokens, dim in ((2, 3, 200), (8, 17, 1024)):
        parts = torch.randn(splits, tokens, dim, generator=generator(6))
        residual, weight = _half(tokens, dim, seed=7), 1 + 0.1 * torch.randn(dim, generator=generator(8))
        mine = on_device(residual)
        got = add_rms_norm_triton(mine, on_device(parts), on_device(weight), 1e-6)
        kept = residual.clone()
        want = add_rms_norm(kept, parts, weight, 1e-6)
        close(mine, kept, _BOUND, f"residual {splits} x {tokens} x {dim}")
        close(got, want, _BOUND, f"norm {splits} x {tokens} x {dim}")


def test_a_token_does_not_depend_on_the_others() -> None:
    tiling = Tiling(64, 64, 2, 3)
    x, weight = on_device(_half(20, 256, seed=9)), on_device(_half(100, 256, seed=10))
    want = narrow_linear_triton(x, weight, tiling)
    order = torch.randperm(20, generator=generator(11)).to(DEVICE)
    same(narrow_linear_triton(x[order], weight, tiling), want[:, order], "tokens in another order")
    poisoned = x.clone()
    poisoned[3:] = float("nan")
    same(narrow_linear_triton(poisoned, weight, tiling)[:, :3], want[:, :3], "tokens beside tokens that are NaN")
