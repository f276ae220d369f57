"""P18: where nobody speaks there is no text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from denizen.bench.quality import normalize

from .hearing import events, heard, post, verbose
from .sounds import noise, silence, wav

if TYPE_CHECKING:
    from tests.models.real_whisper import Clip

    from .running import Running

QUIET = {
    "10 s of zeros": silence(10),
    "10 s of noise at -60 dBFS": noise(10, -60),
    "30 s of noise at -60 dBFS": noise(30, -60, seed=1),
    "a blink of zeros": silence(0.05),
    "95 s of zeros": silence(95),
    "a constant": np.full(160_000, 0.25),
}


@pytest.mark.parametrize("name", QUIET)
def test_p18_nothing_is_heard(ears: Running, name: str) -> None:
    answer = verbose(ears, QUIET[name], "word", "segment")
    assert (answer["text"], answer["segments"], answer["words"]) == ("", [], [])


def test_p18_nothing_is_heard_in_any_format(ears: Running) -> None:
    file = wav(QUIET["10 s of noise at -60 dBFS"])
    assert post(ears, file, response_format="text").text == "\n"
    assert post(ears, file, response_format="srt").text.strip() == ""
    assert post(ears, file, response_format="vtt").text.strip() == "WEBVTT"
    seen = list(events(ears, file))
    assert [event["type"] for event in seen] == ["transcript.text.done"]
    assert seen[0]["text"] == ""


def test_p18_a_model_of_many_languages_hears_nothing_either(base_ears: Running) -> None:
    for name in ("10 s of zeros", "10 s of noise at -60 dBFS"):
        assert heard(base_ears, QUIET[name]) == ""


def test_speech_between_silences_is_heard_once_and_at_its_time(ears: Running, clips: list[Clip]) -> None:
    """A guard that is too strict would lose it."""
    samples = np.concatenate([silence(12), clips[1].pcm, silence(12)])
    answer = verbose(ears, samples, "word")
    text = normalize(answer["text"], "en")
    assert text.startswith("he was not")
    assert text.count("young man") == 1
    # Of words, since Whisper's rules let a window's first segment begin at 1 s at the latest.
    assert answer["words"][0]["start"] > 11
    assert answer["words"][-1]["end"] < 12 + 3 + 1


def test_quiet_speech_is_heard(ears: Running, clips: list[Clip]) -> None:
    """The same voice 20 dB lower is no silence."""
    assert normalize(heard(ears, clips[1].pcm * 0.1), "en").startswith("he was not")


def test_speech_in_noise_is_heard(ears: Running, clips: list[Clip]) -> None:
    samples = clips[1].pcm + noise(len(clips[1].pcm) / 16_000, -50)[: len(clips[1].pcm)]
    assert normalize(heard(ears, samples), "en").startswith("he was not")
