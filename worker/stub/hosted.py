"""A model that the stub pretends to host: its kind and sizes, from the checkpoint's files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from denizen.worker.speech import speech_of
from denizen.worker.stub import speech
from denizen.worker.stub.tone import Tone, tone

if TYPE_CHECKING:
    from denizen.worker.models.base import Model, Speech
    from denizen.worker.protocol import Submit
    from denizen.worker.stub.options import Speech as SpeechOptions


@dataclass(frozen=True)
class Hosted:
    """What requests are checked against, as they are against a real model."""

    kind: str
    context_length: int
    vocab_size: int
    ids: speech.Ids | None = None  #: of one that hears
    says: SpeechOptions | None = None  #: of one that speaks
    max_samples: int = speech.WINDOW

    @classmethod
    def read(cls, path: str, max_context: int | None, says: SpeechOptions | None) -> Hosted:
        """From ``config.json``, and of a model that hears ``generation_config.json``. ``says``: it speaks,
        if it does not hear."""
        folder = Path(path)
        config = json.loads((folder / "config.json").read_text())
        hears = "WhisperForConditionalGeneration" in config.get("architectures", ())
        config = config.get("text_config", config)
        context = int(
            config.get("max_target_positions" if hears else "max_position_embeddings", 448 if hears else 4096)
        )
        context = min(context, max_context or context)
        ids = speech.Ids.read(folder) if hears else None
        kind = "asr" if hears else "tts" if says else "text"
        return cls(kind, context, int(config.get("vocab_size", 32000)), ids, None if hears else says)

    @property
    def family(self) -> str:
        return "whisper" if self.ids else "stub"

    def check(self, heard: Speech) -> None:
        assert self.ids is not None
        speech.check(heard, self.ids)

    def speech(self, submit: Submit, attachment: bytes | None) -> Speech | None:
        """Raises :class:`RequestError`."""
        return speech_of(cast("Model", self), np.asarray(submit.ids, np.int32), submit, attachment, [])

    def tone(self, submit: Submit, attachment: bytes | None) -> Tone | None:
        """What is to be said; None of a model that does not speak. Raises :class:`RequestError`."""
        return None if self.says is None else tone(submit, attachment, self.says)

    def transcript(self, heard: Speech, unfinished: bool) -> list[int]:
        assert self.ids is not None
        return speech.transcript(heard, self.ids, unfinished)
