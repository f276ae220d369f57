"""The static steps of CUDA workers over a real model, on the CPU in fp32, against transformers: every bucket and way.

The attention is the CPU reference over the page arrays that a step gathers or is given; everything else is what a graph
would record. Models whose CPU kernels take no padded tokens are compared on a GPU (``tests/gpu/check_logits.py``).
"""

from __future__ import annotations

import copy

import pytest
from denizen.worker.resident.planner import PlanMode
from denizen.worker.teacher import KeptLogits, forced_steps

from tests.models.test_exactness import BOUND, random_ids
from tests.worker.peer import assert_empty
from tests.worker.static_steps import serve_static

WAYS = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_teacher_forced_logits_of_every_step(pairs, way):
    pair = pairs("llama")
    model = copy.copy(pair.model)  # the session's own stays as it is
    kept = KeptLogits(model)
    served = serve_static(model=model, kv_tokens=1024, **WAYS[way])
    seen, worst, positions = set(), 0.0, 0
    for rows in (1, 4, 8):
        texts = [random_ids(30 + 3 * row, seed=90 + row) for row in range(rows)]
        want = [pair.logits(ids) for ids in texts]
        prompts = [len(ids) - 12 - row for row, ids in enumerate(texts)]
        for plan, _, numbers in forced_steps(served, texts, prompts):
            seen.add((plan.walk, served.runner._bucket(plan), plan.graph_slot))
            logits = kept.of(served, plan)
            for row, (entry, number) in enumerate(zip(plan.entries, numbers, strict=True)):
                if entry.samples:
                    expected = want[number][entry.start + entry.count - 1]
                    worst = max(worst, float((logits[row] - expected).abs().max()))
                    positions += 1
        assert_empty(served)
    assert seen == set(served.runner._steps)
    assert positions > 150
    assert worst <= BOUND
