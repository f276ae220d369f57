"""The layer norm kernel against its torch reference."""

from __future__ import annotations

import torch
from denizen.kernels.layer_norm import add_layer_norm, add_layer_norm_triton
from kernel_support import BOUND, close, generator, on_device


def test_add_layer_norm_equals_the_reference() -> None:
    g = generator(1)
    for dtype, bound in BOUND.items():
        for tokens, dim in ((1, 64), (5, 384), (9, 1280)):
            weight, bias = 1 + 0.1 * torch.randn(dim, generator=g), torch.randn(dim, generator=g)
            # A mean that is not small beside the deviation, as in Whisper's residual.
            residual = (3 + torch.randn(tokens, dim, generator=g)).to(dtype)
            delta = torch.randn(tokens, dim, generator=g).to(dtype)
            parts = torch.randn(3, tokens, dim, generator=g)
            for added in (delta, parts, None):
                mine = on_device(residual)
                there = None if added is None else on_device(added)
                got = add_layer_norm_triton(mine, there, on_device(weight), on_device(bias), 1e-5)
                kept = residual.clone()
                want = add_layer_norm(kept, added, weight, bias, 1e-5)
                close(mine, kept, bound, f"residual {dtype} {tokens}x{dim}")
                close(got, want, bound, f"add_layer_norm {dtype} {tokens}x{dim}")
