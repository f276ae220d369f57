"""Tiny random checkpoints of every supported kind, with a real tokenizer and chat template, made with transformers.

``python -m tests.models.tiny KIND FOLDER`` writes one; other tests import :func:`build`. Weights are scaled so that a
model's greedy output wanders: with the usual initialisation it repeats one id, and any two engines would agree on it.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n"
    "{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is true %}<think>\n{% else %}<think>\n\n</think>\n\n"
    "{% endif %}{%- endif %}"
)
CORPUS = """
The server reads a request, renders its template, turns the text into tokens and hands them to a worker.
A worker keeps the pages of every running request; when pages run out, the youngest request waits and starts again.
Der Server liest eine Anfrage und gibt die Antwort Wort für Wort zurück, während weitere Anfragen eintreffen.
Le serveur lit la requête et renvoie la réponse mot à mot; les autres requêtes avancent en même temps.
El servidor responde palabra por palabra. Сервер отвечает слово за словом. 服务器逐字回答。サーバーは一語ずつ答えます。
What is the capital of France? The capital of France is Paris. What is the capital of Japan? It is Tokyo.
"""

_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_DENSE = {**_SMALL, "num_attention_heads": 4, "num_key_value_heads": 2}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def _qwen3_5(key_heads: int, value_heads: int, **changes: object) -> Qwen3_5TextConfig:
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    }
    heads = {"linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads}
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    delta = {"linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4}
    return Qwen3_5TextConfig(**{**_SMALL, **sizes, **heads, **delta, "rope_parameters": rope, **changes})


#: Kind → model class and config. Tied and untied heads, biases, norms and rope types are spread over them.
KINDS = {
    "llama": lambda: (LlamaForCausalLM, LlamaConfig(**_DENSE, tie_word_embeddings=True)),
    "llama3-rope": lambda: (LlamaForCausalLM, LlamaConfig(**_DENSE, rope_parameters=_LLAMA3)),
    "linear-rope": lambda: (LlamaForCausalLM, LlamaConfig(**_DENSE, rope_parameters=_LINEAR)),
    "yarn-rope": lambda: (LlamaForCausalLM, LlamaConfig(**_DENSE, rope_parameters=_YARN)),
    "llama-bias": lambda: (LlamaForCausalLM, LlamaConfig(**_DENSE, attention_bias=True, mlp_bias=True, head_dim=24)),
    "qwen2": lambda: (Qwen2ForCausalLM, Qwen2Config(**_DENSE)),
    "qwen3": lambda: (Qwen3ForCausalLM, Qwen3Config(**_DENSE, head_dim=32, tie_word_embeddings=True)),
    "qwen3_5": lambda: (Qwen3_5ForCausalLM, _qwen3_5(2, 2, tie_word_embeddings=True)),
    "qwen3_5-grouped": lambda: (Qwen3_5ForCausalLM, _qwen3_5(2, 4)),
}


def build(kind: str, folder: str | Path, *, seed: int = 0, shards: bool = False, wrapped: bool = False) -> Path:
    """Writes the checkpoint and returns its folder.

    ``shards``: several weight files and an index. ``wrapped``: as the language part of a vision-language checkpoint
    (nested config, ``model.language_model.*`` names, and weights of other parts beside it).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(kind, seed)
    model.save_pretrained(folder, max_shard_size="100KB" if shards else "5GB")
    tokenizer().save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", tokenizer_config())
    _write(folder / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False})
    if wrapped:
        _wrap(folder)
    return folder


def make_model(kind: str, seed: int = 0):
    """The transformers model, fp32, in evaluation mode."""
    model_class, config = KINDS[kind]()
    generator = torch.Generator().manual_seed(seed)
    model = model_class(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomise(name, parameter, generator)
    return model


def _randomise(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    noise = torch.randn(parameter.shape, generator=generator)
    if name.endswith("A_log"):
        parameter.copy_(noise.mul(0.5))
    elif name.endswith("dt_bias"):
        parameter.copy_(noise.sub(1))
    elif "conv1d" in name:
        parameter.copy_(noise.mul(0.6))
    elif "norm" in name:
        # Around what it was made with: 1, or 0 where the norm is zero-centred.
        parameter.add_(noise.mul(0.2))
    elif parameter.dim() == 1:
        parameter.copy_(noise.mul(0.3))
    elif "embed_tokens" in name or "lm_head" in name:
        parameter.copy_(noise.mul(0.15))
    else:
        # Strong enough that the layers, not the token's own embedding, decide what comes next.
        gain = 2.5 if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")) else 1.5
        parameter.copy_(noise.mul(gain / math.sqrt(parameter.shape[1])))


def tokenizer() -> Tokenizer:
    """Byte-level BPE with Qwen's split, trained on the corpus above; ids 0, 1, 2 are the special tokens."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        CORPUS.splitlines(),
        trainers.BpeTrainer(
            vocab_size=VOCAB - 4,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
            show_progress=False,
        ),
    )
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<think>", "</think>")])
    return made


def tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }


def _wrap(folder: Path) -> None:
    """Turns a text checkpoint into the shape of a vision-language one."""
    file = folder / "model.safetensors"
    tensors = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in load_file(file).items()
    }
    tensors["model.visual.patch_embed.proj.weight"] = torch.ones(4, 4)
    tensors["mtp.fc.weight"] = torch.ones(4, 4)
    save_file(tensors, file, metadata={"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    text.pop("architectures")
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5_vision", "depth": 1},
    }
    _write(folder / "config.json", outer)


def _write(file: Path, value: dict[str, object]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    print(build(sys.argv[1], sys.argv[2]))
