"""Tiny checkpoints, built once a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.models import tiny
from tests.models.harness import load

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.worker.models.base import Model

# Tiny products gain nothing from a second thread, and lose much where the cores are shared.
torch.set_num_threads(1)


@dataclass
class Pair:
    """The same weights in transformers and in Denizen."""

    kind: str
    folder: Path
    reference: Any
    model: Model
    _continued: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def logits(self, ids: list[int]) -> torch.Tensor:
        """The reference's teacher-forced logits ``[len(ids), vocab]``, in one pass."""
        with torch.inference_mode():
            return self.reference(torch.tensor([ids])).logits[0]

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """The reference's greedy continuation; end ids do not stop it."""
        key = (tokens, *prompt)
        if key not in self._continued:
            self._continued[key] = self._generate(prompt, tokens)
        return self._continued[key]

    def _generate(self, prompt: list[int], tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = self.reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """``pairs(kind)``: the checkpoint of a kind and both of its models."""
    made: dict[str, Pair] = {}

    def get(kind: str) -> Pair:
        if kind not in made:
            folder = tiny.build(kind, tmp_path_factory.mktemp(kind))
            made[kind] = Pair(kind, folder, tiny.make_model(kind), load(folder))
        return made[kind]

    return get
