"""Penalties, biases and held-back ids against the reference."""

from __future__ import annotations

import torch
from denizen.kernels.adjust import (
    BIAS,
    IN_PROMPT,
    MIN_TOKENS,
    PENALTY,
    adjust_logits,
    adjust_logits_triton,
    count_tokens,
    count_tokens_triton,
)
from kernel_support import close, generator, on_device, same

ROWS, HELD = 9, 5


def _case(vocab: int, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    g = generator(seed)
    features = torch.tensor([0, PENALTY, BIAS, MIN_TOKENS, PENALTY | BIAS | MIN_TOKENS, PENALTY, 3], dtype=torch.int32)
    batch = len(features)
    counts = (torch.rand(ROWS, vocab, generator=g) < 0.3).int() * torch.randint(1, 5, (ROWS, vocab), generator=g).int()
    counts += (torch.rand(ROWS, vocab, generator=g) < 0.2).int() * IN_PROMPT
    block = torch.stack((0.5 + torch.rand(batch, generator=g), *torch.randn(2, batch, generator=g)), dim=1)
    limits = torch.tensor([[9, 9, 9, 9, 9, 9, 9], [3, 3, 3, 3, 9, 3, 3]], dtype=torch.int32).t().contiguous()
    return {
        "logits": (torch.randn(batch, vocab, generator=g) * 4).to(dtype),
        "slots": (torch.randperm(ROWS - 1, generator=g)[:batch] + 1).to(torch.int32),
        "features": torch.stack((features, features), dim=1),
        "block": block,
        "limits": limits,
        "held_back": torch.randint(0, vocab, (batch, HELD), generator=g, dtype=torch.int32),
        "counts": counts,
        "bias": torch.randn(ROWS, vocab, generator=g),
    }


def _arguments(case: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    block, limits = case["block"], case["limits"]
    columns = [case["features"][:, 0], block[:, 0], block[:, 1], block[:, 2], limits[:, 0], limits[:, 1]]
    return [case["logits"], case["slots"], *columns, case["held_back"], case["counts"], case["bias"]]


def test_adjusted_logits_equal_the_reference() -> None:
    for vocab in (50, 5000):
        for dtype in (torch.float32, torch.bfloat16):
            case = _case(vocab, dtype, vocab)
            device = {name: on_device(value) for name, value in case.items()}
            want = adjust_logits(*_arguments(case))
            got = adjust_logits_triton(*_arguments(device)).cpu()
            same(torch.isinf(got), torch.isinf(want), f"held-back ids {vocab} {dtype}")
            assert int(torch.isinf(want).sum(dim=1).min()) == 0
            assert int(torch.isinf(want[3]).sum()) > 0
            assert not torch.isinf(want[5]).any()
            close(got.nan_to_num(neginf=0.0), want.nan_to_num(neginf=0.0), 1e-6, f"logits {vocab} {dtype}")
            same(got[0], case["logits"][0].float(), "a row that asks for nothing")
            tokens = torch.arange(len(want)) * 3
            count_tokens(tokens, case["slots"], case["features"][:, 0], case["counts"])
            count_tokens_triton(on_device(tokens), device["slots"], device["features"][:, 0], device["counts"])
            same(device["counts"], case["counts"], f"counts {vocab} {dtype}")
