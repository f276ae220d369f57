"""What the checks of the CUDA worker share: random checkpoints, an engine to drive, judgements."""

from __future__ import annotations

import functools
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu_models import make, serve
from gpu_support import CUDA

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from denizen.worker.protocol import Done, Submit

from tests.soak.judge import judge
from tests.worker.peer import Peer, assert_empty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.served import ServedModel

    from tests.worker.peer import Outcome

#: Largest difference of any logit from fp32 transformers, and its root mean square over a text; logits have a deviation
#: near 1.2. Rounding bf16 activations costs that: transformers' own bf16 pass over such checkpoints, its rotary
#: frequencies in fp32, is off by 0.044 (llama) and 0.026 (qwen3_5) in the root mean square.
BOUND, BOUND_RMS = 0.5, 0.05


@functools.cache
def checkpoint(kind: str) -> tuple[Path, Any]:
    """Folder of a small bf16 checkpoint, and the fp32 transformers model on the GPU with the same weights."""
    folder = Path(tempfile.mkdtemp(prefix=f"denizen-{kind}-"))
    return folder, make(kind, folder)


@functools.cache
def shared(kind: str = "qwen3_5", **options: Any) -> ServedModel:
    """A served model that all checks of a process with equal ``options`` use, one after the other."""
    folder, _ = checkpoint(kind)
    return serve(folder, **options)


def texts(count: int, low: int, high: int, seed: int = 0, vocab: int = 1000) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab) for _ in range(rng.randint(low, high))] for _ in range(count)]


def run(
    served: ServedModel, prompts: list[list[int]], tokens: int, *, overlap: bool = True, **options: Any
) -> list[Outcome]:
    """All requests are there before the engine starts. ``options``: of SUBMIT; lists are spread over the prompts."""
    peer = Peer([served], overlap=overlap)
    for index, ids in enumerate(prompts):
        peer.submit(index + 1, ids, tokens, model=served.name, **one(options, index))
    with peer:
        outcomes = peer.finish()
    assert_empty(served)
    for outcome in outcomes:
        assert isinstance(outcome.end, Done), outcome.end
    return outcomes


def generate(served: ServedModel, prompts: list[list[int]], tokens: int, **options: Any) -> list[list[int]]:
    return [outcome.tokens for outcome in run(served, prompts, tokens, **options)]


def one(options: dict[str, Any], index: int) -> dict[str, Any]:
    return {name: value[index] if isinstance(value, list) else value for name, value in options.items()}


@torch.inference_mode()
def reference(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """fp32 logits ``[len(ids), vocab]`` of transformers."""
    logits: torch.Tensor = model(torch.tensor([list(ids)], device=CUDA)).logits[0].float()
    return logits


@torch.inference_mode()
def references(model: Any, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The same of several texts at once: what pads a text behind its end is seen by no token of it."""
    longest = max(len(ids) for ids in sequences)
    padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in sequences], device=CUDA)
    logits = model(padded).logits.float()
    return [logits[index, : len(ids)] for index, ids in enumerate(sequences)]


def assert_follows(
    kind: str, prompts: list[list[int]], outputs: list[list[int]], tokens: int, what: str, **options: Any
) -> None:
    """Every output token is what the request asks for, within the bound, under ``transformers``' logits."""
    _, model = checkpoint(kind)
    for index, (ids, out) in enumerate(zip(prompts, outputs, strict=True)):
        own = {"temperature": 0.0, **one(options, index)}
        verdict = judge(Submit("model", ids, tokens, **own), out, [], reference(model, [*ids, *out]), BOUND)
        assert max(verdict.behind, verdict.cut) <= 1, f"{what}, request {index}: {verdict}"


def assert_close_tokens(got: list[list[int]], want: list[list[int]]) -> None:
    """Batches of other sizes round differently, so that a draw between near equals may fall otherwise, rarely."""
    equal = sum(a == b for a, b in zip(got, want, strict=True))
    assert equal >= 0.6 * len(want), f"only {equal} of {len(want)} requests give the same tokens"
