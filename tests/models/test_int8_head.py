"""An LM head in int8: the worker's logits against transformers with the same weights rounded, teacher-forced, fp32."""

from __future__ import annotations

import copy

import pytest
import torch
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.errors import ConfigError
from denizen.worker.models.linear import lm_head
from denizen.worker.served import ServedModel
from denizen.worker.teacher import teacher_forced
from safetensors.torch import load_file

from tests.models.harness import CPU, load
from tests.models.speech import build_tiny
from tests.models.test_exactness import BOUND, random_ids


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Every row to whole 127ths of its greatest magnitude."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return torch.round(weight / scale) * scale


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5-grouped", "llama"])
@pytest.mark.parametrize("resident", [True, False])
def test_logits_equal_those_of_the_rounded_weights(pairs, kind, resident):
    """Tied and untied heads; prompts in chunks, then decode steps of several rows."""
    pair = pairs(kind)
    reference = copy.deepcopy(pair.reference)
    with torch.no_grad():
        reference.lm_head.weight = torch.nn.Parameter(rounded(reference.lm_head.weight))
    assert (reference.lm_head.weight - pair.reference.lm_head.weight).abs().max() > 1e-3
    served = ServedModel.build(
        "tiny",
        load(pair.folder, head_dtype="int8"),
        CPU,
        torch.float32,
        PoolConfig(4, 4096),
        SchedulerConfig(8, None, 24),
        EngineConfig(resident=resident),
    )
    texts = [random_ids(length, seed=70 + length) for length in (9, 60, 130)]
    for logits, ids in zip(teacher_forced(served, texts, [4, 31, 100]), texts, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([ids])).logits[0]
        assert expected.std() > 0.3
        assert (logits - expected).abs().max() <= BOUND
        # The rounding is what is served, and it shows.
        assert (logits - pair.logits(ids)).abs().max() > 100 * BOUND


def test_a_model_that_hears_takes_it_too(tmp_path):
    folder = build_tiny(tmp_path)
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    weight = load_file(folder / "model.safetensors")["model.decoder.embed_tokens.weight"].float()
    logits = load(folder, head_dtype="int8").logits(hidden)
    torch.testing.assert_close(logits, hidden @ rounded(weight).mT, rtol=0, atol=BOUND)


def test_a_hidden_size_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"multiple of 64, not 96; serve this model with --head-dtype auto"):
        lm_head(torch.zeros(10, 96), "int8")
