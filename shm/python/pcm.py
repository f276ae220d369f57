"""Sound as NumPy arrays, on its way in and out."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
from denizen.shm.errors import bad_request

#: More than this many rows and columns are no channels.
MAX_CHANNELS = 8

Pcm = npt.NDArray[np.float32]


def mono(pcm: Any) -> Pcm:
    """One channel, float32, contiguous; `pcm` itself where it is that already.

    `pcm` is `[samples]`, `[channels, samples]` or `[samples, channels]` (the shorter axis has the channels, at most 8,
    which are averaged), float32 or int16 (full scale 32768). Raises BadRequest, `param` "pcm".
    """
    if not isinstance(pcm, np.ndarray):
        raise bad_request(
            "pcm", f"'pcm' must be a NumPy array, not {type(pcm).__name__}; use np.asarray(pcm, np.float32)"
        )
    if pcm.dtype not in (np.dtype(np.float32), np.dtype(np.int16)):
        raise bad_request(
            "pcm", f"'pcm' must be float32 (−1 to 1) or int16, not {pcm.dtype}; convert it with .astype(np.float32)"
        )
    if pcm.size == 0:
        raise bad_request("pcm", "'pcm' is empty; give at least one sample")
    channels = _channel_axis(pcm)
    one: npt.NDArray[Any] = pcm if channels is None else pcm.mean(axis=channels, dtype=np.float32)
    if pcm.dtype == np.int16:
        one = np.multiply(one, np.float32(1 / 32768), dtype=np.float32)
    return np.ascontiguousarray(one, np.float32)


def _channel_axis(pcm: npt.NDArray[Any]) -> int | None:
    if pcm.ndim == 1:
        return None
    if pcm.ndim == 2:
        axis = int(pcm.shape[1] < pcm.shape[0])
        if pcm.shape[axis] <= MAX_CHANNELS < pcm.shape[1 - axis] or pcm.shape[axis] == 1:
            return axis
    raise bad_request(
        "pcm",
        f"'pcm' has the shape {pcm.shape}: it must be [samples], or [channels, samples] or [samples, channels] with at "
        f"most {MAX_CHANNELS} channels and more samples than that",
    )


def sample_rate(rate: Any) -> int:
    """Hertz. Raises BadRequest, `param` "rate". Which rates can be heard is the server's matter."""
    try:
        hertz = operator.index(rate)
    except TypeError:
        hertz = 0
    if not 0 < hertz < 1 << 32:
        raise bad_request("rate", f"'rate' must be a whole number of hertz, not {rate!r}")
    return hertz


def samples(attachment: bytes) -> Pcm:
    """A read-only view of float32 samples that came over the arena."""
    return np.frombuffer(attachment, np.dtype("<f4"))
