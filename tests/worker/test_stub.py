"""The stub as a process, hosting a model of text and one that hears: what tests of the front end rely on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from denizen.worker.protocol import Abort, AsrOptions, Done, Drain, Error, Ready, Submit, TtsOptions
from denizen.worker.stub.options import Speech
from denizen.worker.stub.speech import Ids, language, text
from denizen.worker.stub.tone import pitch

from tests.worker.test_process import Worker

IDS = {"eos_token_id": 300, "no_timestamps_token_id": 310, "lang_to_id": {"<|de|>": 303, "<|en|>": 302, "<|fr|>": 304}}
READ = Ids(300, 310, (302, 303, 304))
RATE = 16_000


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Configs of both models; the stub reads nothing else."""
    hearing, reading = tmp_path_factory.mktemp("hearing"), tmp_path_factory.mktemp("reading")
    config = {"architectures": ["WhisperForConditionalGeneration"], "vocab_size": 1900, "max_target_positions": 448}
    (hearing / "config.json").write_text(json.dumps(config))
    (hearing / "generation_config.json").write_text(json.dumps(IDS))
    (reading / "config.json").write_text(json.dumps({"vocab_size": 256, "max_position_embeddings": 4096}))
    return [{"name": "hearing", "path": str(hearing)}, {"name": "reading", "path": str(reading)}]


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, int(RATE * seconds)).astype("<f4")


def at(seconds: float) -> int:
    return 311 + round(seconds / 0.02)


def transcribe(models, windows, **options):
    """``windows``: ids, samples, what else SUBMIT has. Returns tokens and terminal of each."""
    with Worker(module="denizen.worker.stub", models=models, stub=options) as worker:
        ready = worker.body(Ready)
        assert [(model.kind, model.family, model.context) for model in ready.models] == [
            ("asr", "whisper", 448),
            ("text", "stub", 4096),
        ]
        for number, (ids, pcm, more) in enumerate(windows, 1):
            body = Submit("hearing", ids, 200, **{"stop_ids": [300], "temperature": 0.0, **more})
            worker.send(body, number, None if pcm is None else pcm.tobytes())
        worker.until(lambda: len(worker.ended) == len(windows))
        worker.send(Drain())
        assert worker.exit_code() == 0
        return [(worker.tokens.get(number, []), worker.ended[number]) for number in range(1, len(windows) + 1)]


def test_the_stub_transcribes(models):
    prompt, short, long = [301, 302, 306], noise(4.2), noise(21, seed=1)
    detect = AsrOptions(detect=True, forced=[306, 310], timestamps=False)
    (one, done), (two, _), (three, end), (four, words), (five, _), (none, silent), (_, refused) = transcribe(
        models,
        [
            (prompt, short, {}),
            (prompt, long, {}),
            ([301], short, {"asr": detect}),
            (prompt, short, {"asr": AsrOptions(words=True)}),
            ([305, 40, *prompt], short, {"asr": AsrOptions(timestamps=False)}),
            (prompt, np.zeros(RATE, "<f4"), {}),
            (prompt, None, {}),
        ],
    )
    letters = text(np.array(prompt), short)
    assert len(letters) == 9
    assert one == [at(0), *letters, at(4.2)]
    assert (done.reason, done.stop_id, done.completion) == ("stop", 300, 12)
    assert (done.asr.no_speech, done.asr.avg_logprob, done.asr.times) == (pytest.approx(0.01), -0.25, None)
    half = text(np.array(prompt), long)
    assert two == [at(0), *half[:21], at(10.5), at(10.5), *half[21:], at(21)]
    assert three == [language(short, READ), 306, 310, *text(np.array([301]), short)]
    assert end.asr is not None
    assert four == one
    assert words.asr.times == pytest.approx([4.2 * index / 9 for index in range(10)], abs=1e-5)
    assert five == text(np.array([305, 40, *prompt]), short) != letters
    assert (none, silent.asr.no_speech) == ([], pytest.approx(0.9))
    assert isinstance(refused, Error)
    assert refused.param == "file"


