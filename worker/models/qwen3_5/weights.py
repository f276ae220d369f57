"""The weight map: checkpoint names to fused, packed layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.worker.models.linear import Linear

if TYPE_CHECKING:
    from denizen.worker.models.loader import WeightLoader
    from denizen.worker.models.qwen3_5.config import Qwen35Config

#: Weights beside the language model: vision tower, multi-token prediction, recomputed tables.
IGNORED = ("model.visual.", "visual.", "mtp.", "model.mtp.", "model.language_model.rotary_emb.", "model.rotary_emb.")


@dataclass
class Attention:
    """Gated full attention."""

    query_gate_kv: Linear  #: rows: per query head [query, gate]; then key heads, value heads
    q_norm: torch.Tensor  #: fp32 ``[head_dim]``, 1 already added
    k_norm: torch.Tensor
    output: Linear


@dataclass
class DeltaNet:
    """Gated delta net."""

    inputs: Linear  #: rows: convolved channels (query, key, value), z, b, a
    conv: torch.Tensor  #: ``[conv_dim, kernel]``
    decay: torch.Tensor  #: fp32 ``[value_heads]``, ``-exp(A_log)``
    dt_bias: torch.Tensor  #: fp32 ``[value_heads]``
    norm: torch.Tensor  #: fp32 ``[value_head_dim]``; this one is not zero-centred
    output: Linear


@dataclass
class Layer:
    """One decoder layer; norms are fp32 and have 1 already added."""

    input_norm: torch.Tensor
    mixer: Attention | DeltaNet
    post_norm: torch.Tensor
    gate_up: Linear  #: rows: gate, up
    down: Linear


@dataclass
class Weights:
    embedding: torch.Tensor  #: ``[vocab, hidden]``
    layers: list[Layer]
    norm: torch.Tensor
    head: Linear


def load_weights(config: Qwen35Config, loader: WeightLoader, prefix: str) -> Weights:
    """Reads everything below ``prefix`` (``model.`` or ``model.language_model.``) and the head.

    Raises :class:`CheckpointError` for a tensor that is missing or of another shape.
    """
    hidden = config.hidden_size
    embedding = loader.tensor(f"{prefix}embed_tokens.weight", (config.vocab_size, hidden))
    layers = [
        _load_layer(config, loader, f"{prefix}layers.{index}.", full)
        for index, full in enumerate(config.full_attention)
    ]
    norm = _centred(loader, f"{prefix}norm.weight", hidden)
    if config.tied:
        loader.skip(["lm_head.weight"])
        head = Linear(embedding)
    else:
        head = Linear(loader.tensor("lm_head.weight", (config.vocab_size, hidden)))
    loader.finish()
    return Weights(embedding, layers, norm, head)


def _centred(loader: WeightLoader, name: str, size: int) -> torch.Tensor:
    """A zero-centred norm weight, with 1 added; fp32 whatever the model's type, or its last bits would be lost."""
    return loader.tensor(name, (size,), torch.float32) + 1.0


def _load_layer(config: Qwen35Config, loader: WeightLoader, prefix: str, full: bool) -> Layer:
    hidden, inter = config.hidden_size, config.intermediate_size
    gate_up = [f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"]
    return Layer(
        input_norm=_centred(loader, f"{prefix}input_layernorm.weight", hidden),
        mixer=_load_attention(config, loader, prefix) if full else _load_delta_net(config, loader, prefix),
        post_norm=_centred(loader, f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=Linear(loader.fused(gate_up, [(inter, hidden)] * 2)),
        down=Linear(loader.tensor(f"{prefix}mlp.down_proj.weight", (hidden, inter))),
    )


def _load_attention(config: Qwen35Config, loader: WeightLoader, prefix: str) -> Attention:
    prefix += "self_attn."
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    names, rows = [f"{prefix}{part}_proj" for part in "qkv"], [2 * query, kv, kv]
    bias = output_bias = None
    if config.attention_bias:
        bias = loader.fused([f"{name}.bias" for name in names], [(size,) for size in rows])
        output_bias = loader.tensor(f"{prefix}o_proj.bias", (config.hidden_size,))
    weight = loader.fused([f"{name}.weight" for name in names], [(size, config.hidden_size) for size in rows])
    return Attention(
        query_gate_kv=Linear(weight, bias),
        q_norm=_centred(loader, f"{prefix}q_norm.weight", config.head_dim),
        k_norm=_centred(loader, f"{prefix}k_norm.weight", config.head_dim),
        output=Linear(loader.tensor(f"{prefix}o_proj.weight", (config.hidden_size, query)), output_bias),
    )


def _load_delta_net(config: Qwen35Config, loader: WeightLoader, prefix: str) -> DeltaNet:
    prefix += "linear_attn."
    heads, hidden = config.value_heads, config.hidden_size
    inputs = {"qkv": config.conv_dim, "z": config.value_dim, "b": heads, "a": heads}
    weight = loader.fused(
        [f"{prefix}in_proj_{part}.weight" for part in inputs], [(rows, hidden) for rows in inputs.values()]
    )
    conv = loader.tensor(f"{prefix}conv1d.weight", (config.conv_dim, 1, config.conv_kernel))
    return DeltaNet(
        inputs=Linear(weight),
        conv=conv.squeeze(1),
        decay=-loader.tensor(f"{prefix}A_log", (heads,), torch.float32).exp(),
        dt_bias=loader.tensor(f"{prefix}dt_bias", (heads,), torch.float32),
        norm=loader.tensor(f"{prefix}norm.weight", (config.value_head_dim,), torch.float32),
        output=Linear(loader.tensor(f"{prefix}out_proj.weight", (hidden, config.value_dim))),
    )
