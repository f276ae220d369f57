"""Paged attention over FlashInfer's fa2 kernels: the backend of CUDA workers.

A pool's memory is that of ``pools/storage.py``: a layer's keys and values are each ``[pages, page_size, kv_heads,
head_dim]``, FlashInfer's NHD layout, and go in as a pair. Steps that can be captured have static arrays, one
:class:`FlashInferStep` a (walk, bucket, graph slot); only the contents of their arrays and of the planner's workspace
change between replays.

Ordering (E1 to E3 of the overlap rules): :meth:`FlashInferStep.plan` rewrites the slot's pinned and device workspace.
Call it only when the results of the slot's previous step have arrived, inside ``torch.cuda.stream`` of the stream that
its copy shall use, and replay after it on the same stream or behind an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from denizen.kernels.attention_plan import PlanLayout, attention_plan
from denizen.worker.attention.planner_abi import (
    PlannerAbi,
    PlanShape,
    cuda_core_arguments,
    float_workspace_bytes,
    tensor_core_arguments,
)
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.pools.storage import allocate_kv

if TYPE_CHECKING:
    from denizen.worker.models.base import KvPoolSpec

#: Planner arrays of one step: a few KB at 512 rows or 8,192 tokens.
_INT_WORKSPACE_BYTES = 1 << 20


class PlanChangedError(RuntimeError):
    """A plan does not fit the launches that were captured; replaying them would read wrong memory."""


def prefers_tensor_cores(heads: int, kv_heads: int) -> bool:
    """Measured on an H200: ungrouped heads take up to 2.8 times as long on tensor cores, groups of 4 gain from them.

    Groups of 2 gain from 64 rows on and lose little before: one kernel for all batch sizes is worth more.
    """
    return heads > kv_heads


def gathers_in_graph(backend: str, graph: bool, abi: PlannerAbi | None) -> bool:
    """Whether a wrapper plans through the direct path, so that its page arrays may be gathered inside the graph.

    This one bit decides both that the gather is recorded and that the host plans lengths only: were they to disagree,
    either two writers would race on the arrays or the graph would read stale pages.
    """
    return backend == "fa2" and graph and abi is not None


@dataclass(frozen=True)
class SlotWorkspace:
    """Planner memory of one graph slot, shared by its buckets: only one step of a slot is under way at a time."""

    floats: torch.Tensor  #: uint8, partial results; slots of a walk may share one, since they run in one stream
    ints: torch.Tensor  #: uint8 on the device
    pinned: torch.Tensor  #: uint8, pinned, the planner writes it and copies it to ``ints``

    @classmethod
    def allocate(cls, floats: torch.Tensor) -> SlotWorkspace:
        return cls(
            floats,
            torch.empty(_INT_WORKSPACE_BYTES, dtype=torch.uint8, device=floats.device),
            torch.empty(_INT_WORKSPACE_BYTES, dtype=torch.uint8, pin_memory=floats.is_cuda),
        )


class PageArrays:
    """Static page arrays of a step, int32 on the device: see ``kernels/page_gather.py``.

    A graph gathers them, or the host loads them in one copy: ``indptr`` ``[rows + 1]``, ``last_page_len`` ``[rows]``,
    ``indices`` ``[pages of the pool + rows]``. Every row starts as padding: one page, the sink, of length 1.
    """

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self._rows = rows
        self._words = torch.zeros(2 * _aligned(rows + 1) + pages + rows, dtype=torch.int32, device=device)
        self._pinned: torch.Tensor | None = None  # made when the host first loads
        self.indptr, self.last_page_len, self.indices = self._parts(self._words)
        self.indptr.copy_(torch.arange(rows + 1, dtype=torch.int32))
        self.last_page_len.fill_(1)

    def _parts(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, second = self._rows, _aligned(self._rows + 1)
        return words[: rows + 1], words[second : second + rows], words[2 * second :]

    def load(self, indptr: np.ndarray, indices: np.ndarray, last_page_len: np.ndarray) -> None:
        """Queues one copy of the arrays of the first rows; the other rows become padding.

        Rewrites pinned memory: only when the step's last copy has run (E3).
        """
        if self._pinned is None:
            self._pinned = torch.zeros_like(self._words, device="cpu", pin_memory=self._words.is_cuda)
        starts, lasts, pages = (part.numpy() for part in self._parts(self._pinned))
        starts[:] = padded_indptr(indptr, self._rows)
        lasts[: len(last_page_len)] = last_page_len
        lasts[len(last_page_len) :] = 1
        pages[: len(indices)] = indices
        pages[len(indices) : starts[-1]] = SINK_PAGE
        used = len(self._words) - len(pages) + int(starts[-1])
        self._words[:used].copy_(self._pinned[:used], non_blocking=True)


def padded_indptr(indptr: np.ndarray, rows: int) -> np.ndarray:
    """``indptr`` continued to ``rows`` rows, padding rows having one page each."""
    padding = rows + 1 - len(indptr)
    return np.concatenate((indptr, indptr[-1] + np.arange(1, padding + 1, dtype=np.int32)))


def _aligned(words: int) -> int:
    return -(-words // 4) * 4


class FlashInferAttention:
    """The keys and values of one KV pool, and the steps that attend over them."""

    def __init__(
        self, spec: KvPoolSpec, heads: int, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.spec = spec
        self.heads = heads
        self.page_size = page_size
        self.device = device
        self.dtype = dtype
        self.abi = PlannerAbi.installed()
        on_gpu = device.type == "cuda"
        self.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 132
        #: each ``[layers, pages, page_size, kv_heads, head_dim]``
        self.keys, self.values = allocate_kv(spec, pages, page_size, device, dtype)

    def decode_step(self, rows: int, workspace: SlotWorkspace, tensor_cores: bool | None = None) -> FlashInferStep:
        """A step of ``rows`` rows with one query each, for a graph. ``tensor_cores`` None = whatever is faster."""
        if tensor_cores is None:
            tensor_cores = prefers_tensor_cores(self.heads, self.spec.kv_heads)
        return FlashInferStep(self, self._shape(rows, rows, causal=False), workspace, tensor_cores, ragged=False)

    def prefill_step(self, rows: int, tokens: int, workspace: SlotWorkspace, causal: bool = True) -> FlashInferStep:
        """A step of at most ``tokens`` queries of at most ``rows`` rows, for a graph.

        ``causal``: a row's queries are the last of its positions; otherwise each sees all of them (cross attention).
        """
        return FlashInferStep(self, self._shape(rows, tokens, causal), workspace, tensor_cores=True, ragged=True)

    def float_workspace(self, rows: int, tokens: int) -> torch.Tensor:
        """Memory for partial results that suffices for steps up to this size."""
        size = float_workspace_bytes(self._shape(rows, tokens, causal=True), self.multiprocessors)
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def _shape(self, rows: int, tokens: int, causal: bool) -> PlanShape:
        spec = self.spec
        return PlanShape(rows, tokens, self.heads, spec.kv_heads, spec.head_dim, self.page_size, causal, graph=True)


class FlashInferStep:
    """An :class:`~denizen.worker.attention.base.AttentionStep` with static arrays, for one (walk, bucket, graph slot).

    ``lengths_only`` is the frozen bit of :func:`gathers_in_graph`. True: record ``page_gather`` into ``pages`` before
    the first layer, and give :meth:`plan` the prefix sum of page counts alone. False: fill ``pages`` from the host's.
    """

    def __init__(
        self,
        pool: FlashInferAttention,
        shape: PlanShape,
        workspace: SlotWorkspace,
        tensor_cores: bool,
        ragged: bool,
    ) -> None:
        """``ragged``: rows have any number of queries; otherwise each has one, and ``shape.tokens`` rows."""
        self.pages = PageArrays(shape.rows, pool.keys.shape[1], pool.device)
        #: int32 ``[tokens]``: place of each new token in the flattened pool; see ``kernels/decode_step.py``
        self.write_at = torch.zeros(shape.tokens, dtype=torch.int32, device=pool.device)
        #: int32 ``[rows + 1]``: first query of each row
        self.qo_indptr = torch.arange(shape.rows + 1, dtype=torch.int32, device=pool.device)
        self.shape = shape
        self._pool = pool
        self._workspace = workspace
        self._ragged = ragged
        self._tensor_cores = tensor_cores
        self._scale = shape.head_dim**-0.5
        self._captured: list[int] | None = None
        self._host_qo = torch.arange(shape.rows + 1, dtype=torch.int32)
        self._host_lengths = torch.ones(shape.rows, dtype=torch.int32)
        self._wrapper = self._make_wrapper()
        self._plan_padding()
        self._lengths_only = gathers_in_graph(self._wrapper._backend, shape.graph, pool.abi)

    @property
    def lengths_only(self) -> bool:
        return self._lengths_only

    def record_plan(self) -> None:
        """Plans inside the graph: call after ``page_gather`` and before the first layer, instead of :meth:`plan`.

        The workspace is written in the order of the stream then, and the host never touches it.
        """
        if not self._lengths_only:
            raise ValueError("this step's pages come from the host, which plans for them too")
        attention_plan(self.qo_indptr, self.pages.indptr, self.layout(), self._workspace.ints)

    def layout(self) -> PlanLayout:
        """Where the plan's arrays lie; the same for every plan of this step."""
        shape, info = self.shape, self._wrapper._plan_info
        if not self._tensor_cores:
            return PlanLayout.of_cuda_cores(info, shape.page_size, self._workspace.ints.numel())
        group = shape.heads // shape.kv_heads
        return PlanLayout.of(info, group, shape.page_size, shape.kv_heads, self._pool.multiprocessors)

    def plan(self, kv_indptr: torch.Tensor, qo_indptr: torch.Tensor | None = None) -> None:
        """Plans the next replay.

        ``kv_indptr`` int32 ``[rows + 1]`` on the host: prefix sum of page counts, padding included. ``qo_indptr``
        likewise, prefill only: prefix sum of the rows' query counts (0 = padding). Page arrays and ``self.qo_indptr``
        are not written here: the graph gathers them, or the step's input carries them.
        Raises :class:`PlanChangedError` if the captured launches do not fit.
        """
        pool, shape, memory = self._pool, self.shape, self._workspace
        if pool.abi is None:
            self._plan_slowly(kv_indptr, qo_indptr)
            return
        workspaces = (memory.floats, memory.ints, memory.pinned)
        if self._tensor_cores:
            queries = self._host_qo if qo_indptr is None else qo_indptr
            arguments = tensor_core_arguments(pool.abi, workspaces, queries, kv_indptr, self._host_lengths, shape)
        else:
            arguments = cuda_core_arguments(workspaces, kv_indptr, shape, pool.dtype)
        self._accept(self._wrapper._cached_module.plan(*arguments))

    def freeze(self) -> None:
        """Call once the step was captured: from here on every plan must equal the one in the graph."""
        self._captured = [int(value) for value in self._wrapper._plan_info]

    def run(
        self, layer: int, query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """As in :class:`~denizen.worker.attention.base.AttentionStep`."""
        if abs(scale - self._scale) > 1e-6 * self._scale:
            raise ValueError(f"this backend plans for a scale of head_dim ** -0.5, not {scale}")
        if key is not None and value is not None:
            where = self.write_at.long()
            for cache, new in ((self._pool.keys, key), (self._pool.values, value)):
                cache[layer].view(-1, *new.shape[1:]).index_copy_(0, where, new)
        return self.attend(layer, query)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attends over pages that hold the step's keys and values already (``kernels/attention_inputs.py``).

        Ragged queries are causal where the shape says so. A single query sees the row's whole context.
        """
        out = torch.empty_like(query)
        self._wrapper.run(query, self.cache(layer), out=out)
        return out

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each ``[pages, page_size, kv_heads, head_dim]``."""
        return self._pool.keys[layer], self._pool.values[layer]

    def _make_wrapper(self) -> Any:
        flashinfer = import_module("flashinfer")
        memory, pages = self._workspace, self.pages
        if self._ragged:
            wrapper: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                memory.floats,
                "NHD",
                use_cuda_graph=True,
                qo_indptr_buf=self.qo_indptr,
                paged_kv_indptr_buf=pages.indptr,
                paged_kv_indices_buf=pages.indices,
                paged_kv_last_page_len_buf=pages.last_page_len,
                backend="fa2",
            )
        else:
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                memory.floats,
                "NHD",
                use_cuda_graph=True,
                use_tensor_cores=self._tensor_cores,
                paged_kv_indptr_buffer=pages.indptr,
                paged_kv_indices_buffer=pages.indices,
                paged_kv_last_page_len_buffer=pages.last_page_len,
                backend="fa2",  # "auto" weighs other backends at every plan
            )
        # One workspace a graph slot instead of 8 MiB, pinned and not, a wrapper.
        wrapper._int_workspace_buffer = memory.ints
        wrapper._pin_memory_int_workspace_buffer = memory.pinned
        return wrapper

    def _plan_padding(self) -> None:
        """The first plan, for rows of padding: builds and loads the module, and sets what the wrapper keeps."""
        rows = torch.arange(self.shape.rows + 1, dtype=torch.int32)
        queries = rows.clone()
        queries[-1] = self.shape.tokens  # the wrapper keeps the first plan's total as its limit
        self._plan_slowly(rows, queries if self._ragged else None)

    def _plan_slowly(self, kv_indptr: torch.Tensor, qo_indptr: torch.Tensor | None) -> None:
        """Through the wrapper, which also writes the arrays that it is given: the pages that they hold already."""
        shape, pages, dtype = self.shape, self.pages, self._pool.dtype
        indices = pages.indices[: int(kv_indptr[-1])]
        options = {"q_data_type": dtype, "kv_data_type": dtype, "sm_scale": self._scale}
        arrays = (kv_indptr, indices, pages.last_page_len)
        heads = (shape.heads, shape.kv_heads, shape.head_dim)
        if self._ragged:
            queries = self.qo_indptr.cpu() if qo_indptr is None else qo_indptr
            self._wrapper.plan(queries, *arrays, *heads, shape.page_size, causal=shape.causal, **options)
        else:
            self._wrapper.plan(*arrays, *heads, shape.page_size, **options)
        self._accept(self._wrapper._plan_info)

    def _accept(self, plan: Any) -> None:
        info = [int(value) for value in plan]
        if self._captured is not None and info != self._captured:
            raise PlanChangedError(f"the planner gave {info} where {self._captured} is captured: it cannot be replayed")
        self._wrapper._plan_info = plan
