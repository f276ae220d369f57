"""Requests with audio that are wrong, aborted, or fail: one clear answer each, nothing left behind, others unharmed."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from denizen.worker import capacity
from denizen.worker.asr import AsrOptions
from denizen.worker.channel import Channel
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.errors import CapacityError, ModelError
from denizen.worker.models.base import RowInput, Walk
from denizen.worker.protocol import Abort, Done, Drain, Error, encode
from denizen.worker.served import ServedModel
from denizen.worker.tts import TtsOptions

from tests.worker.hearing import HearingModel, serve_hearing, sound
from tests.worker.peer import Full, Peer, QueueArena, TooLarge, assert_empty
from tests.worker.static_steps import serve_static
from tests.worker.toy import CPU, ToyModel, serve_toy

AUDIO = sound(1, 20).tobytes()
WORDS = AsrOptions(words=True)


def _with(value: float) -> bytes:
    samples = np.zeros(9, np.float32)
    samples[4] = value
    return samples.tobytes()


REFUSED = {
    "no audio": ({"audio": None}, "file", "there is no audio"),
    "empty audio": ({"audio": b""}, "file", "there is no audio"),
    "odd size": ({"audio": AUDIO[:-1]}, "file", "79 bytes are no f32 samples"),
    "too long": ({"audio": bytes(4 * 41)}, "file", "41 samples of audio; at most 40 fit"),
    "NaN": ({"audio": _with(np.nan)}, "file", "not finite"),
    "infinite": ({"audio": _with(-np.inf)}, "file", "not finite"),
    "deafening": ({"audio": _with(1e20)}, "file", "scale it to -1..1"),
    "long prompt": ({"ids": [1] * 65}, "ids", "the decoder's prompt has 65 ids; at most 64 fit"),
    "beyond the context": ({"max_tokens": 119}, "max_tokens", "together at most 120 fit"),
    "repetition": ({"repetition_penalty": 1.5}, "repetition_penalty", "leave it out"),
    "presence": ({"presence_penalty": 0.5}, "presence_penalty", "leave it out"),
    "frequency": ({"frequency_penalty": 0.5}, "frequency_penalty", "leave it out"),
    "scored prompt": ({"prompt_logprobs": 0}, "prompt_logprobs", "leave it out"),
    "forced alone": ({"asr": AsrOptions(forced=(1,))}, "asr", "needs asr.detect"),
    "many forced": ({"asr": AsrOptions(detect=True, forced=(1,) * 9)}, "asr", "at most 8"),
    "unknown forced": ({"asr": AsrOptions(detect=True, forced=(97,))}, "asr", "below 97"),
    "the model's own check": ({"ids": [1, 2], "asr": AsrOptions(detect=True)}, "asr", "must end with 1"),
    "audio for text": ({"model": "toy", "asr": None}, "file", "takes no audio"),
    "asr for text": ({"model": "toy", "audio": None}, "asr", "reads text"),
    "tts for text": ({"model": "toy", "audio": None, "asr": None, "tts": TtsOptions()}, "tts", "models that speak"),
    "tts for hearing": ({"tts": TtsOptions()}, "tts", "models that speak"),
}


@pytest.fixture(scope="module")
def both():
    """A worker with both kinds of model."""
    hearing, text = serve_hearing(), serve_toy()
    with Peer([hearing, text]) as peer:
        yield peer
    assert_empty(hearing)
    assert_empty(text)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named_and_hurts_nobody(both, case):
    changed, param, message = REFUSED[case]
    options = {"ids": [3, 1], "max_tokens": 5, "model": "hearing", "audio": AUDIO, "asr": AsrOptions(), **changed}
    first = 10 * list(REFUSED).index(case) + 1
    both.submit(first, [3, 1], 5, model="hearing", audio=AUDIO)
    both.submit(first + 1, options.pop("ids"), options.pop("max_tokens"), **options)
    good, refused = both.finish(first, first + 1)
    assert isinstance(refused.end, Error)
    assert refused.end.param == param
    assert message in refused.end.message
    assert not refused.end.retryable
    assert refused.rows == []
    assert good.tokens == both.models[0].model.transcript([3, 1], sound(1, 20), AsrOptions(), 5, None).tokens


def test_the_longest_prompt_and_audio_fit(both):
    ids = [3] * 63 + [1]
    both.submit(1001, ids, 56, model="hearing", audio=sound(2, 40).tobytes(), asr=WORDS)
    outcome = both.finish(1001)[0]
    assert outcome.tokens == both.models[0].model.transcript(ids, sound(2, 40), WORDS, 56, None).tokens


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode", "align"])
@pytest.mark.parametrize("serve", [serve_toy, serve_static])
def test_abort_in_every_phase_gives_everything_back(serve, phase, overlap):
    """Pages of both pools, rows and state slots; a request that waits gets them, and its own answer."""
    gate, reached = threading.Event(), threading.Event()
    model = HearingModel()
    served = serve_hearing(serve, model=model, max_rows=1)
    at = "prefill" if phase == "queued" else phase
    forward, align = model.forward, model.align

    def wait(now: str) -> None:
        if now == at and not gate.is_set():
            reached.set()
            assert gate.wait(60)

    def gated_forward(batch):
        wait(batch.walk)
        return forward(batch)

    def gated_align(*arguments):
        wait("align")
        return align(*arguments)

    model.forward, model.align = gated_forward, gated_align
    answer = model.transcript([5, 1], sound(2, 30), WORDS, 9, None)
    with Peer([served], overlap=overlap) as peer:
        peer.submit(1, [3, 1], 12, model="hearing", audio=AUDIO, asr=WORDS)
        peer.submit(2, [5, 1], 9, model="hearing", audio=sound(2, 30).tobytes(), asr=WORDS)
        peer.until(reached.is_set)
        target = 2 if phase == "queued" else 1
        peer.abort(target)
        if phase == "align":  # at once, though its pages are still being read
            assert peer.finish(1)[0].end.reason == "abort"
            assert served.scheduler.rows.used == 1
        gate.set()
        aborted = peer.finish(target)[0]
        assert aborted.end.reason == "abort"
        assert aborted.end.asr is None
        if phase == "align":
            assert len(aborted.rows) == 12
        other = peer.finish(3 - target)[0]
        assert isinstance(other.end, Done)
        if phase != "queued":
            assert other.tokens == answer.tokens
            assert other.end.asr.times == pytest.approx(answer.times, abs=2e-2)
    assert_empty(served)


@pytest.mark.parametrize("overlap", [True, False])
def test_other_rows_go_on_while_words_are_aligned(overlap):
    gate, model = threading.Event(), HearingModel()
    served = serve_hearing(model=model, max_rows=2)
    align, held, blocked = model.align, [], []

    def gated(speech, caches):
        blocked.append(peer.arena.blocking)
        held.append({key: cache.pages.tolist() for key, cache in caches.items()})
        assert gate.wait(60)
        return align(speech, caches)

    model.align = gated
    with Peer([served], overlap=overlap) as peer:
        peer.engine.stats.due_ms = lambda: None  # nothing but what is asserted here wakes the engine
        peer.submit(1, [3, 1], 8, model="hearing", audio=AUDIO, asr=WORDS)
        peer.until(lambda: held)
        for number in range(2, 6):
            peer.submit(number, [number, 1], 30, model="hearing", audio=sound(number, 30).tobytes())
        for number, outcome in zip(range(2, 6), peer.finish(2, 3, 4, 5), strict=True):
            answer = model.transcript([number, 1], sound(number, 30), AsrOptions(), 30, None)
            assert outcome.tokens == answer.tokens
        assert peer.outcomes[1].end is None
        assert len(peer.outcomes[1].rows) == 8  # its tokens did not wait for their times
        scheduler = served.scheduler
        assert scheduler.rows.used == 1
        assert {key: pool.used for key, pool in scheduler.kv.items()} == {k: len(own) for k, own in held[0].items()}
        peer.until(lambda: peer.arena.blocking > blocked[0])  # it sleeps, and does not spin
        gate.set()
        answer = model.transcript([3, 1], sound(1, 20), WORDS, 8, None)
        assert peer.finish(1)[0].end.asr.times == pytest.approx(answer.times, abs=2e-2)
    assert_empty(served)


@pytest.mark.parametrize("end", ["drain", "stop"])
def test_an_engine_that_ends_lets_words_be_aligned(end):
    """DRAIN waits for them, without spinning; a stop does not leave a thread that reads pages behind."""
    gate, reached, model = threading.Event(), threading.Event(), HearingModel()
    served = serve_hearing(model=model)
    align = model.align

    def gated(*arguments):
        reached.set()
        assert gate.wait(60)
        return align(*arguments)

    model.align = gated
    before = set(threading.enumerate())
    with Peer([served]) as peer:
        peer.submit(1, [3, 1], 6, model="hearing", audio=AUDIO, asr=WORDS)
        peer.until(reached.is_set)
        if end == "drain":
            blocked = peer.arena.blocking
            peer.send(Drain())
            peer.until(lambda: peer.arena.blocking > blocked + 1)
        else:
            peer.engine.stop("enough")
        gate.set()
        peer.until(lambda: peer.bye is not None)
        if end == "drain":
            assert len(peer.finish(1)[0].end.asr.times) == 7
            assert_empty(served)
    assert set(threading.enumerate()) <= before


def test_an_alignment_that_fails_fails_its_request_alone():
    model = HearingModel()
    served = serve_hearing(model=model)
    align, calls = model.align, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("out of tune")
        return align(*arguments)

    model.align = failing
    with Peer([served]) as peer:
        for number in (1, 2):
            peer.submit(number, [3, 1], 6, model="hearing", audio=AUDIO, asr=WORDS)
            peer.finish(number)
        failed, good = peer.finish()
    assert (failed.end.code, failed.end.retryable) == ("step_failed", True)
    assert "out of tune" in failed.end.message
    assert len(good.end.asr.times) == 7
    assert_empty(served)


def test_a_prefill_that_fails_fails_its_windows_alone():
    model = HearingModel()
    served = serve_hearing(model=model)
    listen, calls = model.heard_context, []

    def failing(audio):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("deaf")
        return listen(audio)

    model.heard_context = failing
    with Peer([served]) as peer:
        for number in (1, 2, 3):
            peer.submit(number, [3, 1], 6, model="hearing", audio=AUDIO)
        outcomes = peer.finish()
    assert [type(outcome.end) for outcome in outcomes].count(Error) == 1
    assert_empty(served)


def test_attachments_reach_the_envelope_that_they_came_with():
    arena = QueueArena()
    arena.put(encode(Abort(), request=1), b"one")
    arena.put(encode(Abort(), request=2))
    arena.put(b"\xc1", b"lost")
    arena.put(encode(Abort(), request=3), b"three")
    received = Channel(arena, Full, TooLarge).receive(0)
    assert [getattr(item, "attachment", "malformed") for item in received] == [b"one", None, "malformed", b"three"]


def test_inputs_elsewhere_than_in_prefill_are_refused():
    model = HearingModel()
    model.walks = {
        **model.walks,
        "decode": Walk("decode", {"context": 0, "self": 1}, inputs=model.walks["prefill"].inputs),
    }
    with pytest.raises(ModelError, match="walk 'decode'"):
        serve_hearing(model=model)
    text = ToyModel()
    text.walks["prefill"] = Walk("prefill", {"self": -1}, inputs={"audio": RowInput((1,), torch.float32)})
    with pytest.raises(ModelError, match="kind 'asr'"):
        serve_toy(text)


def test_rows_that_are_not_asked_for_fit_the_memory(monkeypatch):
    """A row's own context can be tens of megabytes: 64 rows are many, and some are better than none."""
    model = HearingModel()
    # Pages of 4: 3 of the context at 3 heads x 4, 30 of the tokens at 1 x 8, keys and values in fp32; 8 words of state.
    row = 3 * (2 * 4 * 12 * 4) + 30 * (2 * 4 * 8 * 4) + 32

    def build(memory: int, rows: int | None = None) -> ServedModel:
        monkeypatch.setattr(capacity, "available_bytes", lambda device: memory)
        limits, pools = SchedulerConfig(rows, None, 16), PoolConfig(4)
        return ServedModel.build("m", model, CPU, torch.float32, pools, limits, EngineConfig())

    plenty = build(1 << 30)
    assert (plenty.ready().rows, plenty.ready().kv_tokens, plenty.ready().kind) == (64, 64 * 120, "asr")
    some = build(int(10.5 * row / 0.3))
    assert some.ready().rows == 10
    assert 9 * 120 < some.ready().kv_tokens <= 10 * 120
    assert some.scheduler.kv["context"].capacity == 10 * 3
    assert build(1 << 30, rows=100).ready().rows == 100
    with pytest.raises(CapacityError, match="max_rows"):
        build(row // 8)


def test_phases_and_stats_of_requests_with_audio():
    served = serve_hearing()
    with Peer([served]) as peer:
        peer.submit(1, [3, 1, 1], 6, model="hearing", audio=AUDIO, asr=WORDS)
        peer.finish()
        peer.until(lambda: peer.stats and peer.stats[-1].rows == 0)
        stats = peer.stats[-1]
        assert (stats.prefill_tokens, stats.decode_tokens) == (3, 5)
        assert (stats.kv_pages, stats.state_slots) == (0, 0)
    assert peer.arena.phases[-1] == 4
    assert {2, 3, 4} <= set(peer.arena.phases)


@pytest.mark.parametrize("serve", [serve_toy, serve_static])
def test_random_loads_leave_nothing_behind_and_every_answer_right(serve):
    """Aborts at any time among preemptions and alignments, beside a model of text; rows and pages are few."""
    chance = random.Random(11)
    hearing, text = serve_hearing(serve, kv_tokens=40, max_rows=4), serve_toy(max_rows=2)
    model, asked = hearing.model, {}
    with Peer([hearing, text]) as peer:
        for number in range(1, 121):
            if number % 5 == 0:
                peer.submit(number, [number % 97, 3], chance.randint(1, 30))
            else:
                options = AsrOptions(chance.random() < 0.5, words=chance.random() < 0.5)
                ids, pcm, max_tokens = (
                    [chance.randrange(97), 1],
                    sound(number, chance.randint(1, 40)),
                    chance.randint(1, 30),
                )
                asked[number] = ids, pcm, options, max_tokens
                peer.submit(number, ids, max_tokens, model="hearing", audio=pcm.tobytes(), asr=options, stop_ids=[42])
            if chance.random() < 0.4:
                peer.abort(max(1, number - int(chance.expovariate(0.5))))
            if chance.random() < 0.3:
                chosen = chance.randint(1, number)
                peer.until(lambda chosen=chosen: peer.outcomes[chosen].rows or peer.outcomes[chosen].end)
        peer.finish()
        outcomes = peer.outcomes
    assert_empty(hearing)
    assert_empty(text)
    reasons = [outcome.end.reason for outcome in outcomes.values()]
    assert all(reasons.count(reason) > 5 for reason in ("abort", "stop", "length"))
    for number, request in asked.items():
        outcome, answer = outcomes[number], model.transcript(*request, 42)
        assert outcome.tokens == answer.tokens[: len(outcome.tokens)]
        if outcome.end.reason != "abort":
            assert outcome.tokens == answer.tokens
            assert outcome.end.asr.avg_logprob == pytest.approx(answer.avg_logprob, abs=1e-4)
            assert outcome.end.asr.times is None or outcome.end.asr.times == pytest.approx(answer.times, abs=2e-2)
