"""The gated delta net's kernels against their references, in place by state slot."""

from __future__ import annotations

import torch
from denizen.kernels.conv import causal_conv_prefill, causal_conv_prefill_triton
from denizen.kernels.gated_delta import gated_delta_prefill
from denizen.kernels.gated_delta_chunk import gated_delta_prefill_triton
from denizen.kernels.gated_delta_decode import gated_delta_decode, gated_delta_decode_triton
from kernel_support import BOUND, DEVICE, close, generator, on_device, same

TAPS = 4


def _layer(g: torch.Generator, key_heads: int, value_heads: int, dim: int) -> dict[str, torch.Tensor]:
    channels = 2 * key_heads * dim + value_heads * dim
    return {
        "conv_weight": torch.randn(channels, TAPS, generator=g) * 0.5,
        "rate": -torch.exp(torch.rand(value_heads, generator=g) * 2.7),
        "dt_bias": torch.randn(value_heads, generator=g),
        "norm_weight": 1 + 0.1 * torch.randn(dim, generator=g),
    }


def _decode(key_heads: int, value_heads: int, dim: int, dtype: torch.dtype, state_dtype: torch.dtype) -> None:
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
    what = f"{key_heads}/{value_heads}x{dim} {dtype} state {state_dtype}"
    for step in range(2):
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


def test_decode_equals_the_reference() -> None:
    for key_heads, value_heads, dim in ((2, 2, 32), (2, 4, 16), (1, 1, 128)):
        _decode(key_heads, value_heads, dim, torch.float32, torch.float32)
        _decode(key_heads, value_heads, dim, torch.bfloat16, torch.float32)
        _decode(key_heads, value_heads, dim, torch.bfloat16, torch.bfloat16)


def _ragged(lengths: list[int], bucket: int, rows: int) -> torch.Tensor:
    """``cu_seqlens`` of the rows, padded with empty rows; the bucket has more tokens than they fill."""
    ends = torch.tensor([0, *lengths]).cumsum(0)
    assert int(ends[-1]) <= bucket
    return torch.cat((ends, ends[-1].expand(rows - len(lengths)))).to(torch.int32)


def _slots(lengths: list[int], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    slots = torch.zeros(rows, dtype=torch.int32)
    slots[: len(lengths)] = torch.tensor([5, 1, 7, 3, 2][: len(lengths)])
    return slots, torch.tensor([index % 2 == 0 for index in range(rows)])


def _prefill(
    lengths: list[int], bucket: int, rows: int, heads: tuple[int, int], dtype: torch.dtype, repeat: bool, dim: int = 16
) -> None:
    g = generator(sum(lengths))
    key_heads, value_heads = heads
    live = len(lengths)
    cu_seqlens = _ragged(lengths, bucket, rows)
    slots, fresh = _slots(lengths, rows)
    total = int(cu_seqlens[-1])
    query, key = (torch.randn(bucket, key_heads, dim, generator=g).to(dtype) for _ in range(2))
    if repeat:
        key[:] = key[0]  # the same token over and over: the system is as far from diagonal as it can be
    value = torch.randn(bucket, value_heads, dim, generator=g).to(dtype)
    log_decay = -torch.rand(bucket, value_heads, generator=g) * (0.01 if repeat else 1.5)
    beta = torch.sigmoid(torch.randn(bucket, value_heads, generator=g) + (4 if repeat else 0))
    for x in (query, key, value, log_decay, beta):
        x[total:] = float("nan")
    state = torch.randn(9, value_heads, dim, dim, generator=g) * 0.5
    state[0] = float("nan")
    state[slots[:live][fresh[:live]].long()] = float("nan")  # a fresh row's slot holds anything
    mine = on_device(state)
    got = gated_delta_prefill_triton(
        *(on_device(x) for x in (query, key, value, log_decay, beta, cu_seqlens)),
        mine,
        on_device(slots),
        on_device(fresh),
    )
    before = state.clone()
    want = gated_delta_prefill(
        *(x[:total] for x in (query, key, value, log_decay, beta)),
        cu_seqlens[: live + 1],
        max(lengths),
        state,
        slots[:live],
        fresh[:live],
    )
    what = f"prefill {lengths} of {bucket}, heads {heads} x {dim}, {dtype}, repeated keys {repeat}"
    interpreted = DEVICE.type == "cpu"  # exact products, but bf16 by truncation
    bound = (2e-5 if interpreted else 2e-3) if dtype == torch.float32 else (4e-2 if interpreted else 2e-2)
    close(got[:total], want, bound, what)
    used = slots[:live].long()
    close(mine.cpu()[used], state[used], bound, f"state, {what}")
    idle = [slot for slot in range(9) if slot not in used.tolist()]
    same(mine.cpu()[idle], before[idle], f"slots of others, {what}")


def test_prefill_equals_the_reference() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        _prefill([1], 16, 1, (2, 2), dtype, repeat=False)
        _prefill([63, 64, 65], 200, 4, (2, 2), dtype, repeat=False)
        _prefill([130, 1, 7], 150, 5, (1, 2), dtype, repeat=False)
        _prefill([100], 128, 2, (2, 2), dtype, repeat=True)
        _prefill([70, 3], 80, 3, (1, 2), dtype, repeat=False, dim=128)


def test_conv_prefill_equals_the_reference() -> None:
    for dtype, bound in BOUND.items():
        for lengths, bucket, rows in (([1], 1, 1), ([2, 1, 3], 16, 4), ([17, 40, 16], 90, 6)):
            g = generator(bucket)
            cu_seqlens = _ragged(lengths, bucket, rows)
            slots, fresh = _slots(lengths, rows)
            live, total, channels = len(lengths), int(cu_seqlens[-1]), 96
            weight = torch.randn(channels, TAPS, generator=g).to(dtype)
            x = torch.randn(bucket, channels, generator=g).to(dtype)
            x[total:] = float("nan")
            state = torch.randn(9, TAPS - 1, channels, generator=g).to(dtype)
            state[0] = float("nan")
            state[slots[:live][fresh[:live]].long()] = float("nan")
            mine, before = on_device(state), state.clone()
            got = causal_conv_prefill_triton(
                *(on_device(t) for t in (x, weight, cu_seqlens)), mine, on_device(slots), on_device(fresh)
            )
            want = causal_conv_prefill(x[:total], weight, cu_seqlens[: live + 1], state, slots[:live], fresh[:live])
            close(got[:total], want, 2 * bound, f"conv prefill {lengths} of {bucket}, {dtype}")
            used = slots[:live].long()
            same(mine.cpu()[used], state[used], f"conv state {lengths}, {dtype}")
            idle = [slot for slot in range(9) if slot not in used.tolist()]
            same(mine.cpu()[idle], before[idle], f"conv slots of others {lengths}, {dtype}")
