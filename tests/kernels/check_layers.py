"""Small kernels of a layer: norms, gates, and the way from a projection to queries and KV pages."""

from __future__ import annotations

import torch
from denizen.kernels.attention_inputs import attention_inputs, attention_inputs_triton, rope_table
from denizen.kernels.gate import sigmoid_gate, sigmoid_gate_triton, silu_mul, silu_mul_triton
from denizen.kernels.gated_delta_gates import gated_delta_gates, gated_delta_gates_triton
from denizen.kernels.norm import add_rms_norm, add_rms_norm_triton, gated_rms_norm, gated_rms_norm_triton
from kernel_support import BOUND, close, generator, on_device, same, strided


def test_add_rms_norm_equals_the_reference() -> None:
    g = generator(1)
    for dtype, bound in BOUND.items():
        for tokens, dim in ((1, 64), (5, 1000), (17, 1024)):
            weight = 1 + 0.1 * torch.randn(dim, generator=g)
            residual = torch.randn(tokens, dim, generator=g).to(dtype)
            delta = torch.randn(tokens, dim, generator=g).to(dtype)
            for added in (delta, None):
                mine = on_device(residual)
                got = add_rms_norm_triton(mine, None if added is None else on_device(added), on_device(weight), 1e-6)
                kept = residual.clone()
                want = add_rms_norm(kept, added, weight, 1e-6)
                close(mine, kept, bound, f"residual {dtype} {tokens}x{dim}")
                close(got, want, bound, f"add_rms_norm {dtype} {tokens}x{dim}")


def test_gates_equal_the_reference() -> None:
    g = generator(2)
    for dtype, bound in BOUND.items():
        projected = torch.randn(6, 3, 2 * 40, generator=g).to(dtype) * 4  # [query | gate] a head
        x = torch.randn(6, 3, 40, generator=g).to(dtype)
        want = sigmoid_gate(x, projected[..., 40:])
        close(sigmoid_gate_triton(on_device(x), on_device(projected)[..., 40:]), want, bound, f"sigmoid_gate {dtype}")
        for features in (24, 3584):
            gate_up = torch.randn(3, 2 * features, generator=g).to(dtype) * 4
            close(silu_mul_triton(on_device(gate_up)), silu_mul(gate_up), bound, f"silu_mul {dtype} {features}")


def _attention_inputs(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, rotated: int, gated: bool, normed: bool
) -> None:
    g = generator(heads + dim)
    tokens, pages, page = 7, 6, 4
    table = rope_table(1e4 ** -(torch.arange(0, rotated, 2) / rotated), 1.0, 600)
    width = heads * dim * (2 if gated else 1) + 2 * kv_heads * dim
    projected = torch.randn(tokens, width, generator=g).to(dtype)
    weights = tuple(1 + 0.2 * torch.randn(dim, generator=g) if normed else None for _ in range(2))
    positions = torch.randint(0, 600, (tokens,), generator=g)
    write_at = torch.randperm(pages * page, generator=g)[:tokens].to(torch.int32)
    keys = torch.randn(pages, page, kv_heads, dim, generator=g).to(dtype)
    values = torch.randn(pages, page, kv_heads, dim, generator=g).to(dtype)
    my_keys, my_values = on_device(keys), on_device(values)
    wide = on_device(strided(projected).as_strided((tokens, width + 5), (width + 5, 1)))[:, :width]
    got = attention_inputs_triton(
        wide,
        heads,
        kv_heads,
        gated,
        *(None if weight is None else on_device(weight) for weight in weights),
        1e-6,
        on_device(table),
        on_device(positions),
        on_device(write_at),
        my_keys,
        my_values,
    )
    before = keys.clone()
    want = attention_inputs(projected, heads, kv_heads, gated, *weights, 1e-6, table, positions, write_at, keys, values)
    what = f"{dtype} {heads}/{kv_heads}x{dim} gated={gated} normed={normed}"
    close(got, want, BOUND[dtype], f"queries {what}")
    close(my_keys, keys, BOUND[dtype], f"keys {what}")
    same(my_values, values, f"values {what}")
    untouched = torch.ones(pages * page, dtype=torch.bool)
    untouched[write_at.long()] = False
    flat = (pages * page, kv_heads * dim)
    same(my_keys.cpu().view(flat)[untouched], before.view(flat)[untouched], f"other keys {what}")


def test_attention_inputs_equal_the_reference() -> None:
    for dtype in BOUND:
        _attention_inputs(dtype, 8, 2, 64, 16, gated=True, normed=True)  # Qwen3.5's layout, smaller
        _attention_inputs(dtype, 4, 4, 32, 32, gated=False, normed=True)
        _attention_inputs(dtype, 6, 2, 48, 48, gated=False, normed=False)  # a width that is no power of two


def test_gated_rms_norm_equals_the_reference() -> None:
    g = generator(3)
    for dtype, bound in BOUND.items():
        for heads, dim in ((4, 64), (3, 40)):
            x = torch.randn(5, heads, dim, generator=g)
            gate = (
                torch.randn(5, heads * dim + 7, generator=g)
                .to(dtype)[:, 3 : 3 + heads * dim]
                .unflatten(1, (heads, dim))
            )
            weight = 1 + 0.1 * torch.randn(dim, generator=g)
            device_gate = on_device(gate)
            want = gated_rms_norm(x, gate, weight, 1e-6)
            got = gated_rms_norm_triton(on_device(x), device_gate, on_device(weight), 1e-6)
            close(got, want, bound, f"gated_rms_norm {dtype} {heads}x{dim}")


def test_gated_delta_gates_equal_the_reference() -> None:
    g = generator(4)
    for dtype in BOUND:
        for tokens, heads in ((1, 16), (37, 6)):
            projected = torch.randn(tokens, 2 * heads + 3, generator=g).to(dtype) * 8
            rate, bias = -torch.exp(torch.rand(heads, generator=g)), torch.randn(heads, generator=g)
            b, a = projected[:, :heads], projected[:, heads : 2 * heads]
            wide = on_device(projected)
            got = gated_delta_gates_triton(
                wide[:, :heads], wide[:, heads : 2 * heads], on_device(rate), on_device(bias)
            )
            for x, y, name in zip(got, gated_delta_gates(b, a, rate, bias), ("decay", "beta"), strict=True):
                close(x, y, 2e-6, f"{name} {dtype} {tokens}x{heads}")
