"""Requests with audio through the whole worker: the answers of a model that knows no rows, whatever the schedule."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from denizen.worker.asr import AsrOptions
from denizen.worker.protocol import Done
from denizen.worker.resident.planner import PlanMode
from denizen.worker.teacher import teacher_forced

from tests.worker.hearing import HearingModel, serve_hearing, sound
from tests.worker.peer import Peer, assert_empty, generate
from tests.worker.static_steps import serve_static
from tests.worker.toy import serve_toy

STOP = 42
OPTIONS = [
    AsrOptions(),
    AsrOptions(timestamps=False),
    AsrOptions(detect=True),
    AsrOptions(detect=True, forced=(7, 11, 12), words=True),
    AsrOptions(words=True),
    AsrOptions(timestamps=False, detect=True, forced=(9,)),
]
#: ids, audio, options, max_tokens
REQUESTS = [
    ([(5 * number + 3 * at) % 97 for at in range(2 + (7 * number) % 11)] + [1], sound(number, 1 + (13 * number) % 40),
     OPTIONS[number % len(OPTIONS)], 9 + (5 * number) % 12)
    for number in range(14)
]  # fmt: skip
RUNNERS = {"eager": serve_toy, "static": serve_static}
WAYS = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
    "preempting": {"kv_tokens": 40},
    "one row": {"max_rows": 1},
    "large pages": {"page_size": 32},
}


@functools.cache
def expected():
    model = HearingModel()
    return [model.transcript(*request, STOP) for request in REQUESTS]


def answers(served, *, overlap: bool = True, **more):
    peer = Peer([served], overlap=overlap)
    submit_all(peer, **more)  # all are there when the engine starts, so that they run together
    with peer:
        outcomes = peer.finish()
    assert_empty(served)
    return outcomes


def submit_all(peer, requests=REQUESTS, first: int = 1, **more) -> None:
    for number, (ids, audio, options, max_tokens) in enumerate(requests):
        peer.submit(
            first + number,
            ids,
            max_tokens,
            model="hearing",
            audio=audio.tobytes(),
            asr=options,
            stop_ids=[STOP],
            **more,
        )


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_answers_equal_those_of_the_dense_model(runner, way, overlap):
    served = serve_hearing(RUNNERS[runner], **WAYS[way])
    for outcome, answer, request in zip(answers(served, overlap=overlap), expected(), REQUESTS, strict=True):
        assert isinstance(outcome.end, Done), outcome.end
        assert outcome.tokens == answer.tokens
        assert outcome.end.reason == ("stop" if answer.tokens[-1] == STOP else "length")
        assert outcome.end.completion == len(answer.tokens)
        got = outcome.end.asr
        assert got.no_speech == pytest.approx(answer.no_speech, abs=1e-5)
        assert got.avg_logprob == pytest.approx(answer.avg_logprob, abs=1e-4)
        if request[2].words:
            assert got.times == pytest.approx(answer.times, abs=2e-2)
        else:
            assert got.times is None
    if way == "preempting":
        assert served.scheduler.preemptions


def test_the_answers_depend_on_what_is_asked():
    """Without which all of the above would hold of a model that ignores its audio and its rules."""
    model = HearingModel()
    ends = [answer.tokens[-1] == STOP for answer in expected()]
    assert any(ends)
    assert not all(ends)
    ids, audio, options, _ = REQUESTS[4]
    plain = model.transcript(ids, audio, options, 8, None)
    other = model.transcript(ids, audio + 1, options, 8, None)
    assert plain.tokens != other.tokens
    assert plain.no_speech != pytest.approx(other.no_speech, abs=1e-3)
    assert plain.times != other.times
    assert plain.tokens != model.transcript(ids, audio, AsrOptions(timestamps=False), 8, None).tokens
    assert [token % 2 for token in plain.tokens] == [0, 1] * 4
    detected = model.transcript(ids, audio, OPTIONS[3], 8, None).tokens
    assert detected[0] >= 90
    assert detected[1:4] == [7, 11, 12]


def test_the_judge_tells_right_from_wrong():
    """Who compares answers in bf16 asks it how far a token is from the best."""
    model = HearingModel()
    for request, answer in zip(REQUESTS[:6], expected(), strict=False):
        same, off = model.judged(*request[:3], answer.tokens, STOP)
        assert (same, off) == (answer, 0.0)
        place = len(answer.tokens) - 2
        wrong = [*answer.tokens[:place], (answer.tokens[place] + 2) % 97, *answer.tokens[place + 1 :]]
        assert model.judged(*request[:3], wrong, STOP)[1] > 0.2


def test_draws_do_not_depend_on_the_runner():
    results = []
    for serve in RUNNERS.values():
        outcomes = answers(serve_hearing(serve), temperature=0.7, seed=5, top_k=20)
        results.append([(outcome.tokens, round(outcome.end.asr.avg_logprob, 4)) for outcome in outcomes])
    assert results[0] == results[1]
    assert [tokens for tokens, _ in results[0]] != [answer.tokens for answer in expected()]


@pytest.mark.parametrize("runner", RUNNERS)
def test_log_probabilities_that_were_asked_for_are_those_under_the_rules(runner):
    outcomes = answers(serve_hearing(RUNNERS[runner]), logprobs=2)
    for outcome, (_, _, options, _) in zip(outcomes, REQUESTS, strict=True):
        scores = [row.logprob for row in outcome.rows]
        assert scores[: options.given] == pytest.approx([0.0] * options.given, abs=1e-6)
        if outcome.end.reason == "length":
            scores = scores[options.given :]
            assert outcome.end.asr.avg_logprob == pytest.approx(sum(scores) / (len(scores) + 1), abs=1e-4)


@pytest.mark.parametrize("runner", RUNNERS)
def test_teacher_forcing_hears(runner):
    served = serve_hearing(RUNNERS[runner])
    model = served.model
    sequences = [[3, 4, 5, 6, 7, 8], [9, 8, 7], [20] * 12]
    audio = [sound(number, 40) for number in range(3)]
    for ids, samples, got in zip(sequences, audio, teacher_forced(served, sequences, [4, 3, 5], audio), strict=True):
        key, value = model.heard_context(torch.from_numpy(samples)[None])
        dense = model._over(ids, key, value) @ model._head.double()
        torch.testing.assert_close(got.double(), dense, atol=2e-5, rtol=0)


def test_steps_have_as_many_rows_as_a_bucket_and_prompts_are_whole():
    """A row that pads a step of windows costs as much as one that is heard."""
    model = HearingModel()
    model.prefill_rows = (1, 3)
    served = serve_hearing(serve_static, model=model)
    steps = []
    plan_prefill = served.scheduler.plan_prefill

    def watched():
        plan = plan_prefill()
        if plan is not None:
            steps.append(plan)
        return plan

    served.scheduler.plan_prefill = watched
    answers(served)
    assert {len(plan.requests) for plan in steps} == {1, 3}
    for plan in steps:
        assert plan.starts.tolist() == [0] * len(plan.requests)
        assert plan.advance.counts.tolist() == [len(request.tokens) for request in plan.requests]
    assert set(model.heard) == {1, 3}
    assert sum(model.heard) == sum(len(plan.requests) for plan in steps) == len(REQUESTS)


def test_audio_of_earlier_rows_is_gone_from_a_shared_slot():
    """Symptom: the tail of a longer clip behind a shorter one, since a slot's staging is used again."""
    served = serve_hearing(serve_static, max_rows=1)
    long, short = np.full(40, 3.0, np.float32), np.full(5, 0.1, np.float32)
    for audio in (long, short, long, short, short):
        with Peer([served]) as peer:
            peer.submit(1, [3, 1], 6, model="hearing", audio=audio.tobytes())
            tokens = peer.finish()[0].tokens
        assert tokens == served.model.transcript([3, 1], audio, AsrOptions(), 6, None).tokens


@pytest.mark.parametrize("overlap", [True, False])
def test_text_and_audio_in_one_worker(overlap):
    prompts = [[number, 5, 9] for number in range(6)]
    alone = generate(serve_toy(), prompts, 40)
    hearing, text = serve_hearing(), serve_toy()
    with Peer([hearing, text], overlap=overlap) as peer:
        submit_all(peer, first=101)
        for number, ids in enumerate(prompts):
            peer.submit(number + 1, ids, 40)
        outcomes = peer.finish()
    assert_empty(hearing)
    assert_empty(text)
    assert [outcome.tokens for outcome in outcomes[: len(REQUESTS)]] == [answer.tokens for answer in expected()]
    assert [outcome.tokens for outcome in outcomes[len(REQUESTS) :]] == alone
    assert all(outcome.end.asr is None for outcome in outcomes[len(REQUESTS) :])
    assert not text.scheduler.ledger.scores.any()
