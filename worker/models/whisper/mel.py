"""The log-mel spectrogram that the encoder hears: Whisper's, on the model's device."""

from __future__ import annotations

import math

import torch
from denizen.worker.models.whisper.config import HOP

_RATE = 16000
_FFT = 400
#: Slaney's mel scale: linear below 1 kHz, logarithmic above.
_LINEAR_HZ = 200 / 3
_BREAK_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27


def mel_filters(count: int) -> torch.Tensor:
    """Triangles of equal area, evenly spaced in mel from 0 to 8 kHz: fp32 ``[count, 201]``."""
    top = _BREAK_HZ / _LINEAR_HZ + math.log(_RATE / 2 / _BREAK_HZ) / _LOG_STEP
    mels = torch.linspace(0, top, count + 2, dtype=torch.float64)
    above = _BREAK_HZ * torch.exp(_LOG_STEP * (mels - _BREAK_HZ / _LINEAR_HZ))
    corners = torch.where(mels >= _BREAK_HZ / _LINEAR_HZ, above, mels * _LINEAR_HZ)
    frequencies = torch.linspace(0, _RATE / 2, _FFT // 2 + 1, dtype=torch.float64)
    low, centre, high = (corners[part : part + count, None] for part in range(3))
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    triangles = torch.minimum(rising, falling).clamp_min(0)
    return (triangles * (2 / (high - low))).float()


class LogMel:
    """Spectrograms of whole windows. Shapes are those of its input, and nothing is copied: may be captured."""

    def __init__(self, bins: int, device: torch.device) -> None:
        self._filters = mel_filters(bins).to(device)
        self._window = torch.hann_window(_FFT, device=device)

    def __call__(self, pcm: torch.Tensor) -> torch.Tensor:
        """fp32 ``[B, samples]`` at 16 kHz, padded with zeros to the window → fp32 ``[B, bins, samples / 160]``.

        A window's values are at most 2 below its greatest: quieter sounds are raised to that.
        """
        spectrum = torch.stft(pcm, _FFT, HOP, window=self._window, center=True, return_complex=True)
        power = spectrum[..., :-1].abs().square().contiguous()
        loudness = (self._filters @ power).clamp_min_(1e-10).log10_()
        floor = loudness.amax(dim=(1, 2), keepdim=True) - 8
        return torch.maximum(loudness, floor).add_(4).div_(4)
