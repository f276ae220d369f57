"""The forward pass and what the model declares: one KV pool, walks ``prefill`` and ``decode``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from denizen.kernels.norm import rms_norm
from denizen.kernels.rope import apply_rope, rope_angles
from denizen.worker.models.base import RAGGED, KvPoolSpec, StatePoolSpec, Walk
from denizen.worker.models.llama.config import LlamaConfig
from denizen.worker.models.llama.weights import Layer, Weights, load_weights
from denizen.worker.models.loader import WeightLoader
from torch.nn.functional import embedding, silu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from denizen.worker.attention.base import AttentionStep
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
        self.kv_pools = (KvPoolSpec(_KV, config.num_layers, config.num_kv_heads, config.head_dim),)
        self._weights = weights
        self._inv_freq = config.rope.inv_freq.to(weights.embedding.device)

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
        attention = batch.attention[_KV]
        x = embedding(batch.token_ids, self._weights.embedding)
        rope = rope_angles(batch.positions, self._inv_freq, self.config.rope.attention_factor, x.dtype)
        eps = self.config.rms_norm_eps
        for index, layer in enumerate(self._weights.layers):
            x = x + self._attend(index, layer, rms_norm(x, layer.input_norm, eps), rope, attention)
            gate, up = layer.gate_up(rms_norm(x, layer.post_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(silu(gate).mul_(up))
        return rms_norm(x, self._weights.norm, eps)

    def _attend(
        self,
        index: int,
        layer: Layer,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionStep,
    ) -> torch.Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = layer.qkv(x).view(len(x), heads + 2 * kv_heads, config.head_dim)
        qk, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = rms_norm(qk[:, :heads], layer.q_norm, config.rms_norm_eps)
            key = rms_norm(qk[:, heads:], layer.k_norm, config.rms_norm_eps)
            qk = torch.cat((query, key), dim=1)
        qk = apply_rope(qk, *rope)  # queries and keys turn alike, in one pass
        out = attention.run(index, qk[:, :heads], qk[:, heads:], value, config.head_dim**-0.5)
        return layer.output(out.reshape(len(x), heads * config.head_dim))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 ``[N, vocab]``."""
        return self._weights.head(hidden).float()
