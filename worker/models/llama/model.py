"""The forward pass and what the model declares: one KV pool, walks ``prefill`` and ``decode``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from denizen.kernels.attention_inputs import attention_inputs, rope_table
from denizen.kernels.norm import add_rms_norm
from denizen.worker.models.base import RAGGED, KvPoolSpec, StatePoolSpec, Walk
from denizen.worker.models.llama.config import LlamaConfig
from denizen.worker.models.llama.weights import Layer, Weights, load_weights
from denizen.worker.models.loader import WeightLoader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from denizen.worker.models.base import Batch
    from denizen.worker.models.checkpoint import Checkpoint, Progress

_KV = "kv"


class LlamaModel:
    """See :class:`denizen.worker.models.base.Model`."""

    family = "llama"
    kind = "text"
    walks: Mapping[str, Walk] = {"prefill": Walk("prefill", {_KV: RAGGED}), "decode": Walk("decode", {_KV: 1})}
    resident_walks = frozenset({"decode"})
    state_pools: tuple[StatePoolSpec, ...] = ()

    def __init__(self, config: LlamaConfig, weights: Weights) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self.kv_pools = (KvPoolSpec(_KV, config.num_layers, config.num_kv_heads, config.head_dim, config.num_heads),)
        self._weights = weights
        inv_freq = config.rope.inv_freq.to(weights.embedding.device)
        self._rope = rope_table(inv_freq, config.rope.attention_factor, config.context_length)

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
    ) -> LlamaModel:
        """Raises :class:`CheckpointError`."""
        architecture = checkpoint.config["architectures"][0]
        config = LlamaConfig.read(checkpoint, architecture)
        loader = WeightLoader(checkpoint, device, dtype, progress, ignore=("model.rotary_emb.",))
        return cls(config, load_weights(config, loader))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """Hidden states after the last norm, ``[T, hidden]``."""
        residual = self._weights.embedding[batch.token_ids]
        delta = None  # what the last layer adds to the residual: the next norm adds it
        eps = self.config.rms_norm_eps
        for index, layer in enumerate(self._weights.layers):
            delta = self._attend(index, layer, add_rms_norm(residual, delta, layer.input_norm, eps), batch)
            normed = add_rms_norm(residual, delta, layer.post_norm, eps)
            delta = layer.down.summands(layer.gate_up.silu_mul(normed))
        return add_rms_norm(residual, delta, self._weights.norm, eps)

    def _attend(self, index: int, layer: Layer, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        config, step = self.config, batch.attention[_KV]
        query = attention_inputs(
            layer.qkv(x),
            config.num_heads,
            config.num_kv_heads,
            False,
            layer.q_norm,
            layer.k_norm,
            config.rms_norm_eps,
            self._rope,
            batch.positions,
            step.write_at,
            *step.cache(index),
        )
        return layer.output.summands(step.attend(index, query).view(len(x), config.num_heads * config.head_dim))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, vocab]`` in the model's type."""
        return self._weights.head(hidden)
