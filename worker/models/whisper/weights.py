"""The weight map: checkpoint names to fused layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.worker.models.linear import Linear
from denizen.worker.models.whisper.convolution import Convolution

if TYPE_CHECKING:
    from denizen.worker.models.loader import WeightLoader
    from denizen.worker.models.whisper.config import WhisperConfig


@dataclass
class Norm:
    """Of a layer norm, fp32 ``[d_model]``."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass
class Layer:
    """An encoder layer, or the self attention and MLP of a decoder layer."""

    attention_norm: Norm
    qkv: Linear  #: rows: queries, keys (whose bias is 0), values
    output: Linear
    mlp_norm: Norm
    up: Linear
    down: Linear


@dataclass
class DecoderLayer(Layer):
    cross_norm: Norm
    cross_query: Linear
    cross_kv: Linear  #: of the encoder's output; rows: keys (whose bias is 0), values
    cross_output: Linear


@dataclass
class Weights:
    conv1: Convolution
    conv2: Convolution
    encoder_positions: torch.Tensor  #: ``[source positions, d_model]``
    encoder: list[Layer]
    encoder_norm: Norm
    embedding: torch.Tensor  #: ``[vocab, d_model]``
    decoder_positions: torch.Tensor  #: ``[target positions, d_model]``
    decoder: list[DecoderLayer]
    decoder_norm: Norm
    head: Linear  #: the embedding


def load_weights(config: WhisperConfig, loader: WeightLoader) -> Weights:
    """Reads everything. Raises :class:`CheckpointError` for a tensor that is missing or of another shape."""
    width = config.d_model
    embedding = loader.tensor("model.decoder.embed_tokens.weight", (config.vocab_size, width))
    loader.skip(["proj_out.weight"])

    def convolution(name: str, inputs: int) -> Convolution:
        weight, bias = (f"model.encoder.{name}.{part}" for part in ("weight", "bias"))
        return Convolution(loader.tensor(weight, (width, inputs, 3)), loader.tensor(bias, (width,)))

    weights = Weights(
        conv1=convolution("conv1", config.num_mel_bins),
        conv2=convolution("conv2", width),
        encoder_positions=loader.tensor("model.encoder.embed_positions.weight", (config.source_positions, width)),
        encoder=[
            _layer(loader, f"model.encoder.layers.{index}.", width, config.encoder_ffn_dim)
            for index in range(config.encoder_layers)
        ],
        encoder_norm=_norm(loader, "model.encoder.layer_norm", width),
        embedding=embedding,
        decoder_positions=loader.tensor("model.decoder.embed_positions.weight", (config.target_positions, width)),
        decoder=[
            _decoder_layer(loader, f"model.decoder.layers.{index}.", width, config.decoder_ffn_dim)
            for index in range(config.decoder_layers)
        ],
        decoder_norm=_norm(loader, "model.decoder.layer_norm", width),
        head=Linear(embedding),
    )
    loader.finish()
    return weights


def _norm(loader: WeightLoader, name: str, width: int) -> Norm:
    weight, bias = (loader.tensor(f"{name}.{part}", (width,), torch.float32) for part in ("weight", "bias"))
    return Norm(weight, bias)


def _linear(loader: WeightLoader, name: str, outputs: int, inputs: int) -> Linear:
    return Linear(loader.tensor(f"{name}.weight", (outputs, inputs)), loader.tensor(f"{name}.bias", (outputs,)))


def _fused(loader: WeightLoader, prefix: str, parts: str, width: int) -> Linear:
    """The projections whose letters are ``parts``, of which k has no bias."""
    weight = loader.fused([f"{prefix}.{part}_proj.weight" for part in parts], [(width, width)] * len(parts))
    bias = torch.zeros(len(parts) * width, dtype=weight.dtype, device=weight.device)
    for index, part in enumerate(parts):
        if part != "k":
            bias[index * width : (index + 1) * width] = loader.tensor(f"{prefix}.{part}_proj.bias", (width,))
    return Linear(weight, bias)


def _layer(loader: WeightLoader, prefix: str, width: int, inner: int) -> Layer:
    return Layer(
        attention_norm=_norm(loader, f"{prefix}self_attn_layer_norm", width),
        qkv=_fused(loader, f"{prefix}self_attn", "qkv", width),
        output=_linear(loader, f"{prefix}self_attn.out_proj", width, width),
        mlp_norm=_norm(loader, f"{prefix}final_layer_norm", width),
        up=_linear(loader, f"{prefix}fc1", inner, width),
        down=_linear(loader, f"{prefix}fc2", width, inner),
    )


def _decoder_layer(loader: WeightLoader, prefix: str, width: int, inner: int) -> DecoderLayer:
    return DecoderLayer(
        **vars(_layer(loader, prefix, width, inner)),
        cross_norm=_norm(loader, f"{prefix}encoder_attn_layer_norm", width),
        cross_query=_linear(loader, f"{prefix}encoder_attn.q_proj", width, width),
        cross_kv=_fused(loader, f"{prefix}encoder_attn", "kv", width),
        cross_output=_linear(loader, f"{prefix}encoder_attn.out_proj", width, width),
    )
