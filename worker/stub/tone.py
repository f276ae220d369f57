"""What the stub says: a tone whose pitch is a function of text and voice, a frame for each token of the text."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.errors import RequestError
from denizen.worker.tts import TtsOptions

if TYPE_CHECKING:
    from denizen.worker.protocol import Submit
    from denizen.worker.stub.options import Speech

_LOWEST = 160.0  #: hertz
_HIGHEST = 640.0
_LOUDNESS = 0.25
_SPEEDS = (0.25, 4.0)


def pitch(ids: np.ndarray, voice: int) -> float:
    """Hertz; each further voice is a fifth higher."""
    share = zlib.crc32(ids.astype("<u4").tobytes()) / 2**32
    return _LOWEST * math.exp(share * math.log(_HIGHEST / _LOWEST)) * 1.5**voice


@dataclass(frozen=True)
class Tone:
    """The audio of one request: ``frames`` of ``length`` samples each."""

    hertz: float
    rate: int
    length: int
    frames: int

    def frame(self, index: int) -> bytes:
        """The samples of a frame, f32 little endian; the frames joined are one sine without a break."""
        time = np.arange(index * self.length, (index + 1) * self.length) / self.rate
        return (_LOUDNESS * np.sin(2 * math.pi * self.hertz * time)).astype("<f4").tobytes()


def tone(submit: Submit, attachment: bytes | None, speech: Speech) -> Tone:
    """Raises :class:`RequestError` for what a real model could not do either."""
    if attachment is not None or submit.asr is not None:
        raise RequestError("this model speaks and does not hear; use a speech recognition model", param="file")
    options = submit.tts or TtsOptions(voice=speech.voices[0])
    if options.voice not in speech.voices:
        raise RequestError(f"tts.voice: '{options.voice}' is none of {', '.join(speech.voices)}", param="voice")
    if not _SPEEDS[0] <= options.speed <= _SPEEDS[1]:
        raise RequestError(f"tts.speed must be from {_SPEEDS[0]} to {_SPEEDS[1]}", param="speed")
    ids = np.asarray(submit.ids, np.uint32)
    length = max(1, round(speech.sample_rate * speech.token_ms / 1000 / options.speed))
    return Tone(pitch(ids, speech.voices.index(options.voice)), speech.sample_rate, length, len(ids))
