"""P19: files of many windows. Nothing is lost, nothing is doubled, times are those of the file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from denizen.bench.quality import normalize

from .hearing import Reference, errors, events, heard, post, verbose
from .sounds import RATE, join, wav

if TYPE_CHECKING:
    from pathlib import Path

    from tests.models.real_whisper import Clip

    from .running import Running

POINT = 0.01
Joined = tuple[np.ndarray, str]


def joined(clips: list[Clip], seconds: float) -> Joined:
    samples, order = join([clip.pcm for clip in clips], seconds)
    return samples.astype(np.float32), " ".join(clips[number].text for number in order)


@pytest.fixture(scope="module")
def minute_and_a_half(clips: list[Clip]) -> Joined:
    return joined(clips, 95)


@pytest.fixture(scope="module")
def in_sequence(ears: Running, minute_and_a_half: Joined) -> dict[str, Any]:
    return verbose(ears, minute_and_a_half[0], "segment", "word")


def test_p19_95_seconds_in_sequence(
    in_sequence: dict[str, Any], minute_and_a_half: Joined, tiny_ears_model: Path
) -> None:
    samples, text = minute_and_a_half
    theirs = errors([(text, Reference(tiny_ears_model).text(samples))])
    assert errors([(text, in_sequence["text"])]).rate <= theirs.rate + POINT


def test_p19_segments_cover_the_speech_and_keep_their_order(in_sequence: dict[str, Any]) -> None:
    segments = in_sequence["segments"]
    assert len({segment["seek"] for segment in segments}) >= 4, "there were several windows"
    assert [segment["id"] for segment in segments] == list(range(len(segments)))
    ends = [0.0, *(segment["end"] for segment in segments)]
    # No hole larger than a pause and a word: in the join nobody is silent for two seconds.
    assert all(segment["start"] - end < 2 for segment, end in zip(segments, ends, strict=False))
    # Words lie in the windows that they were heard in, and there are as many as the text has.
    assert len(in_sequence["words"]) >= 0.9 * len(normalize(in_sequence["text"], "en").split())


def test_p19_the_parallel_mode_is_as_good(
    ears: Running, in_sequence: dict[str, Any], minute_and_a_half: Joined
) -> None:
    samples, text = minute_and_a_half
    answer = verbose(ears, samples, chunking_strategy="auto")
    bound = errors([(text, in_sequence["text"])]).rate + POINT
    assert errors([(text, answer["text"])]).rate <= bound
    segments = answer["segments"]
    assert [segment["id"] for segment in segments] == list(range(len(segments)))
    assert segments[-1]["end"] > 85


def test_p19_a_long_stream_comes_in_pieces(
    ears: Running, in_sequence: dict[str, Any], minute_and_a_half: Joined
) -> None:
    seen = list(events(ears, wav(minute_and_a_half[0])))
    deltas = [event["delta"] for event in seen if event["type"] == "transcript.text.delta"]
    assert len(deltas) >= 4
    assert "".join(deltas) == seen[-1]["text"]
    # Not word for word: word times, which were asked for there, move where the next window begins.
    _, text = minute_and_a_half
    assert errors([(text, seen[-1]["text"])]).rate <= errors([(text, in_sequence["text"])]).rate + POINT


def test_subtitles_of_a_long_file_follow_each_other(ears: Running, clips: list[Clip]) -> None:
    samples, _ = joined(clips, 40)
    body = post(ears, wav(samples), response_format="srt").text
    numbers = [int(block.split("\n")[0]) for block in body.strip().split("\n\n")]
    assert numbers == list(range(1, len(numbers) + 1))
    times = [line for line in body.splitlines() if "-->" in line]
    assert times == sorted(times)
    assert times[-1].split(" --> ")[1] <= "00:00:40,000"


@pytest.mark.skipif(
    not os.environ.get("DENIZEN_SLOW_TESTS"), reason="minutes on two cores: set DENIZEN_SLOW_TESTS=1 to run it"
)
@pytest.mark.timeout(1800)
def test_p19_ten_minutes(ears: Running, clips: list[Clip]) -> None:
    samples, text = joined(clips, 600)
    ours = verbose(ears, samples)
    parallel = verbose(ears, samples, chunking_strategy="auto")
    # A sentence at a time is what the model can do at best.
    alone = errors([(clip.text, heard(ears, clip.pcm)) for clip in clips]).rate
    sequential = errors([(text, ours["text"])]).rate
    assert sequential <= alone + POINT
    assert errors([(text, parallel["text"])]).rate <= sequential + POINT
    assert ours["segments"][-1]["end"] > len(samples) / RATE - 10
