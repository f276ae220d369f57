"""The path through attention against transformers' own: filter, dynamic time warping, and odd inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from denizen.worker.asr import AsrOptions
from denizen.worker.models.base import RowCache, Speech
from denizen.worker.models.whisper.align import first_columns, median_filter
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from tests.models.speech import END, ENGLISH, NO_TIMESTAMPS, START, TRANSCRIBE, Pair, SpeechHarness, build_tiny, sound


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 9), (5, 1), (9, 3), (3, 9), (20, 50), (33, 300), (60, 60)], ids=lambda shape: f"{shape}"
)
def test_the_path_is_that_of_transformers(shape):
    """Random gains, gains with many ties, and gains along a diagonal as speech has them."""
    random = np.random.RandomState(shape[0])
    rows, columns = shape
    distance = np.abs(np.arange(columns)[None] / columns - np.arange(rows)[:, None] / rows)
    for gain in (random.randn(*shape), random.randint(0, 3, shape), 3 - 9 * distance + random.randn(*shape)):
        gain = gain.astype(np.float32)
        text, time = _dynamic_time_warping(-gain.astype(np.float64))
        jumps = np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)
        assert first_columns(gain).tolist() == time[jumps].tolist()


@pytest.mark.parametrize("frames", [1, 3, 4, 5, 40])
def test_the_filter_is_that_of_transformers(frames):
    x = torch.randn(3, 5, frames, generator=torch.Generator().manual_seed(frames))
    assert torch.equal(median_filter(x, 7), _median_filter(x, 7))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Pair:
    return Pair.load(build_tiny(tmp_path_factory.mktemp("whisper"), positions=60))


def aligned(tiny: Pair, samples: int, outputs: list[int]) -> list[float]:
    pcm = sound(1.2, 1)[:samples]
    harness = SpeechHarness(tiny.model)
    row = harness.admit(pcm, [START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS], AsrOptions(timestamps=False), outputs)
    harness.begin([row])
    return tiny.model.align(row.speech, harness.caches(row))


def test_times_end_with_the_audio_and_not_with_the_window(tiny):
    text = list(range(100, 120))
    for samples in (1, 320, 640, 3200, 19200):
        times = aligned(tiny, samples, [*text, END])
        assert len(times) == len(text) + 1
        assert times == sorted(times)
        assert times[-1] <= max(0.02, samples / 16000)
    assert len(set(times)) > 5


def test_a_text_without_words_has_no_times(tiny):
    assert aligned(tiny, 8000, []) == []
    assert aligned(tiny, 8000, [NO_TIMESTAMPS + 1, NO_TIMESTAMPS + 5, END]) == []


def test_moments_that_nobody_looks_at_do_no_harm(tiny):
    """Attention so sharp that most of it is 0 in fp32: 0 / 0 in the original."""
    keys = torch.zeros(3, 8, 16, 2, 32)
    keys[:, :2] = 1e4 * torch.randn(3, 2, 16, 2, 32, generator=torch.Generator().manual_seed(1))
    cache = RowCache(keys, keys, torch.arange(4), 60)
    text = list(range(200, 210))
    speech = Speech(np.array([START, ENGLISH, TRANSCRIBE], np.int32), text, AsrOptions(), sound(1.2, 1))
    times = tiny.model.align(speech, {"cross": cache})
    assert len(times) == len(text) + 1
    assert np.isfinite(times).all()
    assert times == sorted(times)
