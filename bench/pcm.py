"""Speech as it arrives: raw PCM or WAV, cut anywhere, and what a player would make of it."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

Coding = Literal["s16", "f32"]
_WIDTHS: dict[Coding, int] = {"s16": 2, "f32": 4}
_CODINGS: dict[tuple[int, int], Coding] = {(1, 16): "s16", (3, 32): "f32"}
_EXTENSIBLE = 0xFFFE
#: Sizes from here on, and 0, stand for "not known yet" in headers of streams.
_UNKNOWN_SIZE = 0x7FFF_0000
_LONGEST_HEADER = 1 << 16
_RATES = range(4_000, 384_001)
_MOST_CHANNELS = 8
_BLOCK = 1 << 16
"""Frames of a file that are read at once."""
_WINDOW = 0.01
"""Seconds over which loudness is measured."""


class BadAudio(Exception):
    """What arrives is no audio that could be played as it was asked for; the message says why."""


class Player:
    """Plays what has arrived from `jitter` seconds after the first part on; when it runs dry, on with the next part."""

    def __init__(self, jitter: float) -> None:
        self._jitter = jitter
        self._end: float | None = None
        self.underruns = 0
        self.stalled = 0.0

    def arrive(self, now: float, seconds: float) -> float:
        """A part of `seconds` has arrived at `now`; returns when it starts to play."""
        if self._end is None:
            start = now + self._jitter
        else:
            start = max(now, self._end)
            if now > self._end:
                self.underruns += 1
                self.stalled += now - self._end
        self._end = start + seconds
        return start


class Pcm:
    """Takes PCM in parts and counts it, until the first sound measures its loudness, too.

    `rate` in Hz is that of raw PCM (mono s16); a WAV has its own, which must equal it if it is not None.
    `floor_db`: loudness in dB of full scale over which a window of 10 ms is a sound.
    """

    def __init__(self, kind: Literal["wav", "pcm"], rate: int | None, floor_db: float, *, keep: bool = False) -> None:
        self._kind = kind
        self._floor = 10 ** (floor_db / 20)
        self.rate = rate or 0
        self._channels = 1
        self._coding: Coding = "s16"
        self._left: int | None = None
        """Bytes of samples that the header still promises; None if it does not say."""
        self._head = kind == "wav"
        self._rest = b""
        self._quiet: Samples | None = None
        """What of the last samples is not a whole window yet."""
        self._measured = 0
        self._kept: list[Samples] | None = [] if keep else None
        self.frames = 0
        self.sound: int | None = None
        """The frame at which the first window over the floor starts."""

    @property
    def seconds(self) -> float:
        return self.frames / self.rate if self.rate else 0.0

    def feed(self, data: bytes) -> int:
        """Takes the next part; returns how many frames it completed. Raises BadAudio."""
        data = self._rest + data
        self._rest = b""
        if self._head:
            found = read_header(data)
            if found is None:
                self._rest = data
                return 0
            start, rate, self._channels, self._coding, self._left = found
            if self.rate and rate != self.rate:
                raise BadAudio(f"the WAV header says {rate} Hz instead of {self.rate}")
            self.rate, self._head = rate, False
            data = data[start:]
        elif self._kind == "pcm" and not self.frames and data[:4] == b"RIFF":
            raise BadAudio("a WAV file where raw PCM was asked for")
        if self._left is not None:
            data = data[: self._left]  # what follows the samples are other chunks of the file
        size = _WIDTHS[self._coding] * self._channels
        whole = len(data) - len(data) % size
        if self._left is not None:
            self._left -= whole
        self._rest = data[whole:]
        if not whole:
            return 0
        if self.sound is None or self._kept is not None:
            self.add(decode(data[:whole], self._coding, self._channels))
        else:
            self.frames += whole // size
        return whole // size

    def add(self, samples: Samples) -> None:
        """Takes decoded mono samples in −1..1."""
        self.frames += len(samples)
        if self._kept is not None:
            self._kept.append(samples)
        if self.sound is None:
            self._listen(samples)

    def end(self) -> None:
        """Nothing more comes. Raises BadAudio for what is cut off, empty or silent."""
        if self._head:
            raise BadAudio("a WAV header that is cut off" if self._rest else "an empty body")
        if self._rest:
            raise BadAudio("the last sample is cut off")
        if self._left:
            raise BadAudio(f"the WAV header promises {self._left} more bytes of samples than came")
        if not self.frames:
            raise BadAudio("a file without samples" if self._kind == "wav" else "an empty body")
        if self.sound is None and self._quiet is not None and len(self._quiet):
            self._measure(self._quiet[None, :])
        if self.sound is None:
            raise BadAudio("the audio is silent")

    def samples(self) -> Samples:
        """All of them, mono; only with `keep`."""
        import numpy as np

        assert self._kept is not None, "not kept"
        return np.concatenate(self._kept) if self._kept else np.zeros(0, np.float32)

    def _listen(self, samples: Samples) -> None:
        import numpy as np

        if self._quiet is not None and len(self._quiet):
            samples = np.concatenate([self._quiet, samples])
        size = max(1, round(_WINDOW * self.rate))
        whole = len(samples) - len(samples) % size
        if whole:
            self._measure(samples[:whole].reshape(-1, size))
        self._quiet = samples[whole:]

    def _measure(self, rows: Samples) -> None:
        """Looks for the first row that is a sound."""
        import numpy as np

        loud = np.flatnonzero(np.sqrt(np.mean(np.square(rows, dtype=np.float64), axis=1)) > self._floor)
        if len(loud):
            self.sound = self._measured + int(loud[0]) * rows.shape[1]
        self._measured += rows.size


def decode(data: bytes, coding: Coding, channels: int) -> Samples:
    """Whole frames as mono float32 in −1..1. Raises BadAudio for floats that are not finite."""
    import numpy as np

    if coding == "s16":
        samples = np.frombuffer(data, "<i2").astype(np.float32) * np.float32(1 / 32768)
    else:
        samples = np.frombuffer(data, "<f4").astype(np.float32)
        if not np.isfinite(samples).all():
            raise BadAudio("samples that are not finite")
    return samples if channels == 1 else _mono(samples.reshape(-1, channels))


def read_header(data: bytes) -> tuple[int, int, int, Coding, int | None] | None:
    """A WAV header: where the samples start, rate, channels, coding, and bytes of samples (None: it does not say).

    None if more is needed. Raises BadAudio for what is no WAV of 16-bit or float samples, or contradicts itself.
    """
    if not b"RIFF".startswith(data[:4]) or not b"WAVE".startswith(data[8:12]):
        raise BadAudio("no WAV file")
    at, form = 12, None
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"data":
            if form is None:
                raise BadAudio("a WAV file without a format")
            return at + 8, *form, (None if size == 0 or size >= _UNKNOWN_SIZE else size)
        if at + 8 + size > _LONGEST_HEADER:
            raise BadAudio("a WAV header without samples")
        if at + 8 + size > len(data):
            return None
        if name == b"fmt ":
            form = _format(data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return None


def _format(chunk: bytes) -> tuple[int, int, Coding]:
    if len(chunk) < 16:
        raise BadAudio("a WAV format that is cut off")
    tag, channels, rate, bytes_per_s, align, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        tag = struct.unpack_from("<H", chunk, 24)[0]
    coding = _CODINGS.get((tag, bits))
    if coding is None:
        raise BadAudio(f"a WAV file of {bits}-bit samples in format {tag}: only s16 and f32 can be read")
    if rate not in _RATES or not 1 <= channels <= _MOST_CHANNELS:
        raise BadAudio(f"a WAV header of {channels} channels at {rate} Hz")
    if align != channels * _WIDTHS[coding] or bytes_per_s != rate * align:
        raise BadAudio("a WAV header that contradicts itself (frame size or byte rate)")
    return rate, channels, coding


def read_file(data: bytes) -> tuple[Samples, int]:
    """A whole FLAC, MP3, Opus or Vorbis file: mono samples, rate. Raises BadAudio."""
    import numpy as np
    import soundfile  # type: ignore[import-untyped]

    class Forward(soundfile.SoundFile):  # type: ignore[misc]
        """A file that was written as a stream does not say how long it is, and must be read without seeking."""

        def seekable(self) -> bool:
            return False

    parts: list[Any] = []
    try:
        with Forward(io.BytesIO(data)) as file:
            while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
                parts.append(block)
            rate = int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise BadAudio(f"a file that cannot be read ({error})" if data else "an empty body") from error
    if not parts:
        raise BadAudio("a file without samples")
    return _mono(np.concatenate(parts)), rate


def _mono(frames: Samples) -> Samples:
    """The mean of the channels of frames [frames, channels]."""
    mean: Samples = frames.mean(axis=1, dtype=frames.dtype)
    return mean
