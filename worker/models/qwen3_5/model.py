"""The forward pass and what the model declares: a KV pool, a recurrent-state pool, walks ``prefill`` and ``decode``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from denizen.kernels.attention_inputs import attention_inputs, rope_table
from denizen.kernels.conv import causal_conv_prefill
from denizen.kernels.gate import sigmoid_gate
from denizen.kernels.gated_delta import gated_delta_prefill
from denizen.kernels.gated_delta_decode import gated_delta_decode
from denizen.kernels.gated_delta_gates import gated_delta_gates
from denizen.kernels.norm import add_rms_norm, gated_rms_norm
from denizen.worker.models.base import RAGGED, KvPoolSpec, StatePoolSpec, StateSpec, Walk
from denizen.worker.models.loader import WeightLoader
from denizen.worker.models.qwen3_5.config import Qwen35Config
from denizen.worker.models.qwen3_5.weights import IGNORED, Attention, DeltaNet, Weights, load_weights

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
        self.kv_pools = (KvPoolSpec(_KV, full, config.num_kv_heads, config.head_dim, config.num_heads),)
        heads = (config.value_heads, config.key_head_dim, config.value_head_dim)
        conv = StateSpec(_CONV, linear, (config.conv_kernel - 1, config.conv_dim))
        recurrent = StateSpec(_RECURRENT, linear, heads, torch.float32)
        self.state_pools = (StatePoolSpec(_STATE, (conv, recurrent)),)
        self._weights = weights
        inv_freq = config.rope.inv_freq.to(weights.embedding.device)
        self._rope = rope_table(inv_freq, config.rope.attention_factor, config.context_length)

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
        residual = self._weights.embedding[batch.token_ids]
        delta = None  # what the last layer adds to the residual: the next norm adds it
        eps = self.config.rms_norm_eps
        full = linear = 0  # layers of either kind so far: their places in the pools
        for layer in self._weights.layers:
            normed = add_rms_norm(residual, delta, layer.input_norm, eps)
            if isinstance(layer.mixer, Attention):
                delta = self._attend(full, layer.mixer, normed, batch)
                full += 1
            else:
                delta = self._delta_net(linear, layer.mixer, normed, batch)
                linear += 1
            normed = add_rms_norm(residual, delta, layer.post_norm, eps)
            delta = layer.down.summands(layer.gate_up.silu_mul(normed))
        return add_rms_norm(residual, delta, self._weights.norm, eps)

    def _attend(self, index: int, layer: Attention, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Full attention whose output each query head gates by a sigmoid of its own."""
        config, step = self.config, batch.attention[_KV]
        heads, dim = config.num_heads, config.head_dim
        mixed = layer.query_gate_kv(x)
        query = attention_inputs(
            mixed,
            heads,
            config.num_kv_heads,
            True,
            layer.q_norm,
            layer.k_norm,
            config.rms_norm_eps,
            self._rope,
            batch.positions,
            step.write_at,
            *step.cache(index),
        )
        gate = mixed[:, : 2 * heads * dim].view(len(x), heads, 2 * dim)[..., dim:]
        return layer.output.summands(sigmoid_gate(step.attend(index, query), gate).view(len(x), heads * dim))

    def _delta_net(self, index: int, layer: DeltaNet, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        config = self.config
        mixed = layer.inputs(x)
        heads = config.value_heads
        channels, z, b, a = torch.split(mixed, [config.conv_dim, config.value_dim, heads, heads], dim=-1)
        conv = batch.state[_STATE][_CONV][index]
        recurrent = batch.state[_STATE][_RECURRENT][index]
        slots = batch.state_slots[_STATE]
        eps = config.rms_norm_eps
        if batch.walk == "decode":
            gates = (layer.decay, layer.dt_bias)
            out = gated_delta_decode(channels, z, b, a, layer.conv, *gates, layer.norm, eps, conv, recurrent, slots)
            return layer.output.summands(out)
        channels = causal_conv_prefill(channels, layer.conv, batch.cu_seqlens, conv, slots, batch.fresh)
        query, key, value = torch.split(channels, [config.key_dim, config.key_dim, config.value_dim], dim=-1)
        g, beta = gated_delta_gates(b, a, layer.decay, layer.dt_bias)
        out = gated_delta_prefill(
            query.view(len(x), config.key_heads, config.key_head_dim),
            key.view(len(x), config.key_heads, config.key_head_dim),
            value.view(len(x), heads, config.value_head_dim),
            g,
            beta,
            batch.cu_seqlens,
            batch.max_seqlen,
            recurrent,
            slots,
            batch.fresh,
        )
        out = gated_rms_norm(out, z.view(len(x), heads, config.value_head_dim), layer.norm, eps)
        return layer.output.summands(out.view(len(x), config.value_dim))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, vocab]`` in the model's type."""
        return self._weights.head(hidden)
