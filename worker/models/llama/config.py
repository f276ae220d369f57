"""What the model needs of ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from denizen.worker.models.config_reader import ConfigReader
from denizen.worker.models.rope import Rope, read_rope

if TYPE_CHECKING:
    from denizen.worker.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and switches; names as in Hugging Face's configs where they exist there."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    tied: bool
    qkv_bias: bool
    output_bias: bool  #: of the attention's output projection
    mlp_bias: bool
    qk_norm: bool
    rope: Rope

    @classmethod
    def read(cls, checkpoint: Checkpoint, architecture: str) -> LlamaConfig:
        """Raises :class:`CheckpointError` for a value that is missing, wrong or not supported."""
        config = ConfigReader(checkpoint)
        config.only("hidden_act", "silu")
        if config.flag("use_sliding_window", False):
            raise config.error("use_sliding_window", "is true, but sliding-window attention is not supported")
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        kv_heads = config.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise config.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} attention heads")
        head_dim = config.integer("head_dim", hidden // heads)
        attention_bias = config.flag("attention_bias", False)
        return cls(
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            num_layers=config.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=config.integer("max_position_embeddings"),
            rms_norm_eps=config.number("rms_norm_eps", 1e-6),
            tied=config.flag("tie_word_embeddings", False),
            qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
            output_bias=attention_bias,
            mlp_bias=config.flag("mlp_bias", False),
            qk_norm=architecture == "Qwen3ForCausalLM",
            rope=read_rope(checkpoint, config, head_dim, theta=10000.0),
        )
