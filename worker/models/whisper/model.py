"""What the model declares, and the hooks of a model that hears: see :class:`denizen.worker.models.base.SpeechModel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from denizen.kernels.transcription_rules import STATE_WORDS, transcription_rules
from denizen.worker.models.base import CONTEXT, RAGGED, KvPoolSpec, RowInput, StatePoolSpec, StateSpec, Walk
from denizen.worker.models.loader import WeightLoader
from denizen.worker.models.whisper import rules
from denizen.worker.models.whisper.align import align
from denizen.worker.models.whisper.config import WhisperConfig
from denizen.worker.models.whisper.decoder import CROSS, SELF, Decoder
from denizen.worker.models.whisper.encoder import Encoder
from denizen.worker.models.whisper.ids import Ids
from denizen.worker.models.whisper.weights import Weights, load_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from denizen.worker.models.base import Batch, RowCache, Speech
    from denizen.worker.models.checkpoint import Checkpoint, Progress

_TEXT = "text"
_PCM, _RULES = "pcm", "rules"


class WhisperModel:
    """A checkpoint of any size. Its prefill hears the window and reads the prompt; its decode writes the transcript."""

    family = "whisper"
    kind = "asr"
    resident_walks = frozenset({"decode"})
    prefill_rows = (1, 2, 4, 8, 16)

    def __init__(self, config: WhisperConfig, ids: Ids, weights: Weights) -> None:
        self.config = config
        self.ids = ids
        self.vocab_size = config.vocab_size
        self.context_length = config.target_positions
        self.max_samples = config.samples
        shape = (config.decoder_layers, config.decoder_heads, config.head_dim, config.decoder_heads)
        self.kv_pools = (KvPoolSpec(SELF, *shape), KvPoolSpec(CROSS, *shape, context=config.source_positions))
        self.state_pools = (StatePoolSpec(_TEXT, (StateSpec(_RULES, 1, (STATE_WORDS,), torch.int32),)),)
        inputs = {
            _PCM: RowInput((config.samples,), torch.float32),
            _RULES: RowInput((STATE_WORDS,), torch.int32),
        }
        self.walks: Mapping[str, Walk] = {
            "prefill": Walk("prefill", {SELF: RAGGED, CROSS: CONTEXT}, inputs=inputs),
            "decode": Walk("decode", {SELF: 1, CROSS: 0}),
        }
        self.encoder = Encoder(config, weights)
        self._decoder = Decoder(config, weights)
        self._weights = weights
        self._vocabulary = rules.vocabulary(ids, config.vocab_size, weights.embedding.device)

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
    ) -> WhisperModel:
        """Raises :class:`CheckpointError`."""
        config = WhisperConfig.read(checkpoint)
        ids = Ids.read(checkpoint, config)
        return cls(config, ids, load_weights(config, WeightLoader(checkpoint, device, dtype, progress)))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """Hidden states after the last norm, ``[T, d_model]``."""
        sound = self.encoder(batch.inputs[_PCM]) if batch.walk == "prefill" else None
        return self._decoder(batch, sound)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, vocab]`` in the model's type."""
        return self._weights.head(hidden)

    def check(self, speech: Speech) -> None:
        """Raises :class:`RequestError` for a prompt or options that cannot be a transcript's."""
        rules.check(speech, self.ids)

    def row_inputs(self, speech: Speech) -> Mapping[str, np.ndarray]:
        """The window, and where the transcript stands."""
        return {_PCM: speech.pcm, _RULES: rules.first_state(speech, self.ids)}

    @torch.inference_mode()
    def observe(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Probability fp32 ``[B]`` that nobody speaks, as the model says it at the start of the transcript."""
        start = batch.cu_seqlens[:-1] + batch.inputs[_RULES][:, rules.START_AT]
        chosen = hidden.index_select(0, start.long().clamp(max=len(hidden) - 1))
        return self.logits(chosen).float().softmax(-1)[:, self.ids.no_speech]

    @torch.inference_mode()
    def constrain(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The rules of transcription, in place."""
        state = batch.state[_TEXT][_RULES][0]
        slots = batch.state_slots[_TEXT]
        if batch.walk == "prefill":
            return transcription_rules(logits, state, slots, self._vocabulary, begins=batch.inputs[_RULES])
        return transcription_rules(logits, state, slots, self._vocabulary, tokens=batch.token_ids)

    @torch.inference_mode()
    def align(self, speech: Speech, caches: Mapping[str, RowCache]) -> list[float]:
        """Seconds at which each text token begins, and at last the end."""
        return align(self.config, self.ids, self._weights, speech, caches[CROSS])
