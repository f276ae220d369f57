"""The forward pass and what the model declares: a KV pool, a recurrent-state pool, walks ``prefill`` and ``decode``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from denizen.kernels.conv import causal_conv_prefill, causal_conv_step
from denizen.kernels.gated_delta import gated_delta_prefill, gated_delta_step
from denizen.kernels.norm import gated_rms_norm, rms_norm
from denizen.kernels.rope import apply_rope, rope_angles
from denizen.worker.models.base import RAGGED, KvPoolSpec, StatePoolSpec, StateSpec, Walk
from denizen.worker.models.loader import WeightLoader
from denizen.worker.models.qwen3_5.config import Qwen35Config
from denizen.worker.models.qwen3_5.weights import IGNORED, Attention, DeltaNet, Weights, load_weights
from torch.nn.functional import embedding, silu, softplus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from denizen.worker.models.base import Batch
    from denizen.worker.models.checkpoint import Checkpoint, Progress

_KV, _STATE = "kv", "delta"
_CONV, _RECURRENT = "conv", "recurrent"


class Qwen35Model:
    """See :class:`denizen.worker.models.base.Model`."""

    family = "qwen3_5"
    kind = "text"
    walks: Mapping[str, Walk] = {"prefill": Walk("prefill", {_KV: RAGGED}), "decode": Walk("decode", {_KV: 1})}
    resident_walks = frozenset({"decode"})

    def __init__(self, config: Qwen35Config, weights: Weights) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        full = sum(config.full_attention)
        linear = len(config.full_attention) - full
        self.kv_pools = (KvPoolSpec(_KV, full, config.num_kv_heads, config.head_dim),)
        heads = (config.value_heads, config.key_head_dim, config.value_head_dim)
        conv = StateSpec(_CONV, linear, (config.conv_kernel - 1, config.conv_dim))
        recurrent = StateSpec(_RECURRENT, linear, heads, torch.float32)
        self.state_pools = (StatePoolSpec(_STATE, (conv, recurrent)),)
        self._weights = weights
        self._inv_freq = config.rope.inv_freq.to(weights.embedding.device)

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
    ) -> Qwen35Model:
        """Raises :class:`CheckpointError`."""
        config = Qwen35Config.read(checkpoint)
        wrapped = any(name.startswith("model.language_model.") for name in checkpoint.entries)
        loader = WeightLoader(checkpoint, device, dtype, progress, ignore=IGNORED)
        return cls(config, load_weights(config, loader, "model.language_model." if wrapped else "model."))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """Hidden states after the last norm, ``[T, hidden]``."""
        x = embedding(batch.token_ids, self._weights.embedding)
        rope = rope_angles(batch.positions, self._inv_freq, self.config.rope.attention_factor, x.dtype)
        eps = self.config.rms_norm_eps
        full = linear = 0  # layers of either kind so far: their places in the pools
        for layer in self._weights.layers:
            normed = rms_norm(x, layer.input_norm, eps)
            if isinstance(layer.mixer, Attention):
                x = x + self._attend(full, layer.mixer, normed, rope, batch)
                full += 1
            else:
                x = x + self._delta_net(linear, layer.mixer, normed, batch)
                linear += 1
            gate, up = layer.gate_up(rms_norm(x, layer.post_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(silu(gate).mul_(up))
        return rms_norm(x, self._weights.norm, eps)

    def _attend(
        self, index: int, layer: Attention, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], batch: Batch
    ) -> torch.Tensor:
        """Full attention whose output each query head gates by a sigmoid of its own."""
        config = self.config
        heads, kv_heads, dim, eps = config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps
        mixed = layer.query_gate_kv(x)
        query_gate = mixed[:, : 2 * heads * dim].view(len(x), heads, 2 * dim)
        key_value = mixed[:, 2 * heads * dim :].view(len(x), 2 * kv_heads, dim)
        query = apply_rope(rms_norm(query_gate[..., :dim], layer.q_norm, eps), *rope)
        key = apply_rope(rms_norm(key_value[:, :kv_heads], layer.k_norm, eps), *rope)
        out = batch.attention[_KV].run(index, query, key, key_value[:, kv_heads:], dim**-0.5)
        out = out * torch.sigmoid(query_gate[..., dim:])
        return layer.output(out.reshape(len(x), heads * dim))

    def _delta_net(self, index: int, layer: DeltaNet, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        config = self.config
        mixed = layer.inputs(x)
        heads = config.value_heads
        channels, z, b, a = torch.split(mixed, [config.conv_dim, config.value_dim, heads, heads], dim=-1)
        conv = batch.state[_STATE][_CONV][index]
        recurrent = batch.state[_STATE][_RECURRENT][index]
        slots = batch.state_slots[_STATE]
        decode = batch.walk == "decode"
        if decode:
            channels = causal_conv_step(channels, layer.conv, conv, slots, batch.fresh)
        else:
            channels = causal_conv_prefill(channels, layer.conv, batch.cu_seqlens, conv, slots, batch.fresh)
        query, key, value = torch.split(channels, [config.key_dim, config.key_dim, config.value_dim], dim=-1)
        query = query.reshape(len(x), config.key_heads, config.key_head_dim)
        key = key.reshape(len(x), config.key_heads, config.key_head_dim)
        value = value.reshape(len(x), heads, config.value_head_dim)
        g = layer.decay * softplus(a.float() + layer.dt_bias)
        beta = b.float().sigmoid()
        if decode:
            out = gated_delta_step(query, key, value, g, beta, recurrent, slots, batch.fresh)
        else:
            out = gated_delta_prefill(
                query, key, value, g, beta, batch.cu_seqlens, batch.max_seqlen, recurrent, slots, batch.fresh
            )
        z = z.reshape(len(x), heads, config.value_head_dim)
        out = gated_rms_norm(out, z, layer.norm, config.rms_norm_eps)
        return layer.output(out.reshape(len(x), config.value_dim))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 ``[N, vocab]``."""
        return self._weights.head(hidden).float()
