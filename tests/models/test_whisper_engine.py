"""Whisper through the whole worker: the transcripts of transformers, whatever the schedule; scores and word times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from denizen.worker.asr import AsrOptions
from denizen.worker.protocol import Done, Error
from denizen.worker.resident.planner import PlanMode
from denizen.worker.teacher import teacher_forced

from tests.models.speech import ENGLISH, NO_TIMESTAMPS, START, TRANSCRIBE, Pair, SpeechHarness, build_tiny, sound
from tests.models.test_whisper import BOUND
from tests.worker.peer import Peer, assert_empty
from tests.worker.static_steps import serve_static
from tests.worker.toy import serve_toy

if TYPE_CHECKING:
    import numpy as np

#: Of the encoder: windows of 2.4 s, whose context ends within a page.
POSITIONS = 120
TOKENS = 24
DETECT = AsrOptions(detect=True, forced=(TRANSCRIBE,), words=True)
RUNNERS = {"eager": serve_toy, "static": serve_static}
WAYS = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
    "preempting": {"kv_tokens": 90},
    "one row": {"max_rows": 1},
}


@dataclass(frozen=True)
class Window:
    pcm: np.ndarray
    prompt: list[int]
    options: AsrOptions


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    no_speech: float
    scores: list[float]
    times: list[float]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Pair:
    return Pair.load(build_tiny(tmp_path_factory.mktemp("whisper"), positions=POSITIONS))


@pytest.fixture(scope="module")
def windows() -> list[Window]:
    """Of all lengths, with texts before them of all lengths, in every mode."""
    made = []
    for index in range(7):
        before = [50361, *range(300, 300 + 9 * index)] if index % 2 else []
        language = ENGLISH + index
        prompt, options = [
            ([language, TRANSCRIBE], AsrOptions(words=index == 3)),
            ([language, TRANSCRIBE, NO_TIMESTAMPS], AsrOptions(timestamps=False, words=True)),
            ([], DETECT),
        ][index % 3]
        made.append(Window(sound(0.3 + 0.35 * index, index), [*before, START, *prompt], options))
    return made


@pytest.fixture(scope="module")
def answers(tiny, windows) -> list[Answer]:
    """Each window alone, without an engine; where the language is given, what transformers generates."""
    out = []
    for window in windows:
        harness = SpeechHarness(tiny.model)
        row = harness.admit(window.pcm, window.prompt, window.options)
        (tokens,) = harness.transcribe([row], TOKENS)
        if not window.options.detect:
            timestamps = window.options.timestamps
            assert tokens == tiny.greedy(window.pcm, window.prompt, TOKENS, timestamps=timestamps)
        times = tiny.model.align(row.speech, harness.caches(row)) if window.options.words else []
        out.append(Answer(tokens, row.no_speech, row.scores, times))
    assert len({token for answer in out for token in answer.tokens}) > 60
    assert len({answer.tokens[0] for answer in out if answer.tokens[0] > NO_TIMESTAMPS}) > 1
    return out


def serve(tiny, runner: str, **options):
    return RUNNERS[runner](model=tiny.model, name="whisper", **{"prefill_chunk": 256, "max_rows": 6} | options)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_answers_do_not_depend_on_the_schedule(tiny, windows, answers, runner, way, overlap):
    served = serve(tiny, runner, **WAYS[way])
    peer = Peer([served], overlap=overlap)
    for number, window in enumerate(windows):
        peer.submit(
            number + 1,
            window.prompt,
            TOKENS,
            model="whisper",
            audio=window.pcm.tobytes(),
            asr=window.options,
            stop_ids=[tiny.model.ids.end],
        )
    with peer:
        outcomes = peer.finish()
    assert_empty(served)
    for outcome, answer, window in zip(outcomes, answers, windows, strict=True):
        assert isinstance(outcome.end, Done), outcome.end
        assert outcome.tokens == answer.tokens
        got = outcome.end.asr
        assert got.no_speech == pytest.approx(answer.no_speech, rel=1e-3)
        scores = answer.scores[window.options.given :]
        ended = outcome.end.reason == "stop"
        assert got.avg_logprob == pytest.approx(sum(scores) / (len(scores) + (not ended)), abs=1e-4)
        if window.options.words:
            assert got.times == pytest.approx(answer.times, abs=0.021)
    assert (served.scheduler.preemptions > 0) == (way == "preempting")


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("resident", [True, False])
def test_teacher_forced_logits_through_the_scheduler(tiny, runner, resident):
    """Texts of different lengths, forced from anywhere, each beside a window of its own."""
    heard = [sound(0.4 + 0.9 * number, 60 + number) for number in range(3)]
    texts = [[START, *torch.randint(0, 50000, (length,), generator=torch.Generator().manual_seed(length)).tolist()]
             for length in (5, 33, 80)]  # fmt: skip
    served = serve(tiny, runner, resident=resident)
    for prompts in ([len(ids) for ids in texts], [1, 20, 64]):
        for logits, ids, pcm in zip(teacher_forced(served, texts, prompts, heard), texts, heard, strict=True):
            expected = tiny.logits(pcm, ids)
            assert expected.std() > 0.3
            assert (logits - expected).abs().max() <= BOUND


def test_prompts_and_options_that_do_not_fit_are_refused(tiny, windows):
    served = serve(tiny, "eager")
    peer = Peer([served])
    audio = windows[0].pcm.tobytes()
    cases = [
        ([ENGLISH, TRANSCRIBE], AsrOptions(), "ids"),
        ([START, ENGLISH, TRANSCRIBE], AsrOptions(timestamps=False), "ids"),
        ([START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS], AsrOptions(), "ids"),
        ([START, ENGLISH], AsrOptions(detect=True), "ids"),
    ]
    with peer:
        for number, (ids, options, _) in enumerate(cases):
            peer.submit(number + 1, ids, 4, model="whisper", audio=audio, asr=options)
        outcomes = peer.finish()
    for outcome, (_, _, param) in zip(outcomes, cases, strict=True):
        assert isinstance(outcome.end, Error)
        assert outcome.end.code == "invalid_request"
        assert outcome.end.param == param
    assert_empty(served)
