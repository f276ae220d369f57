"""The FlashInfer backend without a GPU: argument lists, the frozen bit, plans, and what reaches the wrapper."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from denizen.worker.attention import flashinfer as backend
from denizen.worker.attention.planner_abi import (
    PlannerAbi,
    PlanShape,
    cuda_core_arguments,
    float_workspace_bytes,
    tensor_core_arguments,
)
from denizen.worker.attention.torch_ref import PagedAttention
from denizen.worker.models.base import KvPoolSpec
from denizen.worker.pools.kv import SINK_PAGE

_T, _I, _B, _D = "TensorView", "int64_t", "bool", "double"
#: Parameter types of the planners in FlashInfer's sources.
_TENSOR_CORE = [_T] * 6 + [_I] * 5 + [_B] + [_I] * 2 + [_B] + [_I] * 2 + [_B] + [_I]
_SIGNATURES = {"0.6.13": _TENSOR_CORE, "0.6.14": _TENSOR_CORE, "0.7.2": [*_TENSOR_CORE, _I]}
_CUDA_CORE = [_T] * 4 + [_I] * 4 + [_B] + [_I] + [_D] + [_I] * 2 + [_T] * 2
_PYTHON = {_T: torch.Tensor, _I: int, _B: bool, _D: float}

SPEC = KvPoolSpec("kv", layers=2, kv_heads=2, head_dim=16)
HEADS, PAGES, PAGE = 8, 12, 4
CPU = torch.device("cpu")


def _shape(**changes: Any) -> PlanShape:
    values: dict[str, Any] = {
        "rows": 3, "tokens": 3, "heads": 8, "kv_heads": 2, "head_dim": 256, "page_size": 16,
        "causal": False, "graph": True,
    }  # fmt: skip
    return PlanShape(**{**values, **changes})


def _tensors(count: int) -> list[torch.Tensor]:
    return [torch.zeros(4, dtype=torch.int32) for _ in range(count)]


def _kinds(arguments: list[Any]) -> list[type]:
    return [torch.Tensor if isinstance(value, torch.Tensor) else type(value) for value in arguments]


@pytest.mark.parametrize("release", sorted(_SIGNATURES))
def test_arguments_have_the_types_of_the_planner(release: str) -> None:
    abi = PlannerAbi.of(release)
    assert abi is not None
    arguments = tensor_core_arguments(abi, _tensors(3), *_tensors(3), _shape())
    assert _kinds(arguments) == [_PYTHON[kind] for kind in _SIGNATURES[release]]
    assert len(arguments) == abi.tensor_core_arguments
    arguments = cuda_core_arguments(_tensors(3), *_tensors(1), _shape(), torch.bfloat16)
    assert _kinds(arguments) == [_PYTHON[kind] for kind in _CUDA_CORE]
    assert [value.dtype for value in arguments[-2:]] == [torch.bfloat16] * 2


def test_arguments_stand_where_the_planner_reads_them() -> None:
    abi = PlannerAbi.of("0.6.14")
    assert abi is not None
    shape = _shape(rows=5, tokens=7, heads=16, kv_heads=4, head_dim=64, page_size=32, causal=True)
    arguments = tensor_core_arguments(abi, _tensors(3), *_tensors(3), shape)
    assert arguments[6:] == [7, 5, 16, 4, 32, True, 64, 64, True, -1, -1, False, 0]
    arguments = cuda_core_arguments(_tensors(3), *_tensors(1), shape, torch.float16)
    assert arguments[4:13] == [5, 16, 4, 32, True, -1, 0.0, 64, 64]


@pytest.mark.parametrize("wheel", sorted(Path(__file__).parents[2].glob(".gpu/wheels/flashinfer_python-*.whl")))
def test_signatures_are_those_of_the_wheel(wheel: Path) -> None:
    release = wheel.name.split("-")[1].removesuffix(".post1")
    with zipfile.ZipFile(wheel) as archive:
        for name, function, expected in (
            ("batch_prefill", "BatchPrefillWithKVCachePlan", _SIGNATURES[release]),
            ("batch_decode", "BatchDecodeWithPagedKVCachePlan", _CUDA_CORE),
        ):
            source = archive.read(f"flashinfer/data/csrc/{name}.cu").decode()
            declared = re.search(rf"{function}\(([^{{]*)\) {{", source)
            assert declared is not None
            kinds = [parameter.split()[0] for parameter in declared.group(1).split(",")]
            assert kinds == expected, function


@pytest.mark.parametrize(
    ("release", "known"),
    [
        ("0.6.13", "0.6.13"),
        ("0.6.14", "0.6.14"),
        ("0.7.2", "0.7.2"),
        ("0.7.2.post1", "0.7.2"),
        ("0.6.14+cu130", "0.6.14"),
        ("0.7.20", None),
        ("0.7.3", None),
        ("0.6.14rc1", None),
        ("0.7.2.dev3", None),
        ("nightly", None),
    ],
)
def test_only_known_releases_have_an_abi(release: str, known: str | None) -> None:
    abi = PlannerAbi.of(release)
    assert (abi.release if abi else None) == known


def test_the_gather_is_recorded_only_on_the_direct_path() -> None:
    abi = PlannerAbi.of("0.6.14")
    assert backend.gathers_in_graph("fa2", True, abi)
    for other in ("auto", "fa3", "jit", "trtllm-gen", "xqa", "cudnn", "cute-dsl"):
        assert not backend.gathers_in_graph(other, True, abi)
    assert not backend.gathers_in_graph("fa2", False, abi)
    assert not backend.gathers_in_graph("fa2", True, None)


def test_tensor_cores_are_for_grouped_heads() -> None:
    assert backend.prefers_tensor_cores(8, 2)
    assert backend.prefers_tensor_cores(16, 8)
    assert not backend.prefers_tensor_cores(20, 20)


def test_the_float_workspace_holds_what_a_plan_asks_for() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        rows, per_row, group = (int(torch.randint(1, n, (1,), generator=generator)) for n in (130, 60, 9))
        kv_heads, dim = 2, (64, 128, 256)[int(torch.randint(0, 3, (1,), generator=generator))]
        shape = _shape(rows=rows, tokens=rows * per_row, heads=kv_heads * group, kv_heads=kv_heads, head_dim=dim)
        longest = (shape.tokens - rows + 1) * group
        tile = 128 if longest > 64 and dim < 256 else 64 if longest > 16 else 16
        tiles = -(-shape.tokens * group // tile) + rows - 1
        blocks = max(2 * 132 // kv_heads, tiles)
        wanted = shape.heads * blocks * tile * dim * 4 + shape.heads * blocks * tile * 4
        assert float_workspace_bytes(shape, 132) >= wanted


class _Planner:
    """Stands for FlashInfer's compiled module."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.info = [140, 3, 2304, 16, 0, 560, 1120, 2320, 1680, 1700, 0, 0, 2400, 1, 1]

    def plan(self, *arguments: Any) -> list[int]:
        self.calls.append(arguments)
        return list(self.info)


