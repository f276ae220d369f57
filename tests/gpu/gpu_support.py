"""What the GPU checks share: medians of graph replays, and dense attention to compare with."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA = torch.device("cuda")


def capture(function: Callable[[], object], warm: int = 3) -> torch.cuda.CUDAGraph:
    """Runs ``function`` ``warm`` times on a side stream, then records it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def microseconds(function: Callable[[int], object], copies: int, replays: int = 20) -> float:
    """Median GPU time of one call, of ``copies`` in a graph; call i takes buffers of its own to find caches cold."""
    graph = capture(lambda: [function(i) for i in range(copies)], warm=2)
    times = []
    for _ in range(replays + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / copies)
    return statistics.median(times[3:])


def dense_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: torch.Tensor,
    length: int,
    scale: float,
    causal: bool = True,
) -> torch.Tensor:
    """float64 attention of a row's queries ``[n, heads, D]``: the last n of its ``length`` positions, if causal."""
    kv_heads, dim = keys.shape[2:]
    k = keys[pages.long()].reshape(-1, kv_heads, dim)[:length].double()
    v = values[pages.long()].reshape(-1, kv_heads, dim)[:length].double()
    count, heads = query.shape[:2]
    grouped = query.double().view(count, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("nhgd,lhd->nhgl", grouped, k) * scale
    at = torch.arange(length, device=query.device)
    hidden = at[None, :] > (length - count + torch.arange(count, device=query.device))[:, None]
    if causal:
        scores.masked_fill_(hidden[:, None, None, :], float("-inf"))
    return torch.einsum("nhgl,lhd->nhgd", scores.softmax(-1), v).reshape(count, heads, dim)
