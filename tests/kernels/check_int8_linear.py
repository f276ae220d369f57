"""Products with a weight in int8 against their reference: every tiling, every value, a token apart from its batch."""

from __future__ import annotations

import torch
from denizen.kernels.int8_linear import Int8Weight, Tiling, int8_linear, int8_linear_triton
from kernel_support import BOUND, DEVICE, close, generator, on_device, same, strided

_BOUND = BOUND[torch.bfloat16]


def _half(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed)).to(torch.bfloat16)


def _there(weight: Int8Weight) -> Int8Weight:
    return Int8Weight(on_device(weight.pairs), on_device(weight.scale))


def test_products_equal_the_reference() -> None:
    # Outputs that are no multiple of a program's rows, tokens that fill no tile or several, strided tokens.
    for tokens, outputs, inputs, tiling in (
        (1, 200, 256, Tiling(64, 64, 2, 4)),
        (16, 96, 128, Tiling(64, 16, 3, 4)),
        (24, 130, 512, Tiling(128, 64, 4, 4)),
        (70, 72, 256, Tiling(64, 32, 2, 8)),
        (200, 300, 256, Tiling(256, 128, 3, 8)),
        (3, 140, 256, None),
        (150, 140, 256, None),
    ):
        weight = Int8Weight.quantize(_half(outputs, inputs, seed=1) * inputs**-0.5)
        x = _half(tokens, inputs, seed=2)
        wide = on_device(strided(x, 16).as_strided((tokens, inputs + 16), (inputs + 16, 1)))[:, :inputs]
        got = int8_linear_triton(wide, _there(weight), tiling)
        what = f"{tokens} x {inputs} -> {outputs}, {tiling or 'chosen'}"
        assert got.dtype == torch.bfloat16
        close(got, int8_linear(x.float(), weight), _BOUND, what)


def test_every_value_is_exact() -> None:
    """One-hot tokens read out the weight: all numbers, each in both halves of a block."""
    numbers = torch.arange(-127, 128).float()
    weight = torch.stack([numbers.roll(shift)[:128] for shift in range(0, 255, 5)])
    weight[:, 64] = 127.0  # makes the scale 1
    quantized = Int8Weight.quantize(weight)
    for half in weight.view(len(weight), 2, 2, 32).transpose(1, 2).flatten(2).unbind(1):
        assert len(half.unique()) == 255
    same(quantized.values(), weight, "whole numbers quantised")
    got = int8_linear_triton(on_device(torch.eye(128, dtype=torch.bfloat16)), _there(quantized), Tiling(64, 64, 2, 4))
    same(got, weight.mT.to(torch.bfloat16), "whole numbers in the kernel")


def test_a_token_does_not_depend_on_the_others() -> None:
    tiling = Tiling(64, 16, 3, 4)
    x = on_device(_half(20, 256, seed=9))
    weight = _there(Int8Weight.quantize(_half(100, 256, seed=10)))
    want = int8_linear_triton(x, weight, tiling)
    order = torch.randperm(20, generator=generator(11)).to(DEVICE)
    same(int8_linear_triton(x[order], weight, tiling), want[order], "tokens in another order")
    poisoned = x.clone()
    poisoned[3:] = float("nan")
    same(int8_linear_triton(poisoned, weight, tiling)[:3], want[:3], "tokens beside tokens that are NaN")
