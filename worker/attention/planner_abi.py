"""FlashInfer's C++ planner, called directly: the argument lists of the versions that are known.

``wrapper.plan()`` costs the host 100 to 830 µs a step, most of it Python and copies; the planner behind it takes 10 to
20. It is private to FlashInfer, so the list is chosen by version and never found out by trying. An unknown version gets
no list, and its wrappers plan the slow way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Releases whose planner was read: arguments of the tensor-core (fa2 prefill) planner.
_TENSOR_CORE_ARGUMENTS = {"0.6.13": 19, "0.6.14": 19, "0.7.2": 20}


@dataclass(frozen=True)
class PlannerAbi:
    """What the planner of a FlashInfer release takes."""

    release: str
    tensor_core_arguments: int

    @classmethod
    def of(cls, release: str) -> PlannerAbi | None:
        """``release`` as packaged (``0.7.2.post1``: post-releases share an ABI); None if it is not known."""
        match = re.match(r"\d+\.\d+\.\d+(?=$|\.post|\+)", release)
        count = _TENSOR_CORE_ARGUMENTS.get(match.group()) if match else None
        return None if match is None or count is None else cls(match.group(), count)

    @classmethod
    def installed(cls) -> PlannerAbi | None:
        try:
            return cls.of(version("flashinfer-python"))
        except PackageNotFoundError:
            return None


@dataclass(frozen=True)
class PlanShape:
    """What stays the same between the plans of a wrapper."""

    rows: int  #: batch size of the wrapper, padding rows included
    tokens: int  #: query tokens at most; equal to ``rows`` in decode
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    causal: bool
    graph: bool


def tensor_core_arguments(
    abi: PlannerAbi,
    workspaces: Sequence[torch.Tensor],
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_lengths: torch.Tensor,
    shape: PlanShape,
) -> list[Any]:
    """Arguments of the fa2 tensor-core planner.

    ``workspaces``: float, int and pinned int. The other tensors are int32 on the host. The planner reads page counts
    only, never ``kv_lengths``, but wants a tensor of ``rows`` there.
    """
    arguments = [
        *workspaces,
        qo_indptr,
        kv_indptr,
        kv_lengths,
        shape.tokens,
        shape.rows,
        shape.heads,
        shape.kv_heads,
        shape.page_size,
        shape.graph,
        shape.head_dim,
        shape.head_dim,
        shape.causal,
        -1,  # window_left: none
        -1,  # fixed_split_size: the planner's choice
        False,  # disable_split_kv
        0,  # num_colocated_ctas
    ]
    if abi.tensor_core_arguments == 20:
        arguments.append(0)  # uniform_q_len: rows differ, or have one token
    return arguments


def cuda_core_arguments(
    workspaces: Sequence[torch.Tensor], kv_indptr: torch.Tensor, shape: PlanShape, dtype: torch.dtype
) -> list[Any]:
    """Arguments of the CUDA-core decode planner; the last two tell it the types of queries and keys."""
    return [
        *workspaces,
        kv_indptr,
        shape.rows,
        shape.heads,
        shape.kv_heads,
        shape.page_size,
        shape.graph,
        -1,  # window_left: none
        0.0,  # logits_soft_cap: none
        shape.head_dim,
        shape.head_dim,
        torch.empty(0, dtype=dtype),
        torch.empty(0, dtype=dtype),
    ]


def float_workspace_bytes(shape: PlanShape, multiprocessors: int) -> int:
    """Bytes of partial results that a plan of ``shape`` can ask for when it splits long contexts, alignment included.

    Two blocks run on a multiprocessor; a query tile has at most 128 rows, 64 from head dimension 256 on.
    """
    group = shape.heads // shape.kv_heads
    tile = 64 if shape.head_dim >= 256 else 128
    smallest = 16
    blocks = 2 * multiprocessors // shape.kv_heads
    worst = 0
    for size in (smallest, 64, tile):
        tiles = max(blocks, -(-shape.tokens * group // size) + shape.rows - 1)
        worst = max(worst, shape.heads * tiles * size * (shape.head_dim + 1) * 4)
    return worst + 4096
