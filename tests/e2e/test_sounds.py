"""The makers of test recordings, against a reader that is not ours."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from .sounds import KINDS, RATE, Kind, channels, join, noise, resample, wav

TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
#: Largest error of a sample.
STEP: dict[Kind, float] = {"u8": 2**-7, "s16": 2**-15, "s24": 2**-23, "alaw": 2**-6, "mulaw": 2**-6}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_wav_file_of_every_kind(kind: Kind, count: int) -> None:
    samples, rate = soundfile.read(io.BytesIO(wav(channels(TONE, count), 22_050, kind)), always_2d=True)
    assert (rate, samples.shape) == (22_050, (RATE, count))
    for channel in range(count):
        assert np.abs(samples[:, channel] - TONE).max() <= STEP.get(kind, 1e-7)


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 96_000])
def test_resampling_keeps_a_tone(rate: int) -> None:
    found = resample(TONE, rate)
    assert len(found) == rate
    assert np.abs(found - 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).max() < 1e-9


def test_one_channel_alone() -> None:
    found = channels(TONE, 3, on=[1])
    assert not found[:, [0, 2]].any()
    assert (found[:, 1] == TONE).all()


def test_a_join_has_whole_clips_and_exact_length() -> None:
    clips = [np.full(RATE, 0.1), np.full(2 * RATE, 0.2)]
    joined, order = join(clips, 6.0)
    assert (len(joined), order) == (6 * RATE, [0, 1, 0])
    assert [float(joined[round(at * RATE)]) for at in (0.5, 1.2, 2.5, 3.7, 4.5, 5.5)] == [0.1, 0.0, 0.2, 0.0, 0.1, 0.0]


def test_noise_has_its_level() -> None:
    assert 20 * np.log10(np.sqrt(np.mean(noise(5, -60) ** 2))) == pytest.approx(-60, abs=0.2)
