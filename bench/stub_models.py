"""Checkpoint folders for the stub worker: all that the front end and the stub read of a model, and no weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_CONTEXT = 4096
_LANGUAGES = {"<|en|>": 258, "<|de|>": 259}
_TIMESTAMPS = 1501
_CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def write_text(folder: Path) -> Path:
    """A model for which each byte of a text is a token; the stub repeats prompts with it, or speaks them."""
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "max_position_embeddings": _CONTEXT}
    _write(folder, {"config.json": config})
    (folder / "chat_template.jinja").write_text(_CHAT, encoding="utf-8")
    return folder


def write_ears(folder: Path) -> Path:
    """A model that hears letters."""
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": 266 + _TIMESTAMPS,
        "max_target_positions": 448,
    }
    generation = {
        "eos_token_id": 256,
        "decoder_start_token_id": 257,
        "lang_to_id": _LANGUAGES,
        "task_to_id": {"translate": 260, "transcribe": 261},
        "prev_sot_token_id": 263,
        "no_timestamps_token_id": 265,
        "is_multilingual": True,
    }
    return _write(folder, {"config.json": config, "generation_config.json": generation})


def _write(folder: Path, files: dict[str, dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"tokenizer.json": _byte_tokenizer(), **files}.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def _byte_tokenizer() -> dict[str, Any]:
    """Byte-level BPE without merges: GPT-2's characters for the 256 bytes, in the order of their code points."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = sorted([*map(chr, printable), *(chr(256 + n) for n in range(256 - len(printable)))])
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: index for index, character in enumerate(characters)},
            "merges": [],
        },
    }
