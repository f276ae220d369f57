"""Requests to models that hear: what SUBMIT and its attachment must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.asr import AsrOptions
from denizen.worker.errors import RequestError
from denizen.worker.models.base import Speech, hears

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.models.base import Model
    from denizen.worker.protocol import Submit

#: Hz of the audio.
SAMPLE_RATE = 16_000
#: Most ids that ``asr.forced`` may have.
MAX_FORCED = 8
#: What a prompt may have beside half of the context: the ids that begin a transcript.
_HEAD = 4
#: Samples are meant to lie within -1..1. Far beyond, the squares in a spectrum overflow.
_LOUDEST = 65_536.0


def speech_of(
    model: Model, prompt: np.ndarray, body: Submit, attachment: bytes | None, outputs: Sequence[int]
) -> Speech | None:
    """What the model is told of the request; None for a model of text.

    ``outputs``: the request's list of tokens, which grows. Raises :class:`RequestError` for audio or options that the
    model does not take.
    """
    if body.tts is not None:
        raise RequestError("tts is for models that speak; this one does not", param="tts")
    if not hears(model):
        if attachment is not None:
            raise RequestError("this model reads text and takes no audio; use a speech recognition model", param="file")
        if body.asr is not None:
            raise RequestError("asr is for speech recognition models; this one reads text", param="asr")
        return None
    pcm = _pcm(attachment, model.max_samples)
    longest = model.context_length // 2 + _HEAD
    if len(prompt) > longest:
        raise RequestError(
            f"the decoder's prompt has {len(prompt)} ids; at most {longest} fit",
            param="ids",
            code="context_length_exceeded",
        )
    for name, neutral in _TEXT_ONLY.items():
        if getattr(body, name) != neutral:
            raise RequestError(f"{name} is not there for speech recognition; leave it out", param=name)
    options = body.asr or AsrOptions()
    _check(options, model.vocab_size)
    speech = Speech(prompt, outputs, options, pcm)
    model.check(speech)
    return speech


_TEXT_ONLY = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "prompt_logprobs": None,
}


def _pcm(attachment: bytes | None, most: int) -> np.ndarray:
    if not attachment:
        raise RequestError("there is no audio; attach its samples, f32 little endian at 16 kHz", param="file")
    if len(attachment) % 4:
        raise RequestError(f"{len(attachment)} bytes are no f32 samples; attach 4 bytes a sample", param="file")
    count = len(attachment) // 4
    if count > most:
        seconds = most / SAMPLE_RATE
        raise RequestError(
            f"{count} samples of audio; at most {most} fit a window ({seconds:g} s at 16 kHz): cut it", param="file"
        )
    pcm = np.frombuffer(attachment, "<f4").astype(np.float32, copy=False)
    # One pass: comparisons with NaN are false.
    if not (np.abs(pcm) <= _LOUDEST).all():
        raise RequestError(
            "the audio has samples that are not finite or beyond 65,536; scale it to -1..1", param="file"
        )
    return pcm


def _check(options: AsrOptions, vocab: int) -> None:
    if options.forced and not options.detect:
        raise RequestError("asr.forced needs asr.detect; put the ids into the prompt instead", param="asr")
    if len(options.forced) > MAX_FORCED:
        raise RequestError(f"asr.forced has {len(options.forced)} ids; at most {MAX_FORCED} fit", param="asr")
    if any(token >= vocab for token in options.forced):
        raise RequestError(f"ids in asr.forced must be below {vocab}", param="asr")
