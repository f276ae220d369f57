"""Every kernel compiles for Hopper at the shapes of the models served, without a GPU, and spills no registers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from denizen.kernels import (
    adjust,
    attention_inputs,
    attention_plan,
    conv,
    decode_step,
    filter,
    gate,
    gated_delta_chunk,
    gated_delta_decode,
    layer_norm,
    mailbox,
    narrow_linear,
    norm,
    page_gather,
    prefill_step,
    row_writes,
    sample,
    transcription_rules,
)

_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.uint8: "*u8",
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Launches compile instead of running; yields the resource usage of each kernel by name."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    target = GPUTarget("cuda", 90, 32)
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage: dict[str, str] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        names = [p.name for p in self.params]
        values = dict(zip(names, args, strict=False))
        values.update({k: v for k, v in kwargs.items() if k in names})
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(self.params):
            value = values[parameter.name]
            if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[parameter.name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name] = _POINTERS[value.dtype]
                attributes[(index,)] = [["tt.divisibility", 16]]
            elif isinstance(value, float):
                signature[parameter.name] = "fp32"
            else:
                signature[parameter.name] = "i32"
                if value % 16 == 0:
                    attributes[(index,)] = [["tt.divisibility", 16]]
        options = {k: v for k, v in kwargs.items() if k in ("num_warps", "num_stages", "maxnreg")}
        source = ASTSource(self, signature, constants, attributes)
        binary = triton.compile(source, target=target, options=options)
        # One multiprocessor has 227 KB.
        assert binary.metadata.shared <= 227 << 10, f"{self.__name__} takes {binary.metadata.shared} bytes"
        cubin = tmp_path / f"{self.__name__}.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        report = subprocess.run([cuobjdump, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
        usage[self.__name__] = report

    monkeypatch.setattr(JITFunction, "run", run)
    yield usage
    assert usage
    for name, report in usage.items():
        print(name, *re.findall(r"(?:REG|STACK|SHARED|LOCAL):\d+", report))
    for name, report in usage.items():
        assert all(int(size) <= 40 for size in re.findall(r"STACK:(\d+)", report)), f"{name} spills: {report}"
        assert "LOCAL:0 " in report, f"{name} spills: {report}"


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _longs(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def _half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def test_tables(compiled: dict[str, str]) -> None:
    rows, table = 128, _ints(130, 2052)
    page_gather.page_gather_triton(
        _ints(rows), table[:, 4:], _ints(rows), 16, 0, _ints(rows + 1), _ints(9000), _ints(rows)
    )
    row_writes.apply_row_writes_triton(_ints(100000), _ints(256, 2), _ints(5000))
    out = decode_step.DecodeInputs.allocate(rows, torch.device("cpu"))
    decode_step.decode_inputs_triton(_ints(rows), table[:, 1], table[:, 0], table[:, 4:], 16, 0, out)
    mailbox.publish_triton(_longs(rows), _ints(1), _ints(1 + rows))
    prompt = prefill_step.PrefillInputs.allocate(16, 2048, torch.device("cpu"))
    prefill_step.prefill_inputs_triton(_ints(16), _ints(17), table[:, 0], table[:, 4:], 16, 0, prompt)
    decode_step.advance_rows_triton(_ints(rows), _longs(rows), out.lengths, table[:, 0], table[:, 1], table[:, 2])


def test_attention_plan(compiled: dict[str, str]) -> None:
    info = [255, 128, 6240, 16, 0, 1024, 2048, 6256, 3072, 3588, 0, 0, 6784, 1, 1]
    layout = attention_plan.PlanLayout.of(info, 4, 16, 2, 132)
    attention_plan.attention_plan_triton(_ints(129), _ints(129), layout, torch.zeros(1 << 16, dtype=torch.uint8))


def test_layers(compiled: dict[str, str]) -> None:
    rows = 128
    norm.add_rms_norm_triton(_half(rows, 1024), _half(rows, 1024), torch.zeros(1024), 1e-6)
    gate.silu_mul_triton(_half(rows, 7168))
    projected = _half(rows, 8 * 512 + 2 * 512)
    gate.sigmoid_gate_triton(_half(rows, 8, 256), projected[:, :4096].view(rows, 8, 512)[..., 256:])
    weight, table, pool = torch.zeros(256), torch.zeros(4096, 2, 32), _half(64, 16, 2, 256)
    attention_inputs.attention_inputs_triton(
        projected, 8, 2, True, weight, weight, 1e-6, table, _longs(rows), _ints(rows), pool, pool.clone()
    )


@pytest.mark.parametrize("tokens", [8, 32, 64, 128, 256])
def test_products(compiled: dict[str, str], tokens: int) -> None:
    """Of Qwen3.5-0.8B's layers, and one with more inputs."""
    plain, gated, partial = narrow_linear.Use.PLAIN, narrow_linear.Use.GATED, narrow_linear.Use.PARTIAL
    for use, outputs, inputs in (
        (plain, 8224, 1024),
        (gated, 7168, 1024),
        (partial, 1024, 2048),
        (partial, 1024, 3584),
        (partial, 2048, 8192),
    ):
        tiling = narrow_linear.choose_tiling(use, tokens, outputs, inputs)
        if tiling is None:
            assert use is plain, f"no tiling for {outputs} x {inputs}"
            continue
        run = narrow_linear.narrow_silu_mul_triton if use is gated else narrow_linear.narrow_linear_triton
        run(_half(tokens, inputs), _half(outputs, inputs), tiling)
    norm.add_rms_norm_triton(_half(tokens, 1024), torch.zeros(8, tokens, 1024), torch.zeros(1024), 1e-6)


