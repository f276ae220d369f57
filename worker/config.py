"""Configuration: one dataclass a component, read from the front end's JSON (``docs/design/protocol.md``)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from denizen.worker.errors import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """A model to host: its public name and its checkpoint folder."""

    name: str
    path: str


@dataclass(frozen=True)
class PoolConfig:
    """Sizes of the pools. ``kv_tokens`` None = as much as the memory allows. ``state_dtype``: of recurrent states that
    a model would keep in float32."""

    page_size: int = 16
    kv_tokens: int | None = None
    state_dtype: str = "float32"


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of the scheduler, per model. ``max_rows`` None = as the device and the model's kind go; ``max_context``
    None = the checkpoint's."""

    max_rows: int | None = None
    max_context: int | None = None
    prefill_chunk: int = 512


@dataclass(frozen=True)
class EngineConfig:
    """``overlap``: prepare step N+1 while N runs. ``resident``: rows live on the device; else they are rewritten from
    the host in every step."""

    overlap: bool = True
    resident: bool = True


@dataclass(frozen=True)
class WorkerConfig:
    """Everything that one worker process is told at its start."""

    worker: int = 0
    device: str = "cpu"
    threads: int | None = None
    models: tuple[ModelConfig, ...] = ()
    pools: PoolConfig = field(default_factory=PoolConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    @classmethod
    def from_json(cls, text: str) -> WorkerConfig:
        """Raises :class:`ConfigError` that names the key which is wrong."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"--config is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("--config must be a JSON object")
        unknown = sorted(set(values) - _KEYS)
        if unknown:
            raise ConfigError(f"--config has the unknown key '{unknown[0]}'; known: {', '.join(sorted(_KEYS))}")
        device = _get(values, "device", str, "cpu")
        if not re.fullmatch(r"cpu|cuda:\d+", device):
            raise ConfigError(f"device '{device}' is unknown; use cpu or cuda:N")
        on_cuda = device.startswith("cuda")
        return cls(
            worker=_integer(values, "worker", 0, low=0),
            device=device,
            threads=_optional_integer(values, "threads"),
            models=_models(values),
            pools=PoolConfig(
                _integer(values, "page_size", 16), _optional_integer(values, "kv_tokens"), _state_dtype(values)
            ),
            scheduler=SchedulerConfig(
                _optional_integer(values, "max_rows"),
                _optional_integer(values, "max_context"),
                _integer(values, "prefill_chunk", 1024 if on_cuda else 512),
            ),
            engine=EngineConfig(_get(values, "overlap", bool, True), _get(values, "resident", bool, True)),
        )


def default_rows(device: str, kind: str) -> int:
    """Rows of a model of ``kind`` on a device type, where nothing is configured and the memory is there."""
    return 256 if device == "cuda" and kind == "text" else 64


_KEYS = {
    "worker",
    "device",
    "threads",
    "models",
    "page_size",
    "kv_tokens",
    "state_dtype",
    "max_rows",
    "max_context",
    "prefill_chunk",
    "overlap",
    "resident",
}


def _get(values: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = values.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        raise ConfigError(f"--config: '{key}' must be of type {kind.__name__}, not {value!r}")
    return value


def _integer(values: dict[str, Any], key: str, default: int, low: int = 1) -> int:
    value: int = _get(values, key, int, default)
    if value < low:
        raise ConfigError(f"--config: '{key}' must be at least {low}, not {value}")
    return value


def _optional_integer(values: dict[str, Any], key: str) -> int | None:
    return None if values.get(key) is None else _integer(values, key, 0)


def _state_dtype(values: dict[str, Any]) -> str:
    value: str = _get(values, "state_dtype", str, "float32")
    if value not in ("float32", "bfloat16"):
        raise ConfigError(f"--config: 'state_dtype' must be float32 or bfloat16, not '{value}'")
    return value


def _models(values: dict[str, Any]) -> tuple[ModelConfig, ...]:
    models = _get(values, "models", list, [])
    for item in models:
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("name", "path")):
            raise ConfigError(f'--config: every item of \'models\' must be {{"name": …, "path": …}}, not {item!r}')
    names = [item["name"] for item in models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--config: two models are named '{name}'; give each its own name")
    return tuple(ModelConfig(item["name"], item["path"]) for item in models)
