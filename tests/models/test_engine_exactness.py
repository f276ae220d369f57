"""The whole worker against transformers: greedy tokens through scheduler, tables, engine and sampler."""

from __future__ import annotations

import pytest
import torch
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.served import ServedModel
from denizen.worker.teacher import teacher_forced

from tests.models.harness import CPU
from tests.models.test_exactness import BOUND, SHAPES, random_ids
from tests.worker.peer import generate

TOKENS = 128


def serve(
    pair, *, kv_tokens: int = 4096, prefill_chunk: int = 24, max_rows: int = 8, overlap: bool = True
) -> ServedModel:
    return ServedModel.build(
        "tiny",
        pair.model,
        CPU,
        torch.float32,
        PoolConfig(page_size=4, kv_tokens=kv_tokens),
        SchedulerConfig(max_rows, None, prefill_chunk),
        EngineConfig(overlap=overlap),
    )


VARIANTS = {
    "overlap": {},
    "no overlap": {"overlap": False},
    "preempted": {"kv_tokens": 400},
    "preempted, no overlap": {"kv_tokens": 400, "overlap": False},
    "one row": {"max_rows": 1},
    "tokens one by one": {"prefill_chunk": 1},
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_equal_the_reference(pairs, kind, variant):
    pair = pairs(kind)
    options = VARIANTS[variant]
    prompts = [random_ids(length, seed=20 + length) for length in (1, 7, 30, 55, 100)]
    expected = [pair.greedy(prompt, TOKENS) for prompt in prompts]
    # A model that repeats itself would agree with anything that repeats itself.
    assert all(len(set(tokens)) > 40 for tokens in expected)
    served = serve(pair, **options)
    assert generate(served, prompts, TOKENS, overlap=options.get("overlap", True)) == expected
    assert (served.scheduler.preemptions > 2) == ("kv_tokens" in options)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("chunk", [1, 5, 24, 512])
def test_teacher_forced_logits_through_the_scheduler(pairs, kind, chunk):
    pair = pairs(kind)
    texts = [random_ids(length, seed=40 + length) for length in (9, 60, 130)]
    served = serve(pair, prefill_chunk=chunk)
    for prompts in ([len(ids) for ids in texts], [4, 31, 128]):
        for logits, ids in zip(teacher_forced(served, texts, prompts), texts, strict=True):
            expected = pair.logits(ids)
            assert expected.std() > 0.3
            assert (logits - expected).abs().max() <= BOUND
