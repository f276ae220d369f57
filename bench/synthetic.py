"""Speech-like clips for machines without recordings: drawn from a seed, or cut from recordings that are given. And
clips of silence.

A made voice: a bank of syllables, each a pulse train of gliding pitch under three formants, or hiss; a clip strings
some four a second together, with pauses. FLAC packs it to three fifths, as it does speech; it says nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from denizen.bench.clips import Clip
from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

Format = Literal["wav", "flac"]
RATE = 16_000
_SYLLABLES, _HISSES = 96, 24
_LEVEL = 0.1
"""Root mean square of a syllable: −20 dB of full scale."""
_NOISE = 1e-4
_PAUSE = 0.06
"""Mean seconds of silence after a syllable."""
_CONCENTRATION = 3.0
_SILENCES = ("digital", "hiss", "rumble", "hum")
_FAINT = 1e-3
"""Root mean square of what is meant to be silent: −60 dB of full scale."""


@dataclass(frozen=True)
class Lengths:
    """Numbers between `low` and `high`: evenly spread, or with the given mean, most of them on its side."""

    low: float
    high: float
    mean: float | None = None

    def draw(self, rng: random.Random) -> float:
        if self.low == self.high:
            return self.low
        if self.mean is None:
            return rng.uniform(self.low, self.high)
        share = (self.mean - self.low) / (self.high - self.low)
        spread = rng.betavariate(_CONCENTRATION * share, _CONCENTRATION * (1 - share))
        return self.low + (self.high - self.low) * spread

    def draw_int(self, rng: random.Random) -> int:
        if self.mean is None:
            return rng.randint(round(self.low), round(self.high))
        return round(self.draw(rng))


def make(
    folder: Path, count: int, lengths: Lengths, kind: Format, seed: int, sources: Sequence[Path] | None = None
) -> list[Clip]:
    """Writes `count` clips to `folder`; equal arguments write equal files. `lengths` in seconds.

    With `sources`, each clip is cut from those recordings, one after the other, from a random place on. Raises
    BenchError for recordings that cannot be read.
    """
    import soundfile  # type: ignore[import-untyped]

    rng = random.Random(f"synthetic/{seed}")
    material = _joined(sources) if sources else None
    bank = [] if material is not None else _bank(seed)
    clips = []
    for number in range(count):
        size = round(lengths.draw(rng) * RATE)
        samples = _cut(material, size, rng) if material is not None else _speak(bank, size, rng)
        path = folder / f"synthetic-{number:05}.{kind}"
        soundfile.write(str(path), samples, RATE, subtype="PCM_16", format=kind.upper())
        clips.append(Clip(path.name, path, size / RATE))
    return clips


def silence(folder: Path, count: int, lengths: Lengths, kind: Format, seed: int) -> list[Clip]:
    """Writes `count` clips without speech, their reference empty, of four sorts in turn: digital silence, hiss, the
    rumble of a room, the hum of the mains. Equal arguments write equal files.

    They are as faint as in a quiet room (−60 dB of full scale), where models trained on subtitles are known to invent
    words.
    """
    import numpy as np
    import soundfile

    draws = random.Random(f"silence/{seed}")
    rng = np.random.default_rng(seed)
    clips = []
    for number in range(count):
        size = round(lengths.draw(draws) * RATE)
        sort = _SILENCES[number % len(_SILENCES)]
        if sort == "digital":
            samples = np.zeros(size)
        elif sort == "hiss":
            samples = rng.standard_normal(size)
        elif sort == "rumble":
            samples = np.cumsum(rng.standard_normal(size))
            samples -= np.linspace(samples[0], samples[-1], size)
        else:
            time = np.arange(size) / RATE
            samples = np.sin(2 * np.pi * 50 * time) + np.sin(2 * np.pi * 100 * time) / 2
        loudness = np.sqrt(np.mean(np.square(samples)))
        path = folder / f"silence-{number:05}-{sort}.{kind}"
        faint = samples * (_FAINT / loudness) if loudness > 0 else samples
        soundfile.write(str(path), faint, RATE, subtype="PCM_16", format=kind.upper())
        clips.append(Clip(path.name, path, size / RATE, ""))
    return clips


def _joined(sources: Sequence[Path]) -> Samples:
    import numpy as np
    import soundfile

    parts = []
    for source in sources:
        try:
            samples, rate = soundfile.read(str(source), dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise BenchError(f"--synthetic-from {source}: {error}") from error
        if rate != RATE:
            raise BenchError(f"--synthetic-from {source}: {rate} Hz, but {RATE} Hz is needed; resample it first")
        parts.append(samples.mean(axis=1))
    joined = np.concatenate(parts)
    if not len(joined):
        raise BenchError(f"--synthetic-from {sources[0]}: no audio in it")
    return joined


def _cut(material: Samples, size: int, rng: random.Random) -> Samples:
    import numpy as np

    start = rng.randrange(len(material))
    return np.take(material, np.arange(start, start + size), mode="wrap")


def _bank(seed: int) -> list[Samples]:
    """Syllables of 0.1 to 0.3 s."""
    import numpy as np

    rng = np.random.default_rng(seed)
    bank = []
    for number in range(_SYLLABLES):
        size = int(RATE * rng.uniform(0.1, 0.3))
        time = np.arange(size) / RATE
        if number < _HISSES:
            hiss = rng.standard_normal(size + 1)
            sound = np.diff(hiss)  # rising with frequency, as fricatives do
        else:
            start, end = rng.uniform(90, 220, 2)
            phase = 2 * np.pi * (start * time + (end - start) * time**2 / (2 * time[-1]))
            formants = rng.uniform((300, 900, 2300), (800, 2200, 3300))
            harmonics = np.arange(1, int(4000 / max(start, end)))
            pitch = (start + end) / 2 * harmonics
            gains = sum(1 / (1 + ((pitch - centre) / 90) ** 2) for centre in formants) + 0.01 / harmonics
            sound = np.sin(np.outer(harmonics, phase)).T @ gains
        sound = sound * np.sin(np.pi * np.arange(size) / size) ** 0.5
        bank.append((sound * (_LEVEL / np.sqrt(np.mean(sound**2)))).astype(np.float32))
    return bank


def _speak(bank: list[Samples], size: int, rng: random.Random) -> Samples:
    import numpy as np

    noise = np.random.default_rng(rng.getrandbits(32))
    out = (noise.standard_normal(size) * _NOISE).astype(np.float32)
    at = 0
    while at < size:
        syllable = bank[rng.randrange(len(bank))][: size - at]
        out[at : at + len(syllable)] += syllable
        at += len(syllable) + int(RATE * rng.expovariate(1 / _PAUSE))
    return np.clip(out, -1, 1)
