"""Weights in int8 on a CPU: how they are rounded and stored, and the reference of the product."""

from __future__ import annotations

import pytest
import torch
from denizen.kernels import int8_linear as module
from denizen.kernels.int8_linear import Int8Weight, int8_linear


def test_the_reference_is_the_product_with_the_rounded_weight() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 192), Int8Weight.quantize(torch.randn(70, 192))
    torch.testing.assert_close(int8_linear(x, weight), x @ weight.dequantize().mT, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows_at_once", [1 << 14, 7])
def test_every_element_is_rounded_to_its_row(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", rows_at_once)
    torch.manual_seed(1)
    weight = torch.randn(20, 128) * torch.logspace(-6, 3, 20)[:, None]
    weight[4] = 0
    weight[5, :] = weight[5, 3]
    got = Int8Weight.quantize(weight)
    assert got.scale[4] == 1
    assert ((got.dequantize() - weight).abs() <= got.scale[:, None] / 2 * (1 + 1e-5)).all()
    greatest = weight.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(got.dequantize().gather(1, greatest), weight.gather(1, greatest))
