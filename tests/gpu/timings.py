"""Microseconds of every kernel at the shapes of Qwen3.5-0.8B, and of the launch shapes to choose between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from denizen.kernels import gated_delta_chunk, gated_delta_decode
from denizen.kernels.attention_inputs import attention_inputs, rope_table
from denizen.kernels.conv import causal_conv_prefill
from denizen.kernels.decode_step import DecodeInputs, advance_rows, decode_inputs
from denizen.kernels.filter import filter_threshold
from denizen.kernels.gate import sigmoid_gate, silu_mul
from denizen.kernels.gated_delta import gated_delta_prefill
from denizen.kernels.gated_delta_decode import gated_delta_decode_triton
from denizen.kernels.gated_delta_gates import gated_delta_gates
from denizen.kernels.narrow_linear import Tiling, Use, choose_tiling, narrow_linear, narrow_silu_mul
from denizen.kernels.norm import add_rms_norm
from denizen.kernels.page_gather import page_gather
from denizen.kernels.sample import gumbel_argmax
from gpu_support import CUDA, microseconds
from torch.nn.functional import linear

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAYERS = 18
_HEADS, _DIM, _CHANNELS = 16, 128, 6144


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=CUDA).to(torch.bfloat16)


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32, device=CUDA)


def decode(rows: int) -> Iterator[tuple[str, float]]:
    """``(kernel, µs)`` of the small kernels of a decode step."""
    residual, delta, weight = _half(rows, 1024), _half(rows, 1024), torch.ones(1024, device=CUDA)
    yield "add_rms_norm", microseconds(lambda i: add_rms_norm(residual, delta, weight, 1e-6), 20)
    gate_up = _half(rows, 7168)
    yield "silu_mul", microseconds(lambda i: silu_mul(gate_up), 20)
    projected, attended = _half(rows, 5120), _half(rows, 8, 256)
    gate = projected[:, :4096].view(rows, 8, 512)[..., 256:]
    yield "sigmoid_gate", microseconds(lambda i: sigmoid_gate(attended, gate), 20)
    table, norms = rope_table(torch.rand(32, device=CUDA), 1.0, 4096), torch.ones(256, device=CUDA)
    positions, write_at = torch.arange(rows, device=CUDA), torch.arange(rows, dtype=torch.int32, device=CUDA)
    keys, values = _half(64, 16, 2, 256), _half(64, 16, 2, 256)
    yield (
        "attention_inputs",
        microseconds(
            lambda i: attention_inputs(
                projected, 8, 2, True, norms, norms, 1e-6, table, positions, write_at, keys, values
            ),
            20,
        ),
    )
    tables = torch.ones(rows + 1, 4 + 256, dtype=torch.int32, device=CUDA)
    slots = torch.arange(1, rows + 1, dtype=torch.int32, device=CUDA)
    for length in (512, 4000):
        yield f"page_gather, length {length}", _gather(slots, tables[:, 4:], length)
    inputs, tokens = DecodeInputs.allocate(rows, CUDA), torch.zeros(rows, dtype=torch.int64, device=CUDA)
    yield (
        "decode_inputs",
        microseconds(lambda i: decode_inputs(slots, tables[:, 1], tables[:, 0], tables[:, 4:], 16, 0, inputs), 20),
    )
    yield (
        "advance_rows",
        microseconds(lambda i: advance_rows(slots, tokens, slots, tables[:, 0], tables[:, 1], tables[:, 2]), 20),
    )
    copies = 8 if rows <= 16 else 3
    logits = [_half(rows, 248320) for _ in range(copies)]
    seed = torch.arange(rows, device=CUDA)
    cold, warm = torch.zeros(rows, device=CUDA), torch.full((rows,), 0.8, device=CUDA)
    yield "greedy", microseconds(lambda i: gumbel_argmax(logits[i], cold, seed, seed), copies)
    top_k, top_p, none = torch.full_like(slots, 20), torch.full_like(warm, 0.95), torch.zeros_like(warm)
    open_ = torch.ones_like(warm)
    # Logits as of a model: weights fall with a power of the rank. Random ones are as flat as logits can be.
    ranks = torch.arange(1, 248321, device=CUDA).log()
    peaked = [torch.stack([ranks[torch.randperm(248320, device=CUDA)] * -2 for _ in range(rows)]) for _ in logits]
    peaked = [x.to(torch.bfloat16) for x in peaked]
    for name, source, k, p in (
        ("top-k 20", logits, top_k, open_),
        ("top-k 20, top-p", logits, top_k, top_p),
        ("top-p", peaked, top_k * 0, top_p),
        ("top-p, flat", logits, top_k * 0, top_p),
    ):

        def threshold(i: int, source: list[torch.Tensor] = source, k: torch.Tensor = k, p: torch.Tensor = p) -> None:
            filter_threshold(source[i], warm, k, p, none)

        yield f"threshold, {name}", microseconds(threshold, copies)
    yield "gumbel", microseconds(lambda i: gumbel_argmax(logits[i], warm, seed, seed), copies)


def _gather(slots: torch.Tensor, table: torch.Tensor, length: int) -> float:
    rows = len(slots)
    lengths, indptr, indices, last = torch.full_like(slots, length), _ints(rows + 1), _ints(rows * 300), _ints(rows)
    return microseconds(lambda i: page_gather(slots, table, lengths, 16, 0, indptr, indices, last), 20)


def delta_decode(rows: int) -> Iterator[tuple[str, float]]:
    """The gated delta net of one layer, with launch shapes to choose between."""
    parts = _half(rows, 8224).split((_CHANNELS, 2048, _HEADS, _HEADS), dim=1)
    weight, norm = _half(_CHANNELS, 4), torch.ones(_DIM, device=CUDA)
    rate, bias = -torch.ones(_HEADS, device=CUDA), torch.zeros(_HEADS, device=CUDA)
    slots = (torch.randperm(rows, device=CUDA) + 1).to(torch.int32)
    conv = [_half(rows + 1, 3, _CHANNELS) for _ in range(_LAYERS)]
    for dtype in (torch.float32, torch.bfloat16):
        state = [torch.zeros(rows + 1, _HEADS, _DIM, _DIM, dtype=dtype, device=CUDA) for _ in range(_LAYERS)]
        floor = 2 * rows * state[0][0].numel() * dtype.itemsize / 4.24e6
        yield f"  floor {dtype}", floor

        def run(i: int, state: list[torch.Tensor] = state) -> None:
            gated_delta_decode_triton(*parts, weight, rate, bias, norm, 1e-6, conv[i], state[i], slots)

        kept = gated_delta_decode.WARPS
        for warps in (4, 8):
            gated_delta_decode.WARPS = warps
            yield f"gated_delta_decode {dtype} warps {warps}", microseconds(run, _LAYERS)
        gated_delta_decode.WARPS = kept


def products(rows: int) -> Iterator[tuple[str, float]]:
    """A layer's products, each with the norm beside it and weights that no cache holds: general ones and own."""
    norm, residual = torch.ones(1024, device=CUDA), _half(rows, 1024)
    for name, use, outputs, inputs in (
        ("in", Use.PLAIN, 8224, 1024),
        ("gate, up", Use.GATED, 7168, 1024),
        ("out", Use.PARTIAL, 1024, 2048),
        ("down", Use.PARTIAL, 1024, 3584),
    ):
        weights = [_half(outputs, inputs) * inputs**-0.5 for _ in range(_LAYERS)]
        x = _half(rows, inputs)

        def general(i: int, use: Use = use, x: torch.Tensor = x, weights: list[torch.Tensor] = weights) -> None:
            if use is Use.PARTIAL:
                add_rms_norm(residual, linear(x, weights[i]), norm, 1e-6)
                return
            out = linear(add_rms_norm(residual, None, norm, 1e-6), weights[i])
            if use is Use.GATED:
                silu_mul(out)

        yield f"norm and {name}, general product", microseconds(general, _LAYERS)
        tiling = choose_tiling(use, rows, outputs, inputs)
        if tiling is None:
            continue

        def own(
            i: int,
            use: Use = use,
            x: torch.Tensor = x,
            weights: list[torch.Tensor] = weights,
            tiling: Tiling = tiling,
        ) -> None:
            if use is Use.PARTIAL:
                add_rms_norm(residual, narrow_linear(x, weights[i], tiling), norm, 1e-6)
                return
            run = narrow_silu_mul if use is Use.GATED else narrow_linear
            run(add_rms_norm(residual, None, norm, 1e-6), weights[i], tiling)

        yield f"norm and {name}, own, floor {outputs * inputs * 2 / 4.24e6:.1f}", microseconds(own, _LAYERS)


