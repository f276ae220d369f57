"""Which model class reads which checkpoint. A new model adds its folder and a line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from denizen.worker.errors import CheckpointError

if TYPE_CHECKING:
    from denizen.worker.models.base import Model
    from denizen.worker.models.checkpoint import Checkpoint

#: ``architectures`` entry of ``config.json`` → module and class.
_ARCHITECTURES = {
    "LlamaForCausalLM": ("llama.model", "LlamaModel"),
    "Qwen2ForCausalLM": ("llama.model", "LlamaModel"),
    "Qwen3ForCausalLM": ("llama.model", "LlamaModel"),
    "Qwen3_5ForCausalLM": ("qwen3_5.model", "Qwen35Model"),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5.model", "Qwen35Model"),
    "WhisperForConditionalGeneration": ("whisper.model", "WhisperModel"),
}


def supported_architectures() -> list[str]:
    """What ``architectures`` of a ``config.json`` may name."""
    return sorted(_ARCHITECTURES)


def model_class(checkpoint: Checkpoint) -> type[Model]:
    """Raises :class:`CheckpointError` that lists what is supported."""
    names = checkpoint.config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise CheckpointError(f"{checkpoint.path / 'config.json'} does not name its model in 'architectures'")
    place = _ARCHITECTURES.get(names[0])
    if place is None:
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'}: the model {names[0]} is not supported; "
            f"supported: {', '.join(supported_architectures())}"
        )
    module = import_module(f"denizen.worker.models.{place[0]}")
    found: type[Model] = getattr(module, place[1])
    return found