class _Wrapper:
    """Stands for either FlashInfer wrapper: attends in plain torch over the arrays that it was given."""

    def __init__(
        self, floats: torch.Tensor, layout: str, *, backend: str, use_cuda_graph: bool, **buffers: Any
    ) -> None:
        assert (layout, use_cuda_graph) == ("NHD", True)
        self._backend = backend
        self._buffers = {name.replace("_buffer", "").replace("_buf", ""): value for name, value in buffers.items()}
        self._cached_module = _Planner()
        self._plan_info: list[int] = []
        self._causal = False
        self.slow_plans = 0

    def plan(self, *arguments: Any, **options: Any) -> None:
        self.slow_plans += 1
        self._causal = options.get("causal", False)
        self._plan_info = self._cached_module.plan()

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], *, out: torch.Tensor) -> None:
        reference = PagedAttention(SPEC, PAGES, PAGE, CPU, query.dtype)
        reference.keys[0], reference.values[0] = cache
        arrays = (self._buffers[f"paged_kv_{name}"] for name in ("indptr", "indices", "last_page_len"))
        starts = self._buffers.get("qo_indptr", torch.arange(len(query) + 1, dtype=torch.int32))
        step = reference.bind(*arrays, starts, int((starts[1:] - starts[:-1]).max()), self._causal)
        out.copy_(step._attend(0, query, SPEC.head_dim**-0.5))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> backend.FlashInferAttention:
    fake = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=_Wrapper, BatchPrefillWithPagedKVCacheWrapper=_Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    made = backend.FlashInferAttention(SPEC, HEADS, PAGES, PAGE, CPU, torch.float32)
    made.abi = PlannerAbi.of("0.6.14")
    return made


def _workspace() -> backend.SlotWorkspace:
    return backend.SlotWorkspace.allocate(torch.empty(64, dtype=torch.uint8))


def test_a_lengths_only_plan_is_one_call_and_writes_no_array(pool: backend.FlashInferAttention) -> None:
    step = pool.decode_step(3, _workspace())
    assert step.lengths_only
    before = [array.clone() for array in (step.pages.indptr, step.pages.indices, step.pages.last_page_len)]
    planner = step._wrapper._cached_module
    planner.calls.clear()
    counts = torch.tensor([0, 2, 3, 7], dtype=torch.int32)
    step.plan(counts)
    assert len(planner.calls) == 1
    assert planner.calls[0][4] is counts
    assert step._wrapper.slow_plans == 1  # the first one, for padding
    after = (step.pages.indptr, step.pages.indices, step.pages.last_page_len)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_the_bit_is_frozen(pool: backend.FlashInferAttention) -> None:
    step = pool.decode_step(3, _workspace())
    step._wrapper._backend = "fa3"
    assert step.lengths_only
    with pytest.raises(AttributeError):
        step.lengths_only = False  # type: ignore[misc]
    pool.abi = None
    assert not pool.decode_step(3, _workspace()).lengths_only


