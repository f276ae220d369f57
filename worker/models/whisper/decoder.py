"""The decoder: the text's own positions in one KV pool, the encoder's output in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from denizen.kernels.attention_inputs import attention_inputs
from denizen.kernels.layer_norm import add_layer_norm
from denizen.worker.models.whisper.config import LAYER_NORM_EPS

if TYPE_CHECKING:
    from denizen.worker.attention.base import AttentionStep
    from denizen.worker.models.base import Batch
    from denizen.worker.models.whisper.config import WhisperConfig
    from denizen.worker.models.whisper.weights import DecoderLayer, Norm, Weights

SELF, CROSS = "self", "cross"


class Decoder:
    """One path for prefill and decode, CPU and GPU."""

    def __init__(self, config: WhisperConfig, weights: Weights) -> None:
        self._config = config
        self._weights = weights
        # Positions are learned, not rotated: angles of 0 make the fused kernel split and write only, bit for bit.
        half = config.head_dim // 2
        still = torch.zeros(config.target_positions, 2, half, device=weights.embedding.device)
        still[:, 0] = 1
        self._still = still

    def __call__(self, batch: Batch, sound: torch.Tensor | None) -> torch.Tensor:
        """Hidden states after the last norm, ``[T, d_model]``.

        ``sound`` ``[B * source positions, d_model]``: the encoder's output, whose keys and values go into the context
        of rows that begin; None where it is there.
        """
        weights = self._weights
        # Rows that run past their end, and padding, stand where they like: any position that there is serves them.
        positions = batch.positions.clamp(0, self._config.target_positions - 1)
        residual = weights.embedding[batch.token_ids] + weights.decoder_positions[positions]
        delta = None  # what the last layer adds to the residual: the next norm adds it
        own, cross = batch.attention[SELF], batch.attention[CROSS]
        for index, layer in enumerate(weights.decoder):
            delta = self._attend(index, layer, _norm(residual, delta, layer.attention_norm), positions, own)
            delta = self._look(index, layer, _norm(residual, delta, layer.cross_norm), sound, cross)
            delta = layer.down.summands(layer.up.gelu(_norm(residual, delta, layer.mlp_norm)))
        return _norm(residual, delta, weights.decoder_norm)

    def _attend(
        self, index: int, layer: DecoderLayer, x: torch.Tensor, positions: torch.Tensor, step: AttentionStep
    ) -> torch.Tensor:
        """Causal attention over the row's own tokens."""
        heads = self._config.decoder_heads
        cache = step.cache(index)
        query = attention_inputs(
            layer.qkv(x), heads, heads, False, None, None, 0.0, self._still, positions, step.write_at, *cache
        )
        return layer.output.summands(step.attend(index, query).view(x.shape))

    def _look(
        self, index: int, layer: DecoderLayer, x: torch.Tensor, sound: torch.Tensor | None, step: AttentionStep
    ) -> torch.Tensor:
        """Attention over the whole window."""
        shape = (-1, self._config.decoder_heads, self._config.head_dim)
        key, value = None, None
        if sound is not None:
            key, value = layer.cross_kv(sound).view(-1, 2, *shape[1:]).unbind(1)
        query = layer.cross_query(x).view(shape)
        out = step.run(index, query, key, value, self._config.head_dim**-0.5)
        return layer.cross_output.summands(out.view(x.shape))


def _norm(residual: torch.Tensor, delta: torch.Tensor | None, norm: Norm) -> torch.Tensor:
    return add_layer_norm(residual, delta, norm.weight, norm.bias, LAYER_NORM_EPS)
