"""Clips drawn from a seed."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile
from denizen.bench import synthetic
from denizen.bench.errors import BenchError
from denizen.bench.synthetic import RATE, Lengths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("low", "high", "mean"), [(2.0, 20.0, 7.4), (12.0, 60.0, 27.0)])
def test_lengths_have_their_bounds_and_their_mean(low: float, high: float, mean: float) -> None:
    rng = random.Random(0)
    drawn = [Lengths(low, high, mean).draw(rng) for _ in range(20_000)]
    assert low <= min(drawn) < low + 0.1
    assert high - 1 < max(drawn) <= high
    assert statistics.mean(drawn) == pytest.approx(mean, rel=0.02)
    whole = [Lengths(low, high, mean).draw_int(rng) for _ in range(20_000)]
    assert statistics.mean(whole) == pytest.approx(mean, rel=0.02)
    assert low <= min(whole) <= max(whole) <= high


def test_lengths_without_a_mean_are_even() -> None:
    rng = random.Random(0)
    drawn = [Lengths(3, 7).draw_int(rng) for _ in range(5000)]
    assert {drawn.count(number) // 800 for number in range(3, 8)} == {1}
    assert Lengths(5, 5).draw(rng) == 5


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_clips_are_sound_of_the_drawn_length(tmp_path: Path, kind: synthetic.Format) -> None:
    made = synthetic.make(tmp_path, 6, Lengths(1, 3), kind, seed=1)
    assert len({clip.path for clip in made}) == 6
    for clip in made:
        samples, rate = soundfile.read(str(clip.path))
        assert rate == RATE
        assert len(samples) / RATE == pytest.approx(clip.seconds)
        assert 1 <= clip.seconds <= 3
        assert clip.text is None
        assert 0.03 < np.sqrt(np.mean(samples**2)) < 0.2
        assert np.abs(samples).max() <= 1
    info = soundfile.info(str(made[0].path))
    assert (info.format, info.subtype) == (kind.upper(), "PCM_16")


def test_equal_seeds_make_equal_files(tmp_path: Path) -> None:
    def content(name: str, seed: int) -> list[bytes]:
        (tmp_path / name).mkdir()
        return [clip.path.read_bytes() for clip in synthetic.make(tmp_path / name, 3, Lengths(1, 2), "flac", seed)]

    assert content("a", 1) == content("b", 1) != content("c", 2)


def test_clips_are_cut_from_recordings_that_are_given(tmp_path: Path) -> None:
    source = np.arange(2 * RATE, dtype=np.int16)
    soundfile.write(str(tmp_path / "source.wav"), source, RATE)
    (clip,) = synthetic.make(tmp_path, 1, Lengths(3, 3), "wav", 0, [tmp_path / "source.wav"])
    samples, _ = soundfile.read(str(clip.path), dtype="int16")
    start = int(np.argmax(source == samples[0]))
    expected = np.take(source, np.arange(start, start + 3 * RATE), mode="wrap")
    assert np.abs(samples.astype(int) - expected).max() <= 1
    soundfile.write(str(tmp_path / "wide.wav"), source, 44_100)
    with pytest.raises(BenchError, match=r"wide\.wav: 44100 Hz"):
        synthetic.make(tmp_path, 1, Lengths(3, 3), "wav", 0, [tmp_path / "wide.wav"])
    with pytest.raises(BenchError, match=r"--synthetic-from .*absent\.wav"):
        synthetic.make(tmp_path, 1, Lengths(3, 3), "wav", 0, [tmp_path / "absent.wav"])


def test_silence_is_of_four_sorts_and_faint(tmp_path: Path) -> None:
    made = synthetic.silence(tmp_path, 8, Lengths(1, 2), "wav", seed=1)
    assert [clip.name.removesuffix(".wav").split("-")[2] for clip in made] == ["digital", "hiss", "rumble", "hum"] * 2
    for number, clip in enumerate(made):
        samples, rate = soundfile.read(str(clip.path))
        assert (rate, clip.text) == (RATE, "")
        assert len(samples) / RATE == pytest.approx(clip.seconds)
        assert np.sqrt(np.mean(samples**2)) == pytest.approx(0 if number % 4 == 0 else 1e-3, rel=0.05)


def test_equal_seeds_make_equal_silence(tmp_path: Path) -> None:
    def content(name: str, seed: int) -> list[bytes]:
        (tmp_path / name).mkdir()
        return [clip.path.read_bytes() for clip in synthetic.silence(tmp_path / name, 4, Lengths(1, 2), "flac", seed)]

    assert content("a", 1) == content("b", 1) != content("c", 2)
