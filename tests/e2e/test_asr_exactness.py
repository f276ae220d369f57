"""Transcripts of real speech with real weights, beside `transformers` with the same weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from .hearing import Reference, errors, heard, verbose
from .sounds import RATE, join, wav

if TYPE_CHECKING:
    from pathlib import Path

    from tests.models.real_whisper import Clip

    from .running import Running


@pytest.fixture(scope="module")
def tiny_reference(tiny_ears_model: Path) -> Reference:
    return Reference(tiny_ears_model)


@pytest.fixture(scope="module")
def tiny_texts(tiny_reference: Reference, clips: list[Clip]) -> list[str]:
    return [tiny_reference.text(clip.pcm) for clip in clips]


def test_tiny_is_no_worse_than_transformers(ears: Running, clips: list[Clip], tiny_texts: list[str]) -> None:
    ours = errors([(clip.text, heard(ears, clip.pcm)) for clip in clips])
    theirs = errors([(clip.text, text) for clip, text in zip(clips, tiny_texts, strict=True)])
    assert ours.words == 71
    assert theirs.rate < 0.1, "the reference itself understands"
    assert ours.rate <= theirs.rate


def test_base_is_no_worse_than_transformers_and_finds_the_language(
    base_ears: Running, base_ears_model: Path, clips: list[Clip]
) -> None:
    reference = Reference(base_ears_model, "en")
    theirs = errors([(clip.text, reference.text(clip.pcm)) for clip in clips])
    told = errors([(clip.text, heard(base_ears, clip.pcm, language="en")) for clip in clips])
    answers = [verbose(base_ears, clip.pcm) for clip in clips]
    found = errors([(clip.text, answer["text"]) for clip, answer in zip(clips, answers, strict=True)])
    assert {answer["language"] for answer in answers} == {"english"}
    assert theirs.rate < 0.05
    assert told.rate <= theirs.rate
    assert found.rate <= theirs.rate


def test_the_language_is_that_of_transformers_whatever_the_prompt(
    base_ears: Running, base_ears_model: Path, clips: list[Clip]
) -> None:
    reference = Reference(base_ears_model)
    for clip in (clips[1], clips[4]):
        (found,) = reference.model.detect_language(reference.features(clip.pcm)).tolist()
        assert reference.tokenizer.decode([found]) == "<|en|>"
        for prompt in ("", "Guten Tag, meine Damen und Herren. Wir begrüßen Sie herzlich.", "こんにちは。今日は"):
            assert verbose(base_ears, clip.pcm, prompt=prompt)["language"] == "english", prompt


def test_a_batch_of_different_lengths_hears_what_each_alone_does(ears: Running, clips: list[Clip]) -> None:
    alone = [heard(ears, clip.pcm) for clip in clips]
    with ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda clip: heard(ears, clip.pcm), [*clips, *reversed(clips)]))
    assert together == alone + alone[::-1]
    assert len(set(alone)) == len(clips)


def test_the_same_request_hears_the_same(ears: Running, clips: list[Clip]) -> None:
    assert heard(ears, clips[1].pcm) == heard(ears, clips[1].pcm)


@pytest.fixture(scope="module")
def half_minutes(clips: list[Clip]) -> dict[str, tuple[np.ndarray, str]]:
    """Speech that fills 30.00 s and 30.01 s: the last clip ends just before the end."""
    joined, order = join([clip.pcm for clip in clips], 29.0, pause=0.3)
    speech = np.trim_zeros(joined, "b")
    text = " ".join(clips[number].text for number in order)
    made = {}
    for name, frames in {"30.00": 30 * RATE, "30.01": 30 * RATE + 160}.items():
        padded = np.concatenate([np.zeros(frames - len(speech)), speech])
        made[name] = padded.astype(np.float32), text
    return made


@pytest.mark.parametrize("name", ["30.00", "30.01"])
def test_p19_half_a_minute_and_a_frame_more(
    ears: Running, half_minutes: dict[str, tuple[np.ndarray, str]], tiny_reference: Reference, name: str
) -> None:
    """One window, and one window and a frame: nothing is lost at the edge, nothing is invented in the last frame."""
    samples, text = half_minutes[name]
    answer = verbose(ears, samples)
    theirs = errors([(text, tiny_reference.text(samples[: 30 * RATE]))])
    assert errors([(text, answer["text"])]).rate <= theirs.rate + 0.01
    assert answer["duration"] == pytest.approx(float(name), abs=1e-3)
    assert heard(ears, wav(samples)) == answer["text"]
