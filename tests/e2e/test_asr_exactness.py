"""Transcripts of real speech with real weights, beside `transformers` with the same weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from denizen.bench.quality import normalize

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


def test_a_batch_of_different_lengths_hears_what_each_alone_does(ears: Running, clips: list[Clip]) -> None:
    alone = [heard(ears, clip.pcm) for clip in clips]
    with ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda clip: heard(ears, clip.pcm), [*clips, *reversed(clips)]))
    assert together == alone + alone[::-1]
    assert len(set(alone)) == len(clips)


def test_the_same_request_hears_the_same(ears: Running, clips: list[Clip]) -> None:
    assert heard(ears, clips[1].pcm) == heard(ears, clips[1].pcm)