@pytest.mark.parametrize("width", [512, 1280])
def test_speech(compiled: dict[str, str], width: int) -> None:
    """Whisper base and large-v3-turbo: an encoder's and a decoder's norms, self attention's inputs, rules."""
    rows, heads = 64, width // 64
    scale, shift = torch.zeros(width), torch.zeros(width)
    for delta in (None, _half(24000, width)):
        layer_norm.add_layer_norm_triton(_half(24000, width), delta, scale, shift, 1e-5)
    tiling = narrow_linear.choose_tiling(narrow_linear.Use.PARTIAL, rows, width, 4 * width)
    assert tiling is not None
    parts = narrow_linear.narrow_linear_triton(_half(rows, 4 * width), _half(width, 4 * width), tiling, _half(width))
    layer_norm.add_layer_norm_triton(_half(rows, width), parts, scale, shift, 1e-5)
    pool = _half(64, 16, heads, 64)
    attention_inputs.attention_inputs_triton(
        _half(rows, 3 * width),
        heads,
        heads,
        False,
        None,
        None,
        0.0,
        torch.zeros(448, 2, 32),
        _longs(rows),
        _ints(rows),
        pool,
        pool.clone(),
    )
    known = transcription_rules.Vocabulary(torch.zeros(51866, dtype=torch.uint8), 50257, 50364, 50)
    words = transcription_rules.STATE_WORDS
    for given in ({"tokens": _longs(rows)}, {"begins": _ints(rows, words)}):
        transcription_rules.transcription_rules_triton(
            _half(rows, 51866), _ints(80, words), _ints(rows), known, **given
        )


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [16, 128])
def test_gated_delta_decode(compiled: dict[str, str], rows: int, state_dtype: torch.dtype) -> None:
    heads, dim, channels = 16, 128, 6144
    parts = _half(rows, channels + 2048 + 32).split((channels, 2048, 16, 16), dim=1)
    scalars = torch.zeros(heads)
    gated_delta_decode.gated_delta_decode_triton(
        *parts,
        _half(channels, 4),
        scalars,
        scalars,
        torch.zeros(dim),
        1e-6,
        _half(20, 3, channels),
        torch.zeros(20, heads, dim, dim, dtype=state_dtype),
        _ints(rows),
    )


def test_gated_delta_prefill(compiled: dict[str, str]) -> None:
    tokens, rows, heads, dim, channels = 512, 8, 16, 128, 6144
    cu_seqlens, slots, fresh = _ints(rows + 1), _ints(rows), torch.zeros(rows, dtype=torch.bool)
    mixed = _half(tokens, channels + 2080)[:, :channels]
    convolved = conv.causal_conv_prefill_triton(
        mixed, _half(channels, 4), cu_seqlens, _half(20, 3, channels), slots, fresh
    )
    query, key, value = (part.view(tokens, heads, dim) for part in convolved.split(2048, dim=1))
    gates = torch.zeros(tokens, heads)
    state = torch.zeros(20, heads, dim, dim)
    gated_delta_chunk.gated_delta_prefill_triton(query, key, value, gates, gates, cu_seqlens, state, slots, fresh)


@pytest.mark.parametrize("make", [_half, torch.zeros])
def test_sampler(compiled: dict[str, str], make: Callable[..., torch.Tensor]) -> None:
    rows = 16
    logits, blocks = make(rows, 248320), torch.zeros(rows, 4)
    columns = blocks[:, 0], _ints(rows, 4)[:, 0], blocks[:, 1], blocks[:, 2]
    column, blocks_of_rows = _ints(rows, 4)[:, 0], [blocks[:, i] for i in range(3)]
    table = _ints(20, 248320)
    adjust.adjust_logits_triton(
        logits, _ints(rows), column, *blocks_of_rows, column, column, _ints(rows, 32), table, table.float()
    )
    adjust.count_tokens_triton(_longs(rows), _ints(rows), column, table)
    threshold = filter.filter_threshold_triton(logits, *columns)
    sample.gumbel_argmax_triton(logits, blocks[:, 0], _longs(rows, 4)[:, 0], _longs(rows), threshold)
