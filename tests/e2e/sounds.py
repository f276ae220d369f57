"""Recordings in the shapes in which they arrive: WAV files of every kind, made here, and joins of clips."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = 16_000
Kind = Literal["u8", "s16", "s24", "s32", "f32", "f64", "alaw", "mulaw"]
KINDS: tuple[Kind, ...] = ("u8", "s16", "s24", "s32", "f32", "f64", "alaw", "mulaw")
#: Format tag and bits of a sample.
_FORMATS: dict[Kind, tuple[int, int]] = {
    "u8": (1, 8),
    "s16": (1, 16),
    "s24": (1, 24),
    "s32": (1, 32),
    "f32": (3, 32),
    "f64": (3, 64),
    "alaw": (6, 8),
    "mulaw": (7, 8),
}


def wav(samples: np.ndarray, rate: int = RATE, kind: Kind = "s16") -> bytes:
    """A WAV file. `samples` in [-1, 1): `[frames]`, or `[frames, channels]`."""
    frames = samples[:, None] if samples.ndim == 1 else samples
    tag, bits = _FORMATS[kind]
    block = frames.shape[1] * bits // 8
    head = struct.pack("<HHIIHH", tag, frames.shape[1], rate, rate * block, block, bits)
    if tag != 1:  # all but PCM have the size of an extension, 0, and how many frames there are
        head += struct.pack("<H", 0)
    data = _encode(frames.reshape(-1), kind)
    chunks = [(b"fmt ", head), *([] if tag == 1 else [(b"fact", struct.pack("<I", len(frames)))]), (b"data", data)]
    body = b"WAVE"
    for name, content in chunks:
        body += name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """`[frames]` at 16 kHz to another rate, through the spectrum: exact but for the ends."""
    size = round(len(samples) * rate / RATE)
    spectrum = np.fft.rfft(samples)
    wanted = size // 2 + 1
    kept = np.zeros(wanted, dtype=complex)
    kept[: min(wanted, len(spectrum))] = spectrum[:wanted]
    return np.clip(np.fft.irfft(kept, size) * (size / len(samples)), -1, 1)


def channels(samples: np.ndarray, count: int, *, on: Sequence[int] | None = None) -> np.ndarray:
    """`[frames, count]` with the sound on all channels, or on those of `on` alone."""
    out = np.zeros((len(samples), count))
    for channel in range(count) if on is None else on:
        out[:, channel] = samples
    return out


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE))


def noise(seconds: float, dbfs: float, seed: int = 0) -> np.ndarray:
    """Gaussian, with a root mean square of `dbfs`."""
    return np.random.default_rng(seed).normal(0, 10 ** (dbfs / 20), round(seconds * RATE))


def join(clips: Sequence[np.ndarray], seconds: float, pause: float = 0.5) -> tuple[np.ndarray, list[int]]:
    """Clips one after the other, again and again, with pauses, as many as fit whole in `seconds`; silence at the end.

    Returns the samples and which clips they are, in order.
    """
    size = round(seconds * RATE)
    parts: list[np.ndarray] = []
    order: list[int] = []
    length = 0
    while length + len(clips[len(order) % len(clips)]) <= size:
        number = len(order) % len(clips)
        parts += [clips[number], silence(pause)]
        length += len(clips[number]) + len(parts[-1])
        order.append(number)
    joined = np.concatenate([*parts, np.zeros(size)])[:size]
    return joined, order


def _encode(samples: np.ndarray, kind: Kind) -> bytes:
    if kind in ("f32", "f64"):
        return samples.astype("<f4" if kind == "f32" else "<f8").tobytes()
    if kind in ("alaw", "mulaw"):
        return _companded(samples, kind)
    bits = _FORMATS[kind][1]
    scale = 1 << (bits - 1)
    values = np.clip(np.round(samples * scale), -scale, scale - 1).astype("<i8")
    if kind == "u8":
        return (values + 128).astype("u1").tobytes()
    return values.view("u1").reshape(-1, 8)[:, : bits // 8].tobytes()


def _companded(samples: np.ndarray, kind: Kind) -> bytes:
    """G.711: of all 256 codes the one whose value is nearest."""
    decode = _alaw_value if kind == "alaw" else _mulaw_value
    values = np.array([decode(code) for code in range(256)]) / 32768
    order = np.argsort(values, kind="stable")
    middles = (values[order][1:] + values[order][:-1]) / 2
    return order[np.searchsorted(middles, samples)].astype("u1").tobytes()


def _alaw_value(code: int) -> int:
    code ^= 0x55
    exponent, mantissa = code >> 4 & 7, (code & 15) << 4
    value = mantissa + 8 if exponent == 0 else mantissa + 0x108 << exponent - 1
    return value if code & 0x80 else -value


def _mulaw_value(code: int) -> int:
    code ^= 0xFF
    value = (((code & 15) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    return -value if code & 0x80 else value
