"""The CUDA worker's ways of running, and a request among others: the same tokens, as far as rounding allows.

Where the same kernels run over the same batches, tokens are equal. Where batches differ, they are judged: every one
must be what its request asks for under fp32 transformers' logits, within the bound.
"""

from __future__ import annotations

from denizen.worker.resident.planner import PlanMode
from gpu_models import serve
from worker_support import (
    Peer,
    assert_close_tokens,
    assert_empty,
    assert_follows,
    checkpoint,
    generate,
    shared,
    texts,
)

KIND = "qwen3_5"
SMALL = {"rows": 16, "chunk": 128}
PROMPTS = [*texts(9, 1, 60, 5), *texts(3, 200, 400, 6)]
COUNT = len(PROMPTS)
MIXED = {
    "temperature": [0.0, 1.0, 0.7, 0.0, 1.3, 0.9] * (COUNT // 6),
    "seed": list(range(COUNT)),
    "top_k": [0, 0, 10, 0, 0, 0] * (COUNT // 6),
    "top_p": [1.0, 1.0, 0.9, 1.0, 0.8, 1.0] * (COUNT // 6),
    "presence_penalty": [0.0, 0.0, 0.0, 1.5, 0.0, 0.5] * (COUNT // 6),
    "repetition_penalty": [1.0, 1.0, 1.2, 1.0, 1.0, 1.0] * (COUNT // 6),
    "min_tokens": [0, 20, 0, 0, 0, 0] * (COUNT // 6),
    "stop_ids": [(), tuple(range(0, 1000, 40)), (), (), (5,), ()] * (COUNT // 6),
    "logit_bias": [(), (), (), (), ((7, 2.0),), ()] * (COUNT // 6),
}
LOADS = {"greedy": {}, "mixed": MIXED}


def test_graph_and_eager_resident_and_host_planned_are_equal() -> None:
    folder, _ = checkpoint(KIND)
    ways = {
        "lengths only": serve(folder, **SMALL, mode=PlanMode.LENGTHS_ONLY),
        "host planned": serve(folder, **SMALL, resident=False),
        "eager": serve(folder, **SMALL, buckets=[8, 16]),
    }
    ways["eager"].runner._graphs.clear()
    for name, options in LOADS.items():
        want = generate(shared(KIND, **SMALL), PROMPTS, 40, **options)
        assert_follows(KIND, PROMPTS, want, 40, name, **options)
        for way, served in ways.items():
            got = generate(served, PROMPTS, 40, **options)
            unequal = [index for index in range(COUNT) if got[index] != want[index]]
            assert not unequal, f"{name}, {way}: requests {unequal} differ"


def test_overlap_changes_no_token() -> None:
    """Penalties too: counts are the device's, which is never a step late."""
    served = shared(KIND, **SMALL)
    for name, options in LOADS.items():
        both = [generate(served, PROMPTS, 40, overlap=overlap, **options) for overlap in (True, False)]
        assert_close_tokens(*both)
        assert_follows(KIND, PROMPTS, both[1], 40, f"{name}, no overlap", **options)


def test_preempted_requests_get_the_tokens_that_they_asked_for() -> None:
    """Computed anew by prefill instead of decode steps, which round differently: judged. On a CPU tokens are equal."""
    folder, _ = checkpoint(KIND)
    prompts = PROMPTS[:9]
    few = serve(folder, **SMALL, kv_tokens=192, buckets=[8, 16])
    for overlap in (True, False):
        before = few.scheduler.preemptions
        got = generate(few, prompts, 80, overlap=overlap, **MIXED)
        assert few.scheduler.preemptions > before + 2
        assert_follows(KIND, prompts, got, 80, "preempted", **MIXED)


def test_a_seeded_request_alone_in_row_3_of_4_and_beside_unseeded_ones() -> None:
    served = shared(KIND, **SMALL)
    asked = texts(8, 5, 60, 21)
    others = texts(3, 5, 60, 22)
    own = {"temperature": 1.0, "top_p": 0.95, "presence_penalty": 0.5}
    alone, third, beside = [], [], []
    for seed, ids in enumerate(asked):
        alone += generate(served, [ids], 40, seed=seed, **own)
        third.append(generate(served, [*others[:2], ids, others[2]], 40, seed=[90, 91, seed, 92], **own)[2])
        plain = {"temperature": [0.0, 1.0, 0.0, 0.0], "seed": [0, seed, 0, 0], "top_p": [1.0, 0.95, 1.0, 1.0]}
        plain["presence_penalty"] = [0.0, 0.5, 0.0, 0.0]
        beside.append(generate(served, [others[0], ids, *others[1:]], 40, **plain)[1])
    options = {**own, "seed": list(range(len(asked)))}
    for what, tokens in (("alone", alone), ("third of four", third), ("beside unseeded ones", beside)):
        assert_close_tokens(tokens, alone)
        assert_follows(KIND, asked, tokens, 40, what, **options)
    assert len({tuple(tokens) for tokens in alone}) == len(asked)


def test_prompts_at_page_boundaries_with_the_furthest_run_ahead() -> None:
    """Page size 16: prompts and outputs that end just before, at and behind a page's end, all in one batch."""
    served = shared(KIND, **SMALL)
    lengths = [1, *(16 * pages + delta for pages in (1, 2, 8) for delta in (-1, 0, 1))]
    prompts = [texts(1, length, length, length)[0] for length in lengths]
    for tokens in (15, 16, 17, 33):
        both = [generate(served, prompts, tokens, overlap=overlap) for overlap in (True, False)]
        assert_close_tokens(*both)
        assert_follows(KIND, prompts, both[0], tokens, f"{tokens} tokens")


def test_a_request_that_joins_counts_its_penalties_from_its_first_token() -> None:
    served = shared(KIND, **SMALL)
    running, joining = texts(2, 30, 50, 40)
    with Peer([served]) as peer:
        peer.submit(1, running, 300, model=served.name)
        peer.until(lambda: len(peer.outcomes[1].rows) > 10)
        peer.submit(2, joining, 40, model=served.name, presence_penalty=2.0, frequency_penalty=0.3)
        tokens = peer.finish(2)[0].tokens
        peer.abort(1)
        peer.finish(1)
    assert_empty(served)
    assert_follows(KIND, [joining], [tokens], 40, "joining", presence_penalty=2.0, frequency_penalty=0.3)
