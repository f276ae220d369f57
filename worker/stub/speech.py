"""What the stub hears: a transcript that is a function of the audio, the prompt and the options of a window.

The text has a letter for every half second of audio that was begun, chosen by a hash of the audio and the prompt: ids
32 to 57, which are A to Z in GPT-2's vocabulary and in one of sorted bytes. Windows longer than ten seconds have two
segments. Silence has no text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.errors import RequestError
from denizen.worker.protocol import AsrResult
from denizen.worker.speech import SAMPLE_RATE

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.worker.models.base import Speech

#: Samples of the longest window.
WINDOW = 30 * SAMPLE_RATE
#: Ids of text.
LETTERS = range(32, 58)
_STEP = 0.02  #: seconds from one timestamp id to the next
_TWO_SEGMENTS_S = 10.0
_QUIET = 1e-4


@dataclass(frozen=True)
class Ids:
    """Of a checkpoint's ``generation_config.json``."""

    end: int
    no_timestamps: int
    languages: tuple[int, ...]

    @classmethod
    def read(cls, folder: Path) -> Ids:
        values = json.loads((folder / "generation_config.json").read_text())
        end = values["eos_token_id"]
        languages = tuple(sorted(values.get("lang_to_id", {}).values()))
        return cls(end[0] if isinstance(end, list) else end, values["no_timestamps_token_id"], languages)


def check(speech: Speech, ids: Ids) -> None:
    """Raises :class:`RequestError` for what a real model could not do either."""
    if speech.options.detect and not ids.languages:
        raise RequestError("asr.detect: this model knows one language only", param="asr")


def language(pcm: np.ndarray, ids: Ids) -> int:
    """The language of the audio: a function of its bytes."""
    return ids.languages[zlib.crc32(pcm.tobytes()) % len(ids.languages)]


def text(prompt: np.ndarray, pcm: np.ndarray) -> list[int]:
    """Ids of the text; none of silence."""
    if float(np.abs(pcm).max()) < _QUIET:
        return []
    digest = hashlib.sha256(pcm.tobytes() + prompt.astype("<u4").tobytes()).digest()
    count = -(-2 * len(pcm) // SAMPLE_RATE)
    return [LETTERS[byte % len(LETTERS)] for byte in itertools.islice(itertools.cycle(digest), count)]


def transcript(speech: Speech, ids: Ids, unfinished: bool) -> list[int]:
    """The output tokens, the end of text included. ``unfinished``: a full window ends within its last segment."""
    options, seconds = speech.options, len(speech.pcm) / SAMPLE_RATE
    given = [language(speech.pcm, ids), *options.forced] if options.detect else []
    said = text(speech.prompt, speech.pcm)
    if not said or not options.timestamps:
        return [*given, *said, ids.end]

    def at(time: float) -> int:
        return ids.no_timestamps + 1 + round(time / _STEP)

    halves = [said]
    if seconds > _TWO_SEGMENTS_S:
        halves = [said[: len(said) // 2], said[len(said) // 2 :]]
    tokens = list(given)
    for index, half in enumerate(halves):
        tokens += [at(seconds * index / len(halves)), *half, at(seconds * (index + 1) / len(halves))]
    if unfinished and len(speech.pcm) == WINDOW:
        tokens.pop()
    return [*tokens, ids.end]


def result(speech: Speech, texts: int, temperature: float, doubt: float) -> AsrResult:
    """What DONE says of a window with ``texts`` text tokens; ``doubt``: the temperature below which it is unsure."""
    times = None
    if speech.options.words:
        seconds = len(speech.pcm) / SAMPLE_RATE
        times = [seconds * index / texts for index in range(texts + 1)] if texts else []
    return AsrResult(0.01 if texts else 0.9, -2.0 if temperature < doubt else -0.25, times)
