"""Counter-based noise for sampling: a draw is a function of (seed, absolute position, vocabulary id) alone.

``argmax(logits / T - log(E))`` with E exponential is a draw from ``softmax(logits / T)`` (the Gumbel-max trick). The
noise does not depend on the row, the batch or the bucket, so a seeded request draws the same token wherever it runs.
"""

from __future__ import annotations

import torch


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


# SplitMix64 (Steele, Lea, Flood 2014) derives a row's 64-bit key; lowbias32 (Wellons) hashes a vocabulary id with it.
_GOLDEN = _signed(0x9E3779B97F4A7C15, 64)
_MIX1 = _signed(0xBF58476D1CE4E5B9, 64)
_MIX2 = _signed(0x94D049BB133111EB, 64)
_LOW1 = 0x7FEB352D
_LOW2 = _signed(0x846CA68B, 32)

#: Largest uniform below 1 in float32, so that the exponential stays finite.
_BELOW_ONE = 1.0 - 2.0**-24


def _shift64(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _keys(seed: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = seed
    for counter in (position, 0):  # twice mixed, so that neighbouring seeds and positions share nothing
        x = x + (counter + 1) * _GOLDEN
        x = (x ^ _shift64(x, 30)) * _MIX1
        x = (x ^ _shift64(x, 27)) * _MIX2
        x = x ^ _shift64(x, 31)
    return x.to(torch.int32), _shift64(x, 32).to(torch.int32)


def _lowbias32_(x: torch.Tensor, scratch: torch.Tensor) -> None:
    """Hashes int32 ``x`` in place. ``>>`` is arithmetic on int32, hence the masks."""
    for shift, factor in ((16, _LOW1), (15, _LOW2), (16, None)):
        torch.bitwise_right_shift(x, shift, out=scratch)
        scratch.bitwise_and_((1 << (32 - shift)) - 1)
        x.bitwise_xor_(scratch)
        if factor is not None:
            x.mul_(factor)


def log_exponential(seed: torch.Tensor, position: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """``log(E)`` of independent unit exponentials, fp32 ``[B, N]``.

    ``seed`` int64 ``[B]`` (any 64 bits), ``position`` int64 ``[B]``, ``ids`` int32 ``[N]`` or ``[B, N]``.
    """
    low, high = _keys(seed, position)
    x = ids + low[:, None]
    scratch = torch.empty_like(x)
    _lowbias32_(x, scratch)
    x.bitwise_xor_(high[:, None])
    _lowbias32_(x, scratch)
    # 31 bits; small values are exact in float32, and they are the ones that decide an argmax.
    uniform = x.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_()