def test_an_unknown_release_plans_through_the_wrapper(pool: backend.FlashInferAttention) -> None:
    pool.abi = None
    step = pool.decode_step(3, _workspace())
    step.plan(torch.tensor([0, 1, 2, 3], dtype=torch.int32))
    assert step._wrapper.slow_plans == 2
    assert not step.lengths_only


def test_rows_that_pad_have_the_sink_page_whatever_was_loaded_before() -> None:
    arrays = backend.PageArrays(4, PAGES, CPU)
    for starts, pages, lasts in (([0, 2, 5, 6, 8], [3, 4, 5, 6, 7, 8, 9, 10], [3, 4, 2, 1]), ([0, 1], [7], [2])):
        arrays.load(*(np.asarray(part, np.int32) for part in (starts, pages, lasts)))
    assert arrays.indptr.tolist() == [0, 1, 2, 3, 4]
    assert arrays.indices[:4].tolist() == [7, SINK_PAGE, SINK_PAGE, SINK_PAGE]
    assert arrays.last_page_len.tolist() == [2, 1, 1, 1]


def test_a_changed_plan_is_refused(pool: backend.FlashInferAttention) -> None:
    step = pool.decode_step(3, _workspace())
    counts = torch.tensor([0, 2, 3, 7], dtype=torch.int32)
    step.plan(counts)
    step.freeze()
    step.plan(counts)
    before = list(step._wrapper._plan_info)
    step._wrapper._cached_module.info[0] = 141
    with pytest.raises(backend.PlanChangedError, match=r"gave \[141, .* where \[140, "):
        step.plan(counts)
    assert step._wrapper._plan_info == before  # the refused plan did not become the wrapper's


def test_a_step_can_plan_for_itself(pool: backend.FlashInferAttention) -> None:
    workspace = _workspace()
    step = pool.decode_step(3, workspace)
    planner = step._wrapper._cached_module
    planner.calls.clear()
    step.pages.indptr.copy_(torch.tensor([0, 100, 101, 140]))
    step.record_plan()
    assert not planner.calls
    words = workspace.ints.view(torch.int32)
    assert words[1700 // 4] == 32 * PAGE  # least chunk: 128 positions
    assert words[:7].tolist() == [0, 0, 0, 0, 1, 2, 2]  # rows of the blocks: 100, 1 and 39 pages
    assert words[1680 // 4 : 1680 // 4 + 4].tolist() == [0, 4, 5, 7]
    pool.abi = None
    with pytest.raises(ValueError, match="pages come from the host"):
        pool.decode_step(3, workspace).record_plan()


def test_slots_share_one_workspace_between_buckets(pool: backend.FlashInferAttention) -> None:
    workspace = _workspace()
    for rows in (1, 2, 4):
        step = pool.decode_step(rows, workspace)
        assert step._wrapper._int_workspace_buffer is workspace.ints
        assert step._wrapper._pin_memory_int_workspace_buffer is workspace.pinned
        step.plan(torch.arange(rows + 1, dtype=torch.int32))
        assert step._wrapper._cached_module.calls[-1][:3] == (workspace.floats, workspace.ints, workspace.pinned)


@pytest.mark.parametrize("prefill", [False, True])
def test_a_step_writes_its_keys_and_attends_like_the_reference(
    pool: backend.FlashInferAttention, prefill: bool
) -> None:
    generator = torch.Generator().manual_seed(7)
    counts = [3, 1, 2] if prefill else [1, 1, 1]
    tokens, lengths = sum(counts), torch.tensor([9, 1, 4])
    pages = torch.tensor([5, 2, 8, 1, 11], dtype=torch.int32)
    indptr = torch.tensor([0, 3, 4, 5], dtype=torch.int32)
    starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    last = ((lengths - 1) % PAGE + 1).to(torch.int32)
    reference = PagedAttention(SPEC, PAGES, PAGE, CPU, torch.float32)
    for cache in (reference.keys, reference.values):
        cache.normal_(generator=generator)
    pool.keys.copy_(reference.keys)
    pool.values.copy_(reference.values)
    step = pool.prefill_step(3, tokens, _workspace()) if prefill else pool.decode_step(3, _workspace())
    for mine, array in zip(
        (step.pages.indptr, step.pages.indices, step.pages.last_page_len), (indptr, pages, last), strict=True
    ):
        mine[: len(array)] = array
    step.qo_indptr.copy_(starts)
    expected = reference.bind(indptr, pages, last, starts, max(counts))
    step.write_at.copy_(expected.write_at)
    step.plan(indptr, starts if prefill else None)
    query = torch.randn(tokens, HEADS, SPEC.head_dim, generator=generator)
    key, value = (torch.randn(tokens, SPEC.kv_heads, SPEC.head_dim, generator=generator) for _ in range(2))
    got = step.run(1, query, key, value, SPEC.head_dim**-0.5)
    want = expected.run(1, query, key, value, SPEC.head_dim**-0.5)
    torch.testing.assert_close(got, want)
    assert torch.equal(pool.keys, reference.keys)
    assert torch.equal(pool.values, reference.values)
    with pytest.raises(ValueError, match="scale"):
        step.run(1, query, key, value, 1.0)
