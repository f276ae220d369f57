"""Decode and prefill steps in queues of their own: whatever the order in which they complete, the tokens are the same,
nothing waits for what it does not need, and nothing is given back that a step in flight may use."""

from __future__ import annotations

import random

import numpy as np
import pytest
from denizen.worker.protocol import Done, Error
from denizen.worker.request import Phase, Request
from denizen.worker.resident.planner import PlanMode
from denizen.worker.sampling.params import SamplingParams

from tests.worker.peer import Peer, assert_empty, generate
from tests.worker.streams import on_streams
from tests.worker.test_engine import MIXED, OUTPUTS, PROMPTS
from tests.worker.toy import ToyModel, serve_toy

VARIANTS = {
    "plain": {},
    "small chunks": {"prefill_chunk": 3},
    "preempting": {"kv_tokens": 72},
    "preempting, small chunks": {"kv_tokens": 72, "prefill_chunk": 5},
    "host planned": {"resident": False},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "padded buckets": {"buckets": [2, 5, 8]},
    "one row": {"max_rows": 1},
    "pages of one": {"page_size": 1},
}


@pytest.fixture(scope="module")
def greedy():
    return generate(serve_toy(), PROMPTS, OUTPUTS)


@pytest.fixture(scope="module")
def sampled():
    return generate(serve_toy(), PROMPTS, OUTPUTS, **MIXED)


def _by_chance(served, seed: int):
    """A device whose streams move on when they are looked at, or not."""
    chance = random.Random(seed)
    streams = on_streams(served)

    def move(flight) -> None:
        for walk in chance.sample(["decode", "prefill"], 2):
            while chance.random() < 0.3 and streams.advance(walk):
                pass

    streams.polled = streams.waited = move
    return streams


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_do_not_depend_on_the_order_in_which_the_walks_complete(variant, overlap, greedy, sampled):
    for seed in range(2):
        served = serve_toy(**VARIANTS[variant])
        _by_chance(served, seed)
        assert generate(served, PROMPTS, OUTPUTS, overlap=overlap) == greedy
        assert generate(served, PROMPTS, OUTPUTS, overlap=overlap, **MIXED) == sampled
        if "kv_tokens" in VARIANTS[variant]:
            assert served.scheduler.preemptions > 2


def test_a_prefill_that_arrives_late_does_not_stall_decode(greedy):
    served = serve_toy()
    streams = on_streams(served)
    with Peer([served]) as peer:
        peer.submit(1, PROMPTS[0], 300)
        peer.until(lambda: peer.outcomes[1].rows)
        peer.submit(2, PROMPTS[1], OUTPUTS)
        peer.submit(3, PROMPTS[3], OUTPUTS)
        peer.until(lambda: len(peer.outcomes[1].rows) == 300)  # nobody let the prefill run meanwhile
        two, three = peer.finish(2, 3)
        assert (two.tokens, three.tokens) == (greedy[1], greedy[3])
        peer.finish(1)
    # Two steps were in its queue all the time, for the graph slots that there are, and no more.
    first = next(i for i, plan in enumerate(streams.launched) if plan.walk == "prefill" and plan.requests[0].id == 2)
    walks = [plan.walk for plan in streams.launched[first:]]
    assert walks[:150].count("prefill") == 2
    assert_empty(served)


def test_a_row_joins_after_its_prefill_was_handled_and_at_once():
    served = serve_toy()
    streams = on_streams(served)
    with Peer([served]) as peer:
        peer.submit(1, PROMPTS[0], 400)
        peer.until(lambda: len(peer.outcomes[1].rows) > 3)
        peer.submit(2, PROMPTS[4], 5)
        peer.until(lambda: streams.queues["prefill"])
        assert all(plan.walk == "prefill" for plan in streams.launched if any(r.id == 2 for r in plan.requests))
        streams.polled = lambda flight: streams.advance("prefill")
        peer.finish(2)
        peer.abort(1)
    prefill, *steps = [(i, plan) for i, plan in enumerate(streams.launched) if any(r.id == 2 for r in plan.requests)]
    assert prefill[1].walk == "prefill"
    assert [plan.walk for _, plan in steps] == ["decode"] * 4  # the first token was the prefill's
    assert_empty(served)


