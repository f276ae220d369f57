"""A Hugging Face checkpoint folder: configuration, tensors read lazily from safetensors, and what is wrong with it.

Tensors are mapped from the file and copied only where a model asks for another layout or type. Every fault ends in a
:class:`CheckpointError` that names the file and what to do.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from denizen.worker.errors import CheckpointError
from safetensors import SafetensorError, safe_open

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
#: Bytes at either end of a weight file that enter the fingerprint.
_SAMPLE = 1 << 16

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


class Progress(Protocol):
    """Called as weights arrive: bytes read so far, bytes that the model reads in all."""

    def __call__(self, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor is."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  #: as safetensors spells it
    bytes: int


class Checkpoint:
    """An opened checkpoint folder. Opening reads the headers only."""

    def __init__(self, path: Path, config: dict[str, Any], entries: dict[str, TensorEntry]) -> None:
        self.path = path
        self.config = config
        self.entries = entries
        self._files: dict[Path, Any] = {}

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Raises :class:`CheckpointError` if the folder, its config, or a weight file is missing or unreadable."""
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder} is not a folder; give the folder of a Hugging Face checkpoint (config.json, *.safetensors)"
            )
        config = read_json(folder / "config.json")
        if quantised := config.get("quantization_config"):
            method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else quantised
            raise CheckpointError(
                f"{folder / 'config.json'}: the checkpoint is quantised ({method}), which is not supported; "
                "use the original float checkpoint"
            )
        entries: dict[str, TensorEntry] = {}
        expected = _weight_map(folder)
        for file in sorted({folder / name for name in expected.values()}) if expected else [folder / _SINGLE]:
            entries.update(_read_header(file))
        for name, file_name in (expected or {}).items():
            if name not in entries:
                raise CheckpointError(
                    f"{folder / file_name} lacks the tensor '{name}' that {_INDEX} places there; "
                    "the download is incomplete or mixed: delete the folder and fetch it again"
                )
        return cls(folder, config, entries)

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """The tensor on the CPU, as stored. ``shape``: what the model expects of it."""
        entry = self.entry(name)
        if shape is not None and entry.shape != shape:
            raise CheckpointError(
                f"{entry.file}: the tensor '{name}' has shape {list(entry.shape)}, but config.json asks for "
                f"{list(shape)}; config and weights are not of the same model"
            )
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{entry.file}: the tensor '{name}' is of type {entry.dtype}, which is not supported; "
                "use a checkpoint in float32, float16 or bfloat16"
            )
        if entry.file not in self._files:
            self._files[entry.file] = safe_open(entry.file, framework="pt")
        try:
            tensor: torch.Tensor = self._files[entry.file].get_tensor(name)
        except (SafetensorError, RuntimeError, OSError) as error:
            raise _corrupt(entry.file, str(error)) from None
        return tensor

    def entry(self, name: str) -> TensorEntry:
        """Raises :class:`CheckpointError` if there is no such tensor."""
        entry = self.entries.get(name)
        if entry is None:
            near = sorted(other for other in self.entries if other.rsplit(".", 2)[-2:] == name.rsplit(".", 2)[-2:])
            hint = f" (there is '{near[0]}')" if near else ""
            raise CheckpointError(
                f"{self.path}: the weights lack the tensor '{name}'{hint}; the checkpoint is incomplete or is not the "
                "model that config.json says"
            )
        return entry

    def close(self) -> None:
        """Drops the file maps; tensors that were handed out keep theirs."""
        self._files.clear()

    def fingerprint(self) -> str:
        """Identifies the checkpoint's content without reading all of it.

        SHA-256 (hex) over the config and, for every weight file, its name, size, header and both ends of its data.
        """
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for file in sorted({entry.file for entry in self.entries.values()}):
            size = file.stat().st_size
            digest.update(f"{file.name}:{size}".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(_header_length(stream.read(8)) + _SAMPLE))
                stream.seek(max(0, size - _SAMPLE))
                digest.update(stream.read(_SAMPLE))
        return digest.hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises :class:`CheckpointError` that names the file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; is {file.parent} a Hugging Face checkpoint folder?") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}; fetch it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object; fetch it again")
    return value


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name to file name from the index; None where the checkpoint is one file."""
    if not (folder / _INDEX).is_file():
        if (folder / _SINGLE).is_file():
            return None
        others = sorted(file.name for pattern in ("*.bin", "*.gguf", "*.pth") for file in folder.glob(pattern))
        found = f" ({others[0]} is there, but only safetensors are read)" if others else ""
        raise CheckpointError(f"{folder} has neither {_SINGLE} nor {_INDEX}{found}; fetch the safetensors weights")
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / _INDEX} has no 'weight_map'; fetch it again")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{folder / _INDEX}: '{name}' is not a file name; fetch the checkpoint again")
    return weight_map


def _header_length(prefix: bytes) -> int:
    return int(struct.unpack("<Q", prefix)[0]) if len(prefix) == 8 else 0


def _read_header(file: Path) -> dict[str, TensorEntry]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = _header_length(stream.read(8))
            if not 2 <= length <= size - 8:
                raise _corrupt(file, "its header is cut off")
            header = json.loads(stream.read(length))
        entries = {
            name: TensorEntry(file, tuple(tensor["shape"]), tensor["dtype"], end - begin)
            for name, tensor in header.items()
            if name != "__metadata__"
            for begin, end in (tensor["data_offsets"],)
        }
        end = max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; fetch the missing file again") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _corrupt(file, "its header is not safetensors") from None
    if 8 + length + end != size:
        raise _corrupt(file, f"it has {size} bytes where its header asks for {8 + length + end}")
    return entries


def _corrupt(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{file} is damaged: {why}; delete it and fetch it again")
