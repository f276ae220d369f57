"""The step loop over a toy model: same tokens whatever the schedule, prompt aborts, nothing left behind."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from denizen.worker.request import Request
from denizen.worker.resident.planner import PlanMode
from denizen.worker.sampling.params import SamplingParams

from tests.worker.peer import Peer, assert_empty, generate
from tests.worker.toy import ToyModel, serve_toy

RANDOM = random.Random(3)
PROMPTS = [[RANDOM.randrange(97) for _ in range(length)] for length in (3, 20, 7, 40, 1, 16, 33, 4, 9, 27)]
OUTPUTS = 24

VARIANTS = {
    "no overlap": {"overlap": False},
    "host planned": {"resident": False},
    "host planned, no overlap": {"resident": False, "overlap": False},
    "preempting": {"kv_tokens": 72},
    "preempting, no overlap": {"kv_tokens": 72, "overlap": False},
    "one row": {"max_rows": 1},
    "padded buckets": {"buckets": [2, 5, 8]},
    "one large bucket": {"buckets": [8]},
    "small chunks": {"prefill_chunk": 3},
    "chunks of one": {"prefill_chunk": 1},
    "whole prompts": {"prefill_chunk": 512},
    "pages of one": {"page_size": 1},
    "large pages": {"page_size": 32},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "full plans": {"mode": PlanMode.FULL},
}


def run(prompts=PROMPTS, max_tokens: int = OUTPUTS, variant: dict | None = None, **options) -> list[list[int]]:
    variant = dict(variant or {})
    model = ToyModel(context_pool=options.pop("context_pool", False))
    served = serve_toy(model, **variant)
    tokens = generate(served, prompts, max_tokens, overlap=variant.get("overlap", True), **options)
    if "kv_tokens" in variant:
        assert served.scheduler.preemptions > 2
    return tokens


@pytest.fixture(scope="module")
def greedy():
    tokens = run()
    assert all(len(set(ids)) > 3 for ids in tokens)
    return tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_do_not_depend_on_the_schedule(greedy, variant):
    assert run(variant=VARIANTS[variant]) == greedy


def test_a_request_alone_gives_the_same_tokens(greedy):
    assert [run([ids])[0] for ids in PROMPTS] == greedy


MIXED = {
    "temperature": [0.0, 1.0, 0.7, 1.3, 0.0, 0.9, 1.0, 0.0, 0.8, 1.1],
    "seed": [7 * index + 1 for index in range(10)],
    "top_k": [0, 0, 10, 0, 5, 0, 0, 0, 30, 0],
    "top_p": [1.0, 1.0, 0.9, 0.8, 1.0, 1.0, 0.95, 1.0, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0],
    "presence_penalty": [0.0, 0.0, 1.5, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0],
    "frequency_penalty": [0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "repetition_penalty": [1.0, 1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.2, 1.0],
    "min_tokens": [0, 0, 0, 0, 0, 0, 12, 0, 0, 9],
    "stop_ids": [(), (5,), (), (1, 2, 3), (), (), tuple(range(30)), (), (), tuple(range(25))],
    "logit_bias": [(), (), (), ((4, 3.0),), (), (), (), ((8, 2.0), (9, -5.0)), (), ()],
}


@pytest.fixture(scope="module")
def sampled():
    return run(**MIXED)


@pytest.mark.parametrize("variant", VARIANTS)
def test_draws_penalties_and_biases_do_not_depend_on_the_schedule(sampled, greedy, variant):
    """Seeds beside other seeds, penalties joining plain batches, under overlap and after preemption."""
    assert sampled != greedy
    assert run(variant=VARIANTS[variant], **MIXED) == sampled


def test_min_tokens_delays_the_end(sampled):
    assert len(sampled[6]) >= 13  # 12 that cannot end it, and the end id
    assert len(sampled[9]) >= 10


def test_prompts_at_page_boundaries_with_the_furthest_run_ahead():
    prompts = [[(7 * i) % 97 for i in range(4 * pages + delta)] for pages in (1, 2, 5) for delta in (-1, 0, 1)]
    assert run(prompts, 9, {"max_rows": 9}) == run(prompts, 9, {"max_rows": 9, "overlap": False})


def test_two_pools_bind_their_own_rows_and_a_read_only_pool_stays():
    options = {"context_pool": True}
    expected = run(**options)
    for variant in ("no overlap", "host planned", "lengths only", "padded buckets", "one row"):
        assert run(variant=VARIANTS[variant], **options) == expected
    assert expected != run()


def test_context_length_stays_constant_for_a_thousand_steps():
    model = ToyModel(context=1100, context_pool=True)
    served = serve_toy(model, kv_tokens=2200, max_rows=2, mode=PlanMode.LENGTHS_ONLY)
    seen = set()
    original = served.runner._advance

    def watch(walk, rows, lengths):
        original(walk, rows, lengths)
        if walk == "decode":
            seen.add(int(lengths["context"][0]))

    served.runner._advance = watch
    (tokens,) = generate(served, [[3] * 30], 1000)
    assert len(tokens) == 1000
    assert seen == {30}


def test_padding_reads_a_poisoned_sink_and_null_slot_and_leaves_live_rows_unchanged(greedy):
    """Symptoms: NaN from padding rows in real rows; padding writes into the first usable slot or page."""
    served = serve_toy(buckets=[8], max_rows=8)
    for attention in served.runner.attention.values():
        attention.keys[:, 0] = torch.nan
        attention.values[:, 0] = torch.nan
    for tensors in served.runner.state.values():
        for tensor in tensors.values():
            tensor[:, 0] = torch.nan
    for count in (1, 3, 7):
        assert generate(served, PROMPTS[:count], OUTPUTS) == greedy[:count]


def test_penalties_of_a_joining_request_count_from_its_first_token():
    """Symptom: penalties ignored when a request joins a running batch without them."""
    alone = run([PROMPTS[2]], 40, presence_penalty=2.0)[0]
    served = serve_toy()
    with Peer([served]) as peer:
        peer.submit(1, PROMPTS[0], 200)
        peer.until(lambda: len(peer.outcomes[1].rows) > 10)
        peer.submit(2, PROMPTS[2], 40, presence_penalty=2.0)
        assert peer.finish(2)[0].tokens == alone
        peer.abort(1)
        peer.finish(1)


def test_a_stop_with_a_step_queued_and_the_next_owner_at_once(greedy):
    """The whole loop: the second request fits only when the first has gone, and takes what it held."""
    stop = greedy[1][12]
    served = serve_toy(kv_tokens=64, max_rows=2)
    with Peer([served]) as peer:
        peer.submit(1, PROMPTS[1], OUTPUTS, stop_ids=(stop,))
        peer.submit(2, PROMPTS[3], OUTPUTS)
        one, two = peer.finish()
    assert one.tokens == greedy[1][: greedy[1].index(stop) + 1]
    assert two.tokens == greedy[3]
    assert_empty(served)


def _drive(served, request, steps: int) -> None:
    """Runs a request alone, one step at a time, without an engine."""
    scheduler = served.scheduler
    for _ in range(steps):
        plan = scheduler.plan_decode() or scheduler.plan_prefill()
        scheduler.commit(plan)
        result = served.runner.run(plan)
        scheduler.complete(plan)
        for entry, token in zip([e for e in plan.entries if e.samples], result.tokens.tolist(), strict=True):
            assert entry.request.accept(token) is None
        assert plan.entries[0].request is request


def _owned_bytes(served, request) -> list[bytes]:
    """Keys, values and state that a running request holds on the device, up to its length."""
    runner = served.runner
    length = int(runner.tables.lengths["self"][request.row])
    pages = torch.tensor(request.held.pages["self"])
    kv = [part[0][pages].flatten(0, 1)[:length].numpy().tobytes() for part in (_kv(runner).keys, _kv(runner).values)]
    return [*kv, runner.state["state"]["sum"][0, request.held.state["state"]].numpy().tobytes()]


def _kv(runner):
    return runner.attention["self"]


def test_pages_of_a_stopped_row_are_not_reused_before_its_over_run_step_is_done():
    """Symptom: pages freed while the next step is in flight, a new owner's KV overwritten. Checked by checksum."""
    new = np.asarray(PROMPTS[3], np.int32)
    alone = serve_toy(kv_tokens=64, max_rows=1, prefill_chunk=64)
    reference = Request(1, new, SamplingParams(), 20)
    alone.scheduler.submit(reference)
    _drive(alone, reference, 6)

    served = serve_toy(kv_tokens=64, max_rows=1, prefill_chunk=64)
    scheduler = served.scheduler
    old = Request(1, np.asarray(PROMPTS[1], np.int32), SamplingParams(), 40)
    scheduler.submit(old)
    _drive(served, old, 5)
    running, queued = scheduler.plan_decode(), None
    scheduler.commit(running)
    queued = scheduler.plan_decode()
    scheduler.commit(queued)
    held = set(old.held.pages["self"])
    served.runner.run(running)
    scheduler.complete(running)
    scheduler.end(old)  # its end was in the step that has just completed; the next one is queued
    owner = Request(2, new, SamplingParams(), 20)
    scheduler.submit(owner)
    assert scheduler.plan_prefill() is None, "admitted while the over-run step may still write"
    assert scheduler.kv["self"].used == len(held)
    served.runner.run(queued)
    scheduler.complete(queued)
    _drive(served, owner, 6)
    assert held & set(owner.held.pages["self"]), "the new owner must take the old one's pages"
    assert _owned_bytes(served, owner) == _owned_bytes(alone, reference)
    assert owner.outputs == reference.outputs


