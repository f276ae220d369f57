"""From PCM to what the decoder attends to: spectrogram, two convolutions, transformer layers without a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.kernels.layer_norm import add_layer_norm
from denizen.worker.models.whisper.config import LAYER_NORM_EPS
from denizen.worker.models.whisper.mel import LogMel
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    import torch
    from denizen.worker.models.whisper.config import WhisperConfig
    from denizen.worker.models.whisper.weights import Layer, Weights


class Encoder:
    """Computes whole windows, any number at once, each as if it were alone. May be captured: shapes are its input's."""

    def __init__(self, config: WhisperConfig, weights: Weights) -> None:
        self._config = config
        self._weights = weights
        self.mel = LogMel(config.num_mel_bins, weights.embedding.device)

    def __call__(self, pcm: torch.Tensor) -> torch.Tensor:
        """fp32 ``[B, samples]``, windows padded with zeros → ``[B * source positions, d_model]``."""
        weights = self._weights
        sound = self.mel(pcm).transpose(1, 2).to(weights.embedding.dtype)
        sound = weights.conv2(weights.conv1(sound, 1), 2)
        residual = (sound + weights.encoder_positions).reshape(-1, self._config.d_model)
        delta = None  # what the last layer adds to the residual: the next norm adds it
        for layer in weights.encoder:
            norm = layer.attention_norm
            delta = self._attend(layer, add_layer_norm(residual, delta, norm.weight, norm.bias, LAYER_NORM_EPS))
            norm = layer.mlp_norm
            normed = add_layer_norm(residual, delta, norm.weight, norm.bias, LAYER_NORM_EPS)
            delta = layer.down(layer.up.gelu(normed))
        norm = weights.encoder_norm
        return add_layer_norm(residual, delta, norm.weight, norm.bias, LAYER_NORM_EPS)

    def _attend(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        heads, positions = self._config.encoder_heads, self._config.source_positions
        query, key, value = layer.qkv(x).view(-1, positions, 3, heads, x.shape[1] // heads).unbind(2)
        out = scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return layer.output(out.transpose(1, 2).reshape(x.shape))
