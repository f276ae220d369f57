"""Writes a random checkpoint of a real model's shape.

    python -m denizen.bench.checkpoint SHAPE FOLDER --tokenizer FILE

For speed measurements where the real weights cannot be had: the same bytes are read, the same kernels run. Weights are
scaled so that the residual stream stays of order one and greedy output wanders. With the usual initialisation a token's
own embedding outweighs all layers, and a tied model repeats one id for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from denizen.bench import whisper_checkpoint
from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_SHAPES = Path(__file__).resolve().parent / "shapes"
_END, _TURN_END = "<|endoftext|>", "<|im_end|>"
_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Standard deviation of a logit: the norm before the head makes its input's root mean square 1.
_LOGIT_STD = 3.0
#: Of a sub-layer's last projection, over that which would keep its input's size.
_OUTPUT_GAIN = 1.5
_BLOCK = 16 << 20


def shapes(kind: Literal["text", "asr"] | None = None) -> list[str]:
    """Names of the shapes that there are, or of those of one kind."""
    names = sorted(path.stem for path in _SHAPES.glob("*.json"))
    return [name for name in names if kind is None or name.startswith("whisper") == (kind == "asr")]


def write(shape: str, folder: Path, tokenizer: Path, *, seed: int = 0) -> None:
    """Writes configs, bf16 weights and tokenizer to `folder`; equal arguments write equal weights.

    `tokenizer` is a `tokenizer.json`, as it is or as `.xz`. Raises BenchError for an unknown shape, a tokenizer that
    cannot be read or lacks the special tokens that its kind of model needs, and one whose ids do not fit the shape's
    vocabulary.
    """
    # Here, since the command line asks this module for its shapes and should not load PyTorch for that.
    import torch
    from safetensors.torch import save_file

    if shape not in shapes():
        raise BenchError(f"there is no shape '{shape}'; known: {', '.join(shapes())}")
    found: dict[str, Any] = json.loads((_SHAPES / f"{shape}.json").read_text(encoding="utf-8"))
    content = _read_tokenizer(tokenizer)
    draw = _random
    if shape in shapes("asr"):
        files = whisper_checkpoint.files(found, tokenizer, content)
        sizes, draw = whisper_checkpoint.tensors(found["config"]), whisper_checkpoint.random
    else:
        files, sizes = _files(found, tokenizer, content), _tensors(found["text_config"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(content)
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: draw(name, size, generator) for name, size in sizes}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _files(config: dict[str, Any], tokenizer: Path, content: bytes) -> dict[str, dict[str, Any]]:
    """The JSON files of a text checkpoint, with a ChatML template, by name without suffix."""
    text = config["text_config"]
    ends = _end_ids(tokenizer, content, text["vocab_size"])
    text["eos_token_id"] = ends[0]
    return {
        "config": config,
        "generation_config": {"eos_token_id": ends, "do_sample": False},
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": _TURN_END,
            "pad_token": _END,
            "chat_template": _TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    }


def sha256(folder: Path) -> str:
    """Of all weight files of a checkpoint, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _read_tokenizer(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        return lzma.decompress(content) if file.suffix == ".xz" else content
    except (OSError, lzma.LZMAError) as error:
        raise BenchError(f"--tokenizer {file}: {error}; give a tokenizer.json or tokenizer.json.xz") from error


def _end_ids(file: Path, content: bytes, vocab: int) -> list[int]:
    """The ids that end a turn and a text."""
    try:
        tokenizer = json.loads(content)
        added = {token["content"]: int(token["id"]) for token in tokenizer["added_tokens"]}
        largest = max([*tokenizer["model"]["vocab"].values(), *added.values()])
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"--tokenizer {file}: not a tokenizer.json ({type(error).__name__}: {error})") from error
    missing = [token for token in (_TURN_END, _END, "<|im_start|>") if token not in added]
    if missing:
        raise BenchError(f"--tokenizer {file}: lacks {missing[0]}; a ChatML tokenizer is needed")
    if largest >= vocab:
        raise BenchError(f"--tokenizer {file}: has id {largest}, but the shape's vocabulary ends at {vocab - 1}")
    return [added[_TURN_END], added[_END]]


