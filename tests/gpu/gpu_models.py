"""Random checkpoints for the GPU checks, made with transformers, and the models served from them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import torch
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.models.checkpoint import Checkpoint
from denizen.worker.models.registry import model_class
from denizen.worker.resident.planner import PlanMode
from denizen.worker.served import ServedModel
from gpu_support import CUDA
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

REAL_SHAPE = Path(__file__).resolve().parents[2] / "bench/shapes/qwen3_5-0.8b.json"
#: Head dimensions are those whose attention modules are carried: others would be compiled on the machine.
_SMALL = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def config_of(kind: str) -> tuple[type, Any]:
    """Class and configuration of transformers for ``qwen3_5``, ``llama`` (small) or ``real``."""
    if kind == "llama":
        return LlamaForCausalLM, LlamaConfig(**_SMALL)
    if kind == "real":
        return Qwen3_5ForCausalLM, Qwen3_5TextConfig(**json.loads(REAL_SHAPE.read_text())["text_config"])
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sizes = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
    return Qwen3_5ForCausalLM, Qwen3_5TextConfig(
        **_SMALL, **heads, **sizes, rope_parameters=rope, tie_word_embeddings=True
    )


def make(kind: str, folder: Path, seed: int = 0) -> Any:
    """Writes a bf16 checkpoint; returns the transformers model, fp32 on the GPU, with the same weights."""
    model_type, config = config_of(kind)
    torch.manual_seed(seed)
    with torch.device(CUDA):
        model = model_type(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomise(name, parameter, config.hidden_size)
            parameter.copy_(parameter.bfloat16())
    # A copy: bfloat16() would also round the rotary frequencies of the model that is compared with.
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    return model


def _randomise(name: str, parameter: torch.Tensor, hidden: int) -> None:
    """So that greedy output wanders and logits have a standard deviation near 1.2."""
    noise = torch.randn_like(parameter)
    if name.endswith("A_log"):
        parameter.copy_(noise * 0.5)
    elif name.endswith("dt_bias"):
        parameter.copy_(noise - 1)
    elif "conv1d" in name:
        parameter.copy_(noise * 0.6)
    elif "norm" in name:
        parameter.add_(noise * 0.2)
    elif "embed_tokens" in name or "lm_head" in name:
        parameter.copy_(noise * (1.2 / math.sqrt(hidden)))
    else:
        gain = 2.5 if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")) else 1.5
        parameter.copy_(noise * (gain / math.sqrt(parameter.shape[1])))


def serve(
    folder: Path,
    *,
    rows: int = 16,
    chunk: int = 256,
    page_size: int = 16,
    kv_tokens: int | None = 16384,
    resident: bool = True,
    mode: PlanMode = PlanMode.HOST_PLAN_FREE,
    context: int | None = 4096,
    state_dtype: str = "float32",
    buckets: list[int] | None = None,
) -> ServedModel:
    checkpoint = Checkpoint.open(folder)
    model = model_class(checkpoint).load(checkpoint, CUDA, torch.bfloat16)
    return ServedModel.build(
        "model",
        model,
        CUDA,
        torch.bfloat16,
        PoolConfig(page_size, kv_tokens, state_dtype),
        SchedulerConfig(rows, context, chunk),
        EngineConfig(True, resident),
        mode=mode,
        buckets=buckets,
    )
