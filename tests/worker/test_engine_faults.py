"""Aborts, failures, backpressure and ends of the step loop: exact terminals, nothing left behind, others unharmed."""

from __future__ import annotations

import itertools
import threading

import pytest
from denizen.worker.protocol import Done, Error

from tests.worker.peer import Peer, assert_empty, generate
from tests.worker.test_engine import OUTPUTS, PROMPTS
from tests.worker.toy import ToyModel, serve_toy


def run(prompts, max_tokens: int) -> list[list[int]]:
    return generate(serve_toy(), prompts, max_tokens)


@pytest.fixture(scope="module")
def greedy():
    return run(PROMPTS, OUTPUTS)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode", "just admitted", "twice", "unknown"])
def test_abort_in_every_phase_gives_everything_back(phase, overlap):
    gate = threading.Event()
    model = ToyModel()
    served = serve_toy(model, max_rows=1, prefill_chunk=4, overlap=overlap)
    forward, calls = model.forward, itertools.count(1)

    def gated(batch):
        if next(calls) == {"queued": 1, "prefill": 2, "just admitted": 1}.get(phase, 6):
            reached.set()
            assert gate.wait(60)
        return forward(batch)

    reached = threading.Event()
    model.forward = gated
    target = 2 if phase == "queued" else 1
    with Peer([served], overlap=overlap) as peer:
        peer.submit(1, [5] * 13, 400 if phase != "queued" else 5)
        if phase == "queued":
            peer.submit(2, [6] * 3, 400)
        peer.submit(3, [7] * 3, 5)
        peer.until(reached.is_set)
        at_abort = model.calls
        if phase == "unknown":
            peer.abort(99)
        peer.abort(target)
        if phase == "twice":
            peer.abort(target)
        gate.set()
        outcome = peer.finish(target)[0]
        assert outcome.end.reason == "abort"
        # The step that ran, and at most the one queued behind it, came before the abort could take effect.
        assert len(outcome.rows) <= 12
        # Five more steps are request 3's, which may have run by now.
        assert model.calls - at_abort <= 3 + 5 + 2 * (phase == "queued") * 8
        assert isinstance(peer.finish(3)[0].end, Done)
    assert_empty(served)


def test_abort_racing_completion_gives_exactly_one_terminal():
    """Symptom: abort lost or answered twice when it meets the end of the request."""
    served = serve_toy()
    with Peer([served]) as peer:
        for request in range(1, 301):
            peer.submit(request, [request % 97], 1 + request % 3)
            if request % 2:
                peer.abort(request)
            if request % 5 == 0:
                peer.finish(request)
                peer.abort(request)
        outcomes = peer.finish()
    assert {outcome.end.reason for outcome in outcomes} == {"abort", "length"}
    assert_empty(served)


def test_a_failed_step_ends_its_rows_and_nobody_else():
    model = ToyModel()
    served = serve_toy(model)
    expected = run([PROMPTS[4]], 5)
    with Peer([served]) as peer:
        model.fail_at = 6
        peer.submit(1, PROMPTS[0], 50)
        peer.submit(2, PROMPTS[1], 50)
        for outcome in peer.finish(1, 2):
            assert isinstance(outcome.end, Error)
            assert outcome.end.code == "step_failed"
            assert outcome.end.retryable
            assert "toy failure" in outcome.end.message
        peer.submit(3, PROMPTS[4], 5)
        assert peer.finish(3)[0].tokens == expected[0]
    assert_empty(served)


def test_requests_that_cannot_run_are_refused_with_the_parameter():
    served = serve_toy(kv_tokens=100, max_context=90)
    with Peer([served]) as peer:
        peer.submit(1, [1] * 80, 11)
        peer.submit(2, [1], 5, model="other")
        peer.submit(3, [97], 5)
        peer.submit(4, [1], 5, top_p=7.0)
        peer.submit(5, [1] * 80, 10)
        outcomes = peer.finish()
        assert [getattr(o.end, "param", None) for o in outcomes] == ["max_tokens", "model", "ids", "top_p", None]
        assert outcomes[0].end.code == "context_length_exceeded"
        assert "90" in outcomes[0].end.message
        assert len(outcomes[4].tokens) == 10
    assert_empty(served)


def test_an_idle_engine_sleeps_in_recv_and_tells_its_phase_and_stats():
    """Symptom: a core at 100 % while idle."""
    served = serve_toy()
    with Peer([served]) as peer:
        peer.submit(1, PROMPTS[0], 5)
        peer.finish()
        peer.until(lambda: peer.stats and not peer.stats[-1].running and peer.stats[-1].decode_tokens)
        last = peer.stats[-1]
        assert (last.rows, last.kv_pages, last.state_slots, last.waiting) == (0, 0, 0, 0)
        assert last.rows_total == 8
        assert last.prefill_tokens == len(PROMPTS[0])
        assert last.decode_tokens >= 4
        blocked = peer.arena.blocking
        steps = peer.engine.stats.steps
        peer.submit(2, PROMPTS[0], 5)
        peer.finish(2)
        peer.until(lambda: peer.stats[-1].decode_tokens > last.decode_tokens and not peer.stats[-1].running)
        assert peer.arena.blocking - blocked <= 3
        assert peer.engine.stats.steps - steps <= 7
        assert {2, 3, 4} <= set(peer.arena.phases)
        assert peer.arena.phases[-1] == 4


def test_a_front_end_that_stands_still_does_not_stop_the_engine_or_lose_tokens(greedy):
    with Peer([serve_toy()]) as peer:
        peer.arena.room = 1
        for index, ids in enumerate(PROMPTS[:4]):
            peer.submit(index + 1, ids, OUTPUTS)
        deadline = threading.Event()
        while peer.engine.channel.backlog < 10:
            deadline.wait(0.005)
            assert peer.thread.is_alive()
        assert [outcome.tokens for outcome in peer.finish()] == greedy[:4]


def test_a_result_larger_than_the_arena_fails_its_request_alone():
    with Peer([serve_toy()]) as peer:
        peer.arena.largest = 400
        peer.submit(1, PROMPTS[3], 3, prompt_logprobs=5)
        peer.submit(2, PROMPTS[3], 3)
        one, two = peer.finish()
    assert isinstance(one.end, Error)
    assert (one.end.code, one.end.param) == ("result_too_large", "prompt_logprobs")
    assert len(two.tokens) == 3


def test_a_front_end_that_goes_away_ends_the_engine():
    peer = Peer([serve_toy()])
    peer.thread.start()
    peer.submit(1, PROMPTS[0], 400)
    peer.until(lambda: peer.outcomes[1].rows)
    with peer.arena.changed:
        peer.arena.gone = True
        peer.arena.changed.notify_all()
    peer.thread.join(60)
    assert not peer.thread.is_alive()
    assert type(peer.failure).__name__ == "PeerGone"


def test_drain_finishes_what_runs_and_says_goodbye():
    with Peer([serve_toy()]) as peer:
        peer.submit(1, PROMPTS[0], 40)
    assert peer.bye is not None
    assert peer.bye.why == "drained"
    assert len(peer.outcomes[1].tokens) == 40
