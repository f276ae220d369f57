"""The gated delta net's kernels against their references, in place by state slot."""

from __future__ import annotations

import torch
from denizen.kernels.gated_delta_decode import gated_delta_decode, gated_delta_decode_triton
from kernel_support import close, generator, on_device, same

TAPS = 4


def _layer(g: torch.Generator, key_heads: int, value_heads: int, dim: int) -> dict[str, torch.Tensor]:
    channels = 2 * key_heads * dim + value_heads * dim
    return {
        "conv_weight": torch.randn(channels, TAPS, generator=g) * 0.5,
        "a_log": torch.rand(value_heads, generator=g) * 2.7,
        "dt_bias": torch.randn(value_heads, generator=g),
        "norm_weight": 1 + 0.1 * torch.randn(dim, generator=g),
    }


def _decode(
    split: bool, key_heads: int, value_heads: int, dim: int, dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    g = generator(key_heads + value_heads)
    layer = _layer(g, key_heads, value_heads, dim)
    layer["conv_weight"] = layer["conv_weight"].to(dtype)
    channels, values = layer["conv_weight"].shape[0], value_heads * dim
    slots = torch.tensor([4, 0, 1, 7, 0, 2], dtype=torch.int32)  # padding between live rows, the first slot in use
    live = slots != 0
    rows, total = len(slots), 9
    conv_state = torch.randn(total, TAPS - 1, channels, generator=g).to(dtype)
    state = (torch.randn(total, value_heads, dim, dim, generator=g) * 0.3).to(state_dtype)
    conv_state[0], state[0] = float("nan"), float("nan")
    reference_conv, reference_state = conv_state.clone(), state.clone()
    my_conv, my_state = on_device(conv_state), on_device(state)
    what = f"split={split} {key_heads}/{value_heads}x{dim} {dtype} state {state_dtype}"
    for step in range(3):
        projected = torch.randn(rows, channels + values + 2 * value_heads, generator=g).to(dtype)
        projected[~live] = float("nan")
        parts = (channels, values, value_heads, value_heads)
        want = gated_delta_decode(
            *projected[live].split(parts, dim=1), *layer.values(), 1e-6, reference_conv, reference_state, slots[live]
        )
        device_layer = [on_device(x) for x in layer.values()]
        got = gated_delta_decode_triton(
            *on_device(projected).split(parts, dim=1),
            *device_layer,
            1e-6,
            my_conv,
            my_state,
            on_device(slots),
            split=split,
        )
        # bf16 state is rounded each step on both sides, at most one unit apart; outputs of bf16 inputs round between.
        exact = dtype == state_dtype == torch.float32
        close(got.cpu()[live], want, 1e-5 if exact else 1.5e-2, f"output {step} {what}")
        same(got.cpu()[~live], torch.zeros_like(got.cpu()[~live]), f"padding {step} {what}")
        used = slots[live].long()
        close(my_state.cpu()[used], reference_state[used], 1e-5 if exact else 1.5e-2, f"state {step} {what}")
        same(my_conv.cpu()[used], reference_conv[used], f"conv state {step} {what}")
    idle = [slot for slot in range(total) if slot not in slots[live].tolist()]
    same(my_state.cpu()[idle], state[idle], f"slots of others {what}")
    same(my_conv.cpu()[idle], conv_state[idle], f"conv slots of others {what}")


def test_fused_decode_equals_the_reference() -> None:
    for key_heads, value_heads, dim in ((2, 2, 32), (2, 4, 16)):
        _decode(False, key_heads, value_heads, dim, torch.float32, torch.float32)
        _decode(False, key_heads, value_heads, dim, torch.bfloat16, torch.float32)
        _decode(False, key_heads, value_heads, dim, torch.bfloat16, torch.bfloat16)


def test_split_decode_equals_the_reference() -> None:
    for key_heads, value_heads, dim in ((2, 2, 64), (2, 4, 16)):
        _decode(True, key_heads, value_heads, dim, torch.float32, torch.float32)
        _decode(True, key_heads, value_heads, dim, torch.bfloat16, torch.float32)
        _decode(True, key_heads, value_heads, dim, torch.bfloat16, torch.bfloat16)