def delta_prefill(rows: int, tokens: int) -> Iterator[tuple[str, float]]:
    """The gated delta net of one layer over ``rows`` prompts that fill a bucket of ``tokens``."""
    mixed = _half(tokens, 8224)
    weight = _half(_CHANNELS, 4)
    rate, bias = -torch.ones(_HEADS, device=CUDA), torch.zeros(_HEADS, device=CUDA)
    cu_seqlens = (torch.arange(rows + 1, device=CUDA) * (tokens // rows)).to(torch.int32)
    slots = torch.arange(1, rows + 1, dtype=torch.int32, device=CUDA)
    fresh = torch.ones(rows, dtype=torch.bool, device=CUDA)
    conv, state = _half(rows + 1, 3, _CHANNELS), torch.zeros(rows + 1, _HEADS, _DIM, _DIM, device=CUDA)

    def convolve() -> torch.Tensor:
        return causal_conv_prefill(mixed[:, :_CHANNELS], weight, cu_seqlens, conv, slots, fresh)

    yield "conv prefill", microseconds(lambda i: convolve(), 10)
    query, key, value = (x.view(tokens, _HEADS, _DIM) for x in convolve().split(2048, dim=1))
    gates = mixed[:, 8192:8208], mixed[:, 8208:]
    yield "gates", microseconds(lambda i: gated_delta_gates(*gates, rate, bias), 10)
    g, beta = gated_delta_gates(*gates, rate, bias)
    kept = gated_delta_chunk.SOLVE_WARPS, gated_delta_chunk.CARRY_COLUMNS, gated_delta_chunk.CARRY_WARPS
    for solve, columns, warps in ((4, 32, 4), (8, 32, 4), (4, 32, 8), (4, 64, 4), (4, 64, 8)):
        gated_delta_chunk.SOLVE_WARPS, gated_delta_chunk.CARRY_COLUMNS, gated_delta_chunk.CARRY_WARPS = (
            solve,
            columns,
            warps,
        )
        yield (
            f"delta prefill, solve {solve} warps, carry {columns} columns {warps} warps",
            microseconds(
                lambda i: gated_delta_prefill(query, key, value, g, beta, cu_seqlens, tokens, state, slots, fresh),
                10,
            ),
        )
    gated_delta_chunk.SOLVE_WARPS, gated_delta_chunk.CARRY_COLUMNS, gated_delta_chunk.CARRY_WARPS = kept


def all_timings() -> Iterator[tuple[str, float]]:
    """Every timing as ``(what, µs)``."""
    for rows in (16, 128):
        for part in (decode, products, delta_decode):
            for name, value in part(rows):
                yield f"{rows:4} rows  {name}", value
            torch.cuda.empty_cache()
    for rows, tokens in ((1, 128), (4, 512), (16, 2048), (1, 2048)):
        for name, value in delta_prefill(rows, tokens):
            yield f"{rows:4} x {tokens // rows:4}  {name}", value