def test_rows_freed_and_taken_again_in_every_step_keep_their_owners():
    """Symptom: a row's index recycled, or its table written, while a step reads it."""
    prompts = [[(index * 13 + i) % 97 for i in range(1 + index % 7)] for index in range(60)]
    tokens = run(prompts, 2, {"max_rows": 3})
    assert tokens == [run([ids], 2)[0] for ids in prompts]


def test_two_models_of_one_worker_share_the_device_fairly():
    one = serve_toy(name="one", max_rows=2)
    two = serve_toy(ToyModel(vocab=50, seed=5), name="two", max_rows=2)
    alone = generate(serve_toy(ToyModel(vocab=50, seed=5), name="two", max_rows=2), [[4, 5, 6]], 30)[0]
    with Peer([one, two]) as peer:
        peer.submit(1, PROMPTS[0], 400, model="one")
        peer.until(lambda: len(peer.outcomes[1].rows) > 3)
        before = len(peer.outcomes[1].rows)
        peer.submit(2, [4, 5, 6], 30, model="two")
        assert peer.finish(2)[0].tokens == alone
        # One decode step each an iteration.
        assert 10 < len(peer.outcomes[1].rows) - before < 60
        peer.abort(1)
        peer.finish(1)
    assert_empty(one)
    assert_empty(two)