@pytest.mark.parametrize("aborted", ["before it arrives", "after it has arrived"])
@pytest.mark.parametrize("chunk", [64, 7])
def test_an_abort_while_the_prefill_is_in_flight(aborted, chunk, greedy):
    """In either order. What the request holds goes back when no step can touch it any more; its token is dropped."""
    served = serve_toy(prefill_chunk=chunk)
    streams = on_streams(served)
    scheduler = served.scheduler
    with Peer([served]) as peer:
        peer.submit(1, PROMPTS[0], 400)
        peer.until(lambda: len(peer.outcomes[1].rows) > 3)
        peer.submit(2, PROMPTS[3], OUTPUTS)
        steps = 1 if chunk == 64 else 2
        peer.until(lambda: len(streams.queues["prefill"]) == steps)
        assert scheduler.rows.used == 2
        if aborted == "after it has arrived":
            streams.polled = lambda flight: streams.advance("prefill")
            peer.abort(2)
            outcome = peer.finish(2)[0]
        else:
            peer.abort(2)
            outcome = peer.finish(2)[0]
            seen = len(peer.outcomes[1].rows)
            peer.until(lambda: len(peer.outcomes[1].rows) > seen + 5)
            assert scheduler.rows.used == 2, "freed while a step may still write"
            assert not outcome.rows
            streams.polled = lambda flight: streams.advance("prefill")
        assert outcome.end.reason == "abort"
        peer.until(lambda: scheduler.rows.used == 1)
        peer.submit(3, PROMPTS[3], OUTPUTS)
        assert peer.finish(3)[0].tokens == greedy[3]
        peer.abort(1)
    assert_empty(served)


def test_a_prefill_that_fails_ends_its_requests_and_the_others_decode_on(greedy):
    model = ToyModel()
    served = serve_toy(model, prefill_chunk=7)
    streams = on_streams(served)
    with Peer([served]) as peer:
        peer.submit(1, PROMPTS[0], OUTPUTS)
        peer.until(lambda: len(peer.outcomes[1].rows) > 3)
        peer.submit(2, PROMPTS[3], OUTPUTS)
        peer.until(lambda: len(streams.queues["prefill"]) == 2)
        forward = model.forward

        def failing(batch):
            if batch.walk == "prefill":
                model.forward = forward
                raise RuntimeError("toy failure")
            return forward(batch)

        model.forward = failing
        one, two = peer.finish()
        assert isinstance(two.end, Error)
        assert two.end.code == "step_failed"
        assert isinstance(one.end, Done)
        assert one.tokens == greedy[0]
    assert_empty(served)


def _request(id: int, prompt: int, max_tokens: int = 20) -> Request:
    return Request(id, np.full(prompt, id, np.int32), SamplingParams(), max_tokens)


def _run(scheduler, plan) -> None:
    """Completes a step; every token is 1."""
    scheduler.complete(plan)
    for request in plan.sampling:
        if request.phase is not Phase.ENDED and request.accept(1) is not None:
            scheduler.end(request)


def _committed(scheduler, plan):
    assert plan is not None
    scheduler.commit(plan)
    return plan


def _running(scheduler, request) -> None:
    scheduler.submit(request)
    while request not in scheduler.decodable():
        _run(scheduler, _committed(scheduler, scheduler.plan_prefill()))


def test_holdings_are_free_when_nothing_is_in_flight_and_not_before():
    """Symptom: pages given away because a later step of the other walk has completed."""
    served = serve_toy(prefill_chunk=4, kv_tokens=64)
    scheduler = served.scheduler
    old, new = _request(1, 4), _request(2, 8)
    _running(scheduler, old)
    scheduler.submit(new)
    chunks = [_committed(scheduler, scheduler.plan_prefill()) for _ in range(2)]
    decodes = [_committed(scheduler, scheduler.plan_decode()) for _ in range(2)]
    assert [plan.requests for plan in (*chunks, *decodes)] == [[new], [new], [old], [old]]
    used = scheduler.kv["self"].used
    scheduler.end(new)
    for plan in decodes:  # newer than the chunks, and they complete first
        _run(scheduler, plan)
        assert scheduler.kv["self"].used == used
    _run(scheduler, chunks[0])
    assert scheduler.kv["self"].used == used
    assert scheduler.rows.used == 2
    _run(scheduler, chunks[1])
    assert scheduler.rows.used == 1
    assert scheduler.kv["self"].used == len(old.held.pages["self"])
    scheduler.end(old)
    assert_empty(served)


