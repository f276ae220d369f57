"""The stub as a process, hosting a model of text and one that hears: what tests of the front end rely on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from denizen.worker.protocol import AsrOptions, Done, Drain, Error, Ready, Submit
from denizen.worker.stub.speech import Ids, language, text

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
