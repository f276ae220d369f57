"""Random Whisper checkpoints: what :mod:`denizen.bench.checkpoint` writes for shapes of that family."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

_NEEDED = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
_LOGIT_STD = 3.0
#: Larger than a token's embedding, and the decoder's outputs larger than what they get: else one id follows itself.
_POSITION_STD = 1.5
_OUTPUT_GAIN = 1.5


def files(shape: dict[str, Any], tokenizer: Path, content: bytes) -> dict[str, dict[str, Any]]:
    """The JSON files of a checkpoint, by name without suffix. Raises BenchError for a tokenizer that does not fit."""
    try:
        found = json.loads(content)
        added = {token["content"]: int(token["id"]) for token in found["added_tokens"]}
        largest = max([*found["model"]["vocab"].values(), *added.values()])
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"--tokenizer {tokenizer}: not a tokenizer.json ({type(error).__name__}: {error})") from error
    if missing := [token for token in _NEEDED if token not in added]:
        raise BenchError(f"--tokenizer {tokenizer}: lacks {missing[0]}; Whisper's tokenizer is needed")
    vocab = shape["config"]["vocab_size"]
    if largest != vocab - 1:
        raise BenchError(f"--tokenizer {tokenizer}: ends at id {largest}, but the shape's vocabulary at {vocab - 1}")
    ends = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    return {**shape, "tokenizer_config": {"tokenizer_class": "WhisperTokenizer", **ends}}


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Hugging Face's checkpoints have them; the head is the embedding."""
    width, mels = config["d_model"], config["num_mel_bins"]
    for name, inputs in (("conv1", mels), ("conv2", width)):
        yield f"model.encoder.{name}.weight", (width, inputs, 3)
        yield f"model.encoder.{name}.bias", (width,)
    yield "model.encoder.embed_positions.weight", (config["max_source_positions"], width)
    yield "model.decoder.embed_tokens.weight", (config["vocab_size"], width)
    yield "model.decoder.embed_positions.weight", (config["max_target_positions"], width)
    for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        inner = config[f"{side}_ffn_dim"]
        for index in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{index}."
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield f"{layer}{attention}.{part}.weight", (width, width)
                    if part != "k_proj":
                        yield f"{layer}{attention}.{part}.bias", (width,)
                yield from _norm(f"{layer}{attention}_layer_norm", width)
            yield f"{layer}fc1.weight", (inner, width)
            yield f"{layer}fc1.bias", (inner,)
            yield f"{layer}fc2.weight", (width, inner)
            yield f"{layer}fc2.bias", (width,)
            yield from _norm(f"{layer}final_layer_norm", width)
        yield from _norm(f"model.{side}.layer_norm", width)


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def random(name: str, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A bf16 tensor. Logits have a standard deviation of 3, and greedy output wanders."""
    import torch

    if name == "model.encoder.embed_positions.weight":
        return _sinusoids(*size).to(torch.bfloat16)
    values = torch.empty(size).normal_(generator=generator)
    if "layer_norm.weight" in name:
        values.mul_(0.1).add_(1)
    elif name.endswith("bias"):
        values.mul_(0.02)
    elif "embed_positions" in name:
        values.mul_(_POSITION_STD)
    elif "embed_tokens" in name:
        values.mul_(_LOGIT_STD / math.sqrt(size[1]))
    else:
        gain = _OUTPUT_GAIN if ".decoder." in name and name.endswith(("out_proj.weight", "fc2.weight")) else 1.0
        values.mul_(gain / math.sqrt(math.prod(size[1:])))
    return values.to(torch.bfloat16)


def _sinusoids(length: int, width: int) -> torch.Tensor:
    """Whisper's fixed positions: sines in the first half of the columns, cosines in the second."""
    import torch

    rates = torch.exp(-math.log(10_000) / (width // 2 - 1) * torch.arange(width // 2))
    angles = torch.arange(length)[:, None] * rates[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1)
