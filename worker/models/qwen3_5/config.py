"""What the model needs of ``config.json``, or of its ``text_config``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from denizen.worker.models.config_reader import ConfigReader
from denizen.worker.models.rope import Rope, read_rope

if TYPE_CHECKING:
    from denizen.worker.models.checkpoint import Checkpoint

_LINEAR, _FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Qwen35Config:
    """Sizes; names as in Hugging Face's config where they exist there."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    tied: bool
    attention_bias: bool
    full_attention: tuple[bool, ...]  #: by layer; False = gated delta net
    key_heads: int  #: of the delta net
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    rope: Rope

    @property
    def key_dim(self) -> int:
        """All key heads of the delta net."""
        return self.key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the delta net's convolution: query, key, value."""
        return 2 * self.key_dim + self.value_dim

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> Qwen35Config:
        """Raises :class:`CheckpointError` for a value that is missing, wrong or not supported."""
        outer = ConfigReader(checkpoint)
        config = ConfigReader(checkpoint, outer.section("text_config")) if "text_config" in outer.values else outer
        config.only("hidden_act", "silu")
        config.only("attn_output_gate", True)
        config.only("mamba_ssm_dtype", "float32")
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        kv_heads = config.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise config.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} attention heads")
        key_heads, value_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
        if value_heads % key_heads:
            raise config.error(
                "linear_num_value_heads", f"is {value_heads}, which is no multiple of {key_heads} key heads"
            )
        head_dim = config.integer("head_dim", hidden // heads)
        return cls(
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=config.integer("max_position_embeddings"),
            rms_norm_eps=config.number("rms_norm_eps", 1e-6),
            tied=config.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", False)),
            attention_bias=config.flag("attention_bias", False),
            full_attention=_layers(config),
            key_heads=key_heads,
            value_heads=value_heads,
            key_head_dim=config.integer("linear_key_head_dim"),
            value_head_dim=config.integer("linear_value_head_dim"),
            conv_kernel=config.integer("linear_conv_kernel_dim"),
            # Text positions are equal in all three sections of the multimodal rotary embedding: it is a plain one.
            rope=read_rope(checkpoint, config, head_dim, theta=10_000_000.0, partial=0.25),
        )


def _layers(config: ConfigReader) -> tuple[bool, ...]:
    count = config.integer("num_hidden_layers")
    kinds = config.values.get("layer_types")
    if kinds is None:
        interval = config.integer("full_attention_interval", 4)
        return tuple((index + 1) % interval == 0 for index in range(count))
    if not isinstance(kinds, list) or len(kinds) != count or not set(kinds) <= {_LINEAR, _FULL}:
        raise config.error("layer_types", f"must list '{_LINEAR}' or '{_FULL}' for each of {count} layers")
    return tuple(kind == _FULL for kind in kinds)
