"""Counter-based noise for sampling: a draw is a function of (seed, absolute position, vocabulary id) alone.

``argmax(logits / T - log(E))`` with E exponential is a draw from ``softmax(logits / T)`` (the Gumbel-max trick). The
noise does not depend on the row, the batch or the bucket, so a seeded request draws the same token wherever it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from denizen.kernels.jit import fast_log2, jit, tl


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


@jit
def draw_key(seed: tl.tensor, position: tl.tensor) -> Any:
    """Key of a draw, two uint32, from int64 ``seed`` and ``position``: the integers of :func:`_keys`, bit for bit."""
    x = seed.to(tl.uint64) + (position.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = (x ^ (x >> 31)) + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return x.to(tl.uint32), (x >> 32).to(tl.uint32)


@jit
def _lowbias32(x: tl.tensor) -> Any:
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@jit
def draw_uniform(low: tl.tensor, high: tl.tensor, ids: tl.tensor) -> Any:
    """Uniforms in (0, 1) fp32 of int32 ``ids`` under a key: those behind :func:`log_exponential`, bit for bit."""
    x = _lowbias32(_lowbias32(ids.to(tl.uint32) + low) ^ high)
    uniform = ((x & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2^-31
    return tl.minimum(uniform, 0.999999940395355224609375)  # 1 - 2^-24


@jit
def draw_log_exponential(uniform: tl.tensor) -> Any:
    """``log(-log1p(-uniform))`` to 1e-5. The hardware's logarithm is exact to 2^-22 absolutely, not relatively, near 1:
    below 1/32, where the draws lie that win an argmax, the series takes its place."""
    u = uniform
    series = u * (1 + u * (0.5 + u * (0.33333334 + u * (0.25 + u * 0.2))))
    return 0.6931472 * fast_log2(tl.where(u < 0.03125, series, -0.6931472 * fast_log2(1 - u)))