def test_chunks_of_a_prompt_follow_each_other_and_the_row_decodes_after_the_last():
    served = serve_toy(prefill_chunk=4)
    scheduler = served.scheduler
    request = _request(1, 10)
    scheduler.submit(request)
    chunks = [_committed(scheduler, scheduler.plan_prefill()) for _ in range(3)]
    assert [plan.starts.tolist() for plan in chunks] == [[0], [4], [8]]
    for plan in chunks:
        assert scheduler.plan_decode() is None
        _run(scheduler, plan)
    assert scheduler.plan_decode() is not None
    assert len(request.outputs) == 1


def test_a_preemption_with_the_prefill_in_flight():
    """The youngest gives up everything while its prefill runs; its token still counts, and it is computed anew."""
    served = serve_toy(kv_tokens=20, max_rows=2)  # five pages
    scheduler = served.scheduler
    old, young = _request(1, 6), _request(2, 3, 3)
    old.max_tokens = 14
    _running(scheduler, old)
    scheduler.submit(young)
    prefill = _committed(scheduler, scheduler.plan_prefill())
    assert prefill.requests == [young]
    while not scheduler.preemptions:
        plan = scheduler.plan_decode()
        if plan is not None:
            _run(scheduler, _committed(scheduler, plan))
    assert young.phase is Phase.WAITING
    assert plan is None, "the page that the old one needs is still the young one's"
    assert scheduler.leaving
    assert scheduler.plan_prefill() is None
    _run(scheduler, prefill)
    assert young.outputs == [1]
    assert young not in scheduler.decodable()
    assert not scheduler.leaving
    while old.phase is not Phase.ENDED:
        _run(scheduler, _committed(scheduler, scheduler.plan_decode()))
    again = _committed(scheduler, scheduler.plan_prefill())
    assert again.advance.counts.tolist() == [4]  # prompt and the token that it had
    _run(scheduler, again)
    _run(scheduler, _committed(scheduler, scheduler.plan_decode()))
    assert young.phase is Phase.ENDED
    assert young.outputs == [1, 1, 1]
    assert_empty(served)


def test_a_preempted_request_is_not_admitted_again_while_its_prefill_is_in_flight():
    """Symptom: it has a row and pages anew, and the old step's token makes it decode there, uncomputed."""
    served = serve_toy(kv_tokens=20, max_rows=2)
    scheduler = served.scheduler
    old, young = _request(1, 6, 14), _request(2, 3, 3)
    _running(scheduler, old)
    scheduler.submit(young)
    prefill = _committed(scheduler, scheduler.plan_prefill())
    while not scheduler.preemptions:
        plan = scheduler.plan_decode()
        if plan is not None:
            _run(scheduler, _committed(scheduler, plan))
    scheduler.end(old)
    assert scheduler.kv["self"].free >= 2, "there must be room"
    assert scheduler.plan_prefill() is None
    _run(scheduler, prefill)
    while young.phase is not Phase.ENDED:
        _run(scheduler, _committed(scheduler, scheduler.plan_decode() or scheduler.plan_prefill()))
    assert young.outputs == [1, 1, 1]
    assert_empty(served)


def test_a_prompt_that_gives_its_only_token_never_decodes():
    served = serve_toy()
    scheduler = served.scheduler
    request = _request(1, 5, 1)
    scheduler.submit(request)
    plan = _committed(scheduler, scheduler.plan_prefill())
    assert plan.ends == [0]
    scheduler.complete(plan)
    assert scheduler.plan_decode() is None
    assert request.accept(1) == "length"
    scheduler.end(request)
    assert_empty(served)
