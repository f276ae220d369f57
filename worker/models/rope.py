"""Rotary frequencies from a checkpoint's config, old spelling (``rope_theta``, ``rope_scaling``) and new."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.worker.models.config_reader import ConfigReader

if TYPE_CHECKING:
    from denizen.worker.models.checkpoint import Checkpoint

_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """``inv_freq`` fp32 ``[rotated / 2]``; cosine and sine are multiplied by ``attention_factor``."""

    inv_freq: torch.Tensor
    attention_factor: float


def read_rope(checkpoint: Checkpoint, config: ConfigReader, head_dim: int, theta: float, partial: float = 1.0) -> Rope:
    """Frequencies for heads of ``head_dim``; ``theta`` and ``partial`` stand where the config does not say.

    Raises :class:`CheckpointError` for a scaling type that is not implemented.
    """
    values = {"rope_theta": config.values.get("rope_theta"), **config.section("rope_scaling")}
    values.update(config.section("rope_parameters"))
    rope = ConfigReader(checkpoint, values)
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind not in _TYPES:
        raise rope.error("rope_type", f"is {kind!r}, which is not supported (supported: {', '.join(_TYPES)})")
    partial = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", partial))
    dim = int(head_dim * partial)
    theta = rope.number("rope_theta", theta)
    frequencies = theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
    if kind == "linear":
        return Rope(1.0 / frequencies / rope.number("factor"), 1.0)
    if kind == "llama3":
        return Rope(_llama3(1.0 / frequencies, rope), 1.0)
    if kind == "yarn":
        return _yarn(frequencies, rope, dim, theta)
    return Rope(1.0 / frequencies, 1.0)


def _llama3(inv_freq: torch.Tensor, rope: ConfigReader) -> torch.Tensor:
    """Long wavelengths divided by the factor, short ones kept, a ramp between (Llama 3.1's reference code)."""
    factor = rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    turns = rope.number("original_max_position_embeddings") / (2 * math.pi / inv_freq)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * inv_freq / factor + keep * inv_freq


def _yarn(frequencies: torch.Tensor, rope: ConfigReader, dim: int, theta: float) -> Rope:
    """YaRN (arXiv:2309.00071): a ramp by dimension, and a temperature on the logits."""
    factor = rope.number("factor")
    original = rope.number("original_max_position_embeddings")

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(rope.number("beta_fast", 32)), dimension(rope.number("beta_slow", 1))
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    interpolate = ramp.clamp(0, 1)
    inv_freq = 1.0 / (factor * frequencies) * interpolate + 1.0 / frequencies * (1 - interpolate)

    def temperature(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, all_dim = rope.number("mscale", 0), rope.number("mscale_all_dim", 0)
    inferred = temperature(mscale) / temperature(all_dim) if mscale and all_dim else temperature(1)
    return Rope(inv_freq, rope.number("attention_factor", inferred))
