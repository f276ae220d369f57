"""What the model needs of ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from denizen.worker.models.config_reader import ConfigReader

if TYPE_CHECKING:
    from denizen.worker.models.checkpoint import Checkpoint

#: Samples from one frame of the spectrogram to the next; two frames are one position of the encoder.
HOP = 160
#: Samples of one encoder position, of which a second has 50.
SAMPLES_A_POSITION = 2 * HOP
#: Every checkpoint's norms have torch's default.
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class WhisperConfig:
    """Sizes and switches; names as in Hugging Face's configs where they exist there."""

    vocab_size: int
    d_model: int
    num_mel_bins: int
    encoder_layers: int
    encoder_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_heads: int
    decoder_ffn_dim: int
    source_positions: int  #: of the encoder's output: 1,500 = 30 s
    target_positions: int  #: of the decoder, prompt included
    median_filter_width: int

    @property
    def samples(self) -> int:
        """Of a window, at 16 kHz."""
        return self.source_positions * SAMPLES_A_POSITION

    @property
    def head_dim(self) -> int:
        """Of a decoder head."""
        return self.d_model // self.decoder_heads

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> WhisperConfig:
        """Raises :class:`CheckpointError` for a value that is missing, wrong or not supported."""
        config = ConfigReader(checkpoint)
        config.only("activation_function", "gelu")
        config.only("scale_embedding", False)
        width = config.integer("d_model")
        for side in ("encoder", "decoder"):
            if width % config.integer(f"{side}_attention_heads"):
                heads = config.integer(f"{side}_attention_heads")
                raise config.error(f"{side}_attention_heads", f"is {heads}, which does not divide d_model, {width}")
        median = config.integer("median_filter_width", 7)
        if median % 2 == 0:
            raise config.error("median_filter_width", f"must be odd, not {median}")
        return cls(
            vocab_size=config.integer("vocab_size"),
            d_model=width,
            num_mel_bins=config.integer("num_mel_bins", 80),
            encoder_layers=config.integer("encoder_layers"),
            encoder_heads=config.integer("encoder_attention_heads"),
            encoder_ffn_dim=config.integer("encoder_ffn_dim"),
            decoder_layers=config.integer("decoder_layers"),
            decoder_heads=config.integer("decoder_attention_heads"),
            decoder_ffn_dim=config.integer("decoder_ffn_dim"),
            source_positions=config.integer("max_source_positions", 1500),
            target_positions=config.integer("max_target_positions", 448),
            median_filter_width=median,
        )