def test_the_stub_doubts_and_ends_within_a_segment(models):
    full = noise(30)
    windows = [([301], full, {"temperature": temperature, "asr": AsrOptions()}) for temperature in (0.0, 0.2, 0.4)]
    answers = transcribe(models, windows, doubt=0.4, unfinished=True)
    assert [done.asr.avg_logprob for _, done in answers] == [-2.0, -2.0, -0.25]
    assert all(isinstance(done, Done) for _, done in answers)
    assert [token for token in answers[0][0] if token > 310] == [at(0), at(15), at(15)]


def test_the_stub_speaks(models):
    ids = [72, 105, 33]
    asked = {
        1: Submit("reading", ids, 100, tts=TtsOptions("low")),
        2: Submit("reading", ids, 100, tts=TtsOptions("high", language="de", instructions="Whisper.", speed=2.0)),
        3: Submit("reading", ids, 2),
    }
    with Worker(module="denizen.worker.stub", models=models, stub={"speech": {"sample_rate": 16_000}}) as worker:
        ready = worker.body(Ready)
        assert [(model.kind, model.sample_rate, tuple(model.voices)) for model in ready.models] == [
            ("asr", 0, ()),
            ("tts", 16_000, ("low", "high")),
        ]
        for number, submit in asked.items():
            worker.send(submit, number)
        worker.until(lambda: len(worker.ended) == len(asked))
        for number, (voice, length, frames, reason) in {
            1: (0, 1280, 3, "stop"),
            2: (1, 640, 3, "stop"),
            3: (0, 1280, 2, "length"),
        }.items():
            chunks = worker.audio[number]
            assert [(chunk.index, chunk.samples) for chunk, _ in chunks] == [(n, length) for n in range(frames)]
            said = np.frombuffer(b"".join(data for _, data in chunks), "<f4")
            hertz = pitch(np.array(ids), voice)
            tone = 0.25 * np.sin(2 * np.pi * hertz * np.arange(frames * length) / 16_000)
            np.testing.assert_allclose(said, tone, atol=1e-5)
            done = worker.ended[number]
            assert (done.reason, done.completion, done.samples, done.prompt) == (reason, frames, frames * length, 3)
        assert not worker.tokens
        worker.send(Drain())
        assert worker.exit_code() == 0


def test_what_the_stub_cannot_say_is_refused(models):
    refused = {
        1: (Submit("reading", [1], 9, tts=TtsOptions("nobody")), None, "voice"),
        2: (Submit("reading", [1], 9, tts=TtsOptions("low", speed=5.0)), None, "speed"),
        3: (Submit("reading", [1], 9, tts=TtsOptions("low")), b"1234", "file"),
        4: (Submit("reading", [1], 9, tts=TtsOptions("low"), asr=AsrOptions()), None, "file"),
        5: (Submit("hearing", [301], 9, tts=TtsOptions("low")), noise(1).tobytes(), "tts"),
    }
    with Worker(module="denizen.worker.stub", models=models, stub={"speech": {}}) as worker:
        worker.body(Ready)
        for number, (submit, attachment, _) in refused.items():
            worker.send(submit, number, attachment)
        worker.until(lambda: len(worker.ended) == len(refused))
        for number, (_, _, param) in refused.items():
            error = worker.ended[number]
            assert isinstance(error, Error), number
            assert (error.code, error.param) == ("invalid_request", param), number


def test_speech_that_is_aborted_says_what_was_sent(models):
    with Worker(module="denizen.worker.stub", models=models, stub={"speech": {}, "step_ms": 2}) as worker:
        worker.body(Ready)
        worker.send(Submit("reading", [7] * 2000, 2000, tts=TtsOptions("low")), 1)
        worker.until(lambda: len(worker.audio.get(1, [])) > 2)
        worker.send(Abort(), 1)
        worker.until(lambda: 1 in worker.ended)
        done, sent = worker.ended[1], len(worker.audio[1])
        assert (done.reason, done.completion, done.samples) == ("abort", sent, sent * 1920)


@pytest.mark.parametrize("wrong", [{"voices": []}, {"sample_rate": 0}, {"token_ms": 0}])
def test_speech_options_must_make_sense(wrong):
    with pytest.raises(ValueError, match="speech"):
        Speech.of(wrong)
