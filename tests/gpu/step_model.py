"""Qwen3.5-0.8B's real shape with random weights made on the GPU, without a checkpoint, and its decode steps to time."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.graphs import GraphRunner
from denizen.worker.models.qwen3_5.config import Qwen35Config
from denizen.worker.models.qwen3_5.model import Qwen35Model
from denizen.worker.models.qwen3_5.weights import load_weights
from denizen.worker.sampling.captured import Variant
from denizen.worker.served import ServedModel
from gpu_models import REAL_SHAPE
from gpu_support import CUDA, capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CONTEXT = 1024


class RandomWeights:
    """Stands in for :class:`~denizen.worker.models.loader.WeightLoader`: logits near a standard deviation of 1.2."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        noise = torch.randn(shape, device=CUDA)
        if name.endswith("A_log"):
            noise *= 0.5
        elif name.endswith("dt_bias"):
            noise -= 1
        elif "conv1d" in name:
            noise *= 0.6
        elif "norm" in name:
            noise = noise * 0.2 + ("linear_attn.norm" in name)
        elif "embed" in name:
            noise *= 1.2 / math.sqrt(shape[1])
        else:
            gain = 2.5 if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")) else 1.5
            noise *= gain / math.sqrt(shape[1])
        return noise.to(dtype)

    def fused(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
        return torch.cat([self.tensor(name, shape) for name, shape in zip(names, shapes, strict=True)])

    def skip(self, names: Sequence[str]) -> None:
        pass

    def finish(self) -> None:
        pass


def real_model(buckets: Sequence[int], state_dtype: str = "float32") -> ServedModel:
    """Its decode steps of each of ``buckets`` rows are built, not captured: :class:`LiveStep` captures its own."""
    torch.manual_seed(0)
    source: Any = SimpleNamespace(path=Path(), config=json.loads(REAL_SHAPE.read_text()))
    config = Qwen35Config.read(source)
    weights: Any = RandomWeights()
    model = Qwen35Model(config, load_weights(config, weights, "model."))
    rows = max(buckets)
    with patch.object(GraphRunner, "capture"):
        return ServedModel.build(
            "model",
            model,
            CUDA,
            torch.bfloat16,
            PoolConfig(16, (rows + 1) * _CONTEXT, state_dtype),
            SchedulerConfig(rows, _CONTEXT, 64),
            EngineConfig(True, True),
            buckets=list(buckets),
        )


class LiveStep:
    """The decode step of ``rows`` live rows whose contexts lie evenly between 128 and 640 tokens."""

    def __init__(self, served: ServedModel, rows: int) -> None:
        self.rows = rows
        self._runner: Any = served.runner
        self.step = self._runner._steps["decode", rows, 0]
        self._tables = self._runner.tables
        pages = _CONTEXT // 16
        for table in self._tables.block_table.values():
            ids = torch.arange(1, rows * pages + 1, dtype=torch.int32, device=CUDA).view(rows, pages)
            table[1 : rows + 1, :pages] = ids
        for column in self._tables.state_slots.values():
            column[1 : rows + 1] = torch.arange(1, rows + 1, dtype=torch.int32, device=CUDA)
        self.step.block.host["runs"].fill(0)
        self.step.block.host["slots"][:] = torch.arange(1, rows + 1, dtype=torch.int32).numpy()
        self.reset()

    def reset(self) -> None:
        """Contexts and tokens as at first; the recurrent state stays what it has become."""
        spread = torch.linspace(128, 640, self.rows, device=CUDA).to(torch.int32)
        for lengths in self._tables.lengths.values():
            lengths[1 : self.rows + 1] = spread
        vocab = self._runner.model.vocab_size
        tokens = torch.arange(1, self.rows + 1, device=CUDA) * 7919 % vocab
        self._tables.last_token[1 : self.rows + 1] = tokens.to(torch.int32)

    @torch.inference_mode()
    def run(self) -> None:
        self.step.finish(self.step.forward(), Variant.PLAIN)

    @torch.inference_mode()
    def hidden(self) -> torch.Tensor:
        """Of a step from the first contexts and the state as it is, fp32 ``[rows, hidden]``."""
        self.reset()
        with self._state_kept():
            out: torch.Tensor = self.step.forward().float()
        return out

    @torch.inference_mode()
    def captured(self) -> torch.cuda.CUDAGraph:
        with self._state_kept():
            return capture(self.run)

    @contextmanager
    def _state_kept(self) -> Iterator[None]:
        """The rows' recurrent state afterwards is that of before."""
        pools = self.step._around.state.values()
        kept = [(x, x[:, : self.rows + 1].clone()) for pool in pools for x in pool.values()]
        yield
        for state, before in kept:
            state[:, : self.rows + 1] = before


def interleaved(graphs: dict[str, torch.cuda.CUDAGraph], reset: Callable[[], None], turns: int = 4) -> dict[str, float]:
    """Median µs of a replay of each graph, in turns, so that the clock's drift meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(turns):
        for name, graph in graphs.items():
            reset()
            for _ in range(3):
                graph.replay()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
            events[0].record()
            for event in events[1:]:
                graph.replay()
                event.record()
            torch.cuda.synchronize()
            times[name] += [1e3 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {name: statistics.median(values) for name, values in times.items()}