def test_logprobs_and_prompt_logprobs_match_the_models_distribution():
    from denizen.worker.teacher import teacher_forced

    prompt = PROMPTS[5]
    served = serve_toy(prefill_chunk=5)
    with Peer([served]) as peer:
        peer.submit(1, prompt, 6, logprobs=3, prompt_logprobs=2, temperature=1.0, seed=4)
        peer.submit(2, PROMPTS[1], 6)
        outcome = peer.finish(1)[0]
        peer.finish()
    ids = prompt + outcome.tokens
    reference = torch.log_softmax(teacher_forced(serve_toy(), [ids])[0], -1)
    for index, row in enumerate(outcome.rows):
        expected = reference[len(prompt) + index - 1]
        assert row.logprob == pytest.approx(float(expected[row.token]), abs=1e-4)
        assert [token for token, _ in row.top] == expected.topk(3).indices.tolist()
        assert [score for _, score in row.top] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-4)
    scored = outcome.end.prompt_logprobs
    assert len(scored) == len(prompt)
    assert scored[0] is None
    for position in range(1, len(prompt)):
        logprob, top = scored[position]
        assert logprob == pytest.approx(float(reference[position - 1, prompt[position]]), abs=1e-4)
        assert [token for token, _ in top] == reference[position - 1].topk(2).indices.tolist()


def test_the_end_id_is_counted_but_not_sent():
    plain = run([PROMPTS[0]], 20)[0]
    stop = plain[9]
    with Peer([serve_toy()]) as peer:
        peer.submit(1, PROMPTS[0], 20, stop_ids=(stop,))
        outcome = peer.finish(1)[0]
    cut = plain.index(stop)
    assert [row.token for row in outcome.rows] == plain[:cut]
    assert outcome.end.stop_id == stop
    assert (outcome.end.prompt, outcome.end.completion) == (len(PROMPTS[0]), cut + 1)


def test_teacher_forcing_equals_generation():
    from denizen.worker.teacher import teacher_forced

    tokens = run(PROMPTS[:6], 12)
    sequences = [ids + out for ids, out in zip(PROMPTS, tokens, strict=False)]
    whole = teacher_forced(serve_toy(), sequences)
    for options in ({"prefill_chunk": 5}, {"max_rows": 2}, {"kv_tokens": 56, "page_size": 2}, {"buckets": [8]}):
        lengths = [len(ids) for ids in PROMPTS[:6]]
        served = serve_toy(**options)
        forced = teacher_forced(served, sequences, lengths)
        assert_empty(served)
        for a, b, prompt, out in zip(whole, forced, PROMPTS, tokens, strict=False):
            assert torch.allclose(a, b, atol=1e-4)
            assert a[len(prompt) - 1 : -1].argmax(-1).tolist() == out
