"""The weight map: checkpoint names to fused, packed layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.worker.models.linear import Linear

if TYPE_CHECKING:
    from denizen.worker.models.llama.config import LlamaConfig
    from denizen.worker.models.loader import WeightLoader


@dataclass
class Layer:
    """One decoder layer. Norm weights are fp32, ``[hidden]`` or ``[head_dim]``."""

    input_norm: torch.Tensor
    qkv: Linear  #: rows: query heads, key heads, value heads
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    post_norm: torch.Tensor
    gate_up: Linear  #: rows: gate, up
    down: Linear


@dataclass
class Weights:
    embedding: torch.Tensor  #: ``[vocab, hidden]``
    layers: list[Layer]
    norm: torch.Tensor
    head: Linear


def load_weights(config: LlamaConfig, loader: WeightLoader) -> Weights:
    """Reads everything. Raises :class:`CheckpointError` for a tensor that is missing or of another shape."""
    shape = (config.vocab_size, config.hidden_size)
    embedding = loader.tensor("model.embed_tokens.weight", shape)
    layers = [_load_layer(config, loader, f"model.layers.{index}.") for index in range(config.num_layers)]
    norm = loader.tensor("model.norm.weight", (config.hidden_size,), torch.float32)
    if config.tied:
        loader.skip(["lm_head.weight"])
        head = Linear(embedding)
    else:
        head = Linear(loader.tensor("lm_head.weight", shape))
    loader.finish()
    return Weights(embedding, layers, norm, head)


def _load_layer(config: LlamaConfig, loader: WeightLoader, prefix: str) -> Layer:
    hidden, inter, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def linear(names: tuple[str, ...], rows: tuple[int, ...], columns: int, bias: bool) -> Linear:
        weight = loader.fused([f"{prefix}{name}.weight" for name in names], [(size, columns) for size in rows])
        if not bias:
            return Linear(weight)
        return Linear(weight, loader.fused([f"{prefix}{name}.bias" for name in names], [(size,) for size in rows]))

    def norm(name: str, size: int) -> torch.Tensor:
        return loader.tensor(f"{prefix}{name}.weight", (size,), torch.float32)

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return Layer(
        input_norm=norm("input_layernorm", hidden),
        qkv=linear(qkv, (query, kv, kv), hidden, config.qkv_bias),
        q_norm=norm("self_attn.q_norm", head_dim) if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm", head_dim) if config.qk_norm else None,
        output=linear(("self_attn.o_proj",), (hidden,), query, config.output_bias),
        post_norm=norm("post_attention_layernorm", hidden),
        gate_up=linear(("mlp.gate_proj", "mlp.up_proj"), (inter, inter), hidden, config.mlp_bias),
        down=linear(("mlp.down_proj",), (hidden,), inter, config.mlp_bias),
    )