def _tensors(text: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the language model's tensors, as a vision-language checkpoint names them."""
    hidden, inter, vocab = text["hidden_size"], text["intermediate_size"], text["vocab_size"]
    query, kv = text["num_attention_heads"] * text["head_dim"], text["num_key_value_heads"] * text["head_dim"]
    heads = text["linear_num_value_heads"]
    value = heads * text["linear_value_head_dim"]
    conv = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + value
    prefix = "model.language_model."
    yield f"{prefix}embed_tokens.weight", (vocab, hidden)
    for index, kind in enumerate(text["layer_types"]):
        layer = f"{prefix}layers.{index}."
        yield f"{layer}input_layernorm.weight", (hidden,)
        yield f"{layer}post_attention_layernorm.weight", (hidden,)
        if kind == "full_attention":
            yield f"{layer}self_attn.q_proj.weight", (2 * query, hidden)  # query and gate of each head
            yield f"{layer}self_attn.k_proj.weight", (kv, hidden)
            yield f"{layer}self_attn.v_proj.weight", (kv, hidden)
            yield f"{layer}self_attn.q_norm.weight", (text["head_dim"],)
            yield f"{layer}self_attn.k_norm.weight", (text["head_dim"],)
            yield f"{layer}self_attn.o_proj.weight", (hidden, query)
        else:
            yield f"{layer}linear_attn.in_proj_qkv.weight", (conv, hidden)
            yield f"{layer}linear_attn.in_proj_z.weight", (value, hidden)
            yield f"{layer}linear_attn.in_proj_b.weight", (heads, hidden)
            yield f"{layer}linear_attn.in_proj_a.weight", (heads, hidden)
            yield f"{layer}linear_attn.conv1d.weight", (conv, 1, text["linear_conv_kernel_dim"])
            yield f"{layer}linear_attn.A_log", (heads,)
            yield f"{layer}linear_attn.dt_bias", (heads,)
            yield f"{layer}linear_attn.norm.weight", (text["linear_value_head_dim"],)
            yield f"{layer}linear_attn.out_proj.weight", (hidden, value)
        yield f"{layer}mlp.gate_proj.weight", (inter, hidden)
        yield f"{layer}mlp.up_proj.weight", (inter, hidden)
        yield f"{layer}mlp.down_proj.weight", (hidden, inter)
    yield f"{prefix}norm.weight", (hidden,)
    if not text["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def _random(name: str, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A bf16 tensor."""
    import torch

    if name.endswith("A_log"):  # decay rates from 1 to 16
        values = torch.rand(size, generator=generator).mul_(15).add_(1).log_()
    elif name.endswith("dt_bias"):  # time steps from 0.001 to 0.1, through the inverse of softplus
        steps = torch.rand(size, generator=generator).mul_(math.log(100)).add_(math.log(0.001)).exp_()
        values = steps.expm1().log_()
    else:
        values = torch.empty(size).normal_(generator=generator)
        if name.endswith("linear_attn.norm.weight"):
            values.mul_(0.1).add_(1)
        elif "norm" in name:  # zero-centred
            values.mul_(0.1)
        elif "embed_tokens" in name or "lm_head" in name:
            values.mul_(_LOGIT_STD / math.sqrt(size[1]))
        else:
            gain = _OUTPUT_GAIN if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1.0
            values.mul_(gain / math.sqrt(math.prod(size[1:])))
    return values.to(torch.bfloat16)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m denizen.bench.checkpoint", description="Writes a random checkpoint of a real model's shape."
    )
    parser.add_argument("shape", choices=shapes())
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, metavar="FILE", help="tokenizer.json or tokenizer.json.xz of the model"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args(argv)
    try:
        write(options.shape, options.folder, options.tokenizer, seed=options.seed)
    except BenchError as error:
        print(f"checkpoint: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
