"""P14 to P17 and P21: whatever file comes in, whatever form the answer is asked for in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest
from denizen.bench.quality import normalize

from .hearing import heard, post, verbose
from .sounds import KINDS, RATE, Kind, channels, resample, wav

if TYPE_CHECKING:
    from tests.models.real_whisper import Clip

    from .running import Running

FILES = Path(__file__).parents[2] / "frontend-rs/tests/assets/audio"
SAID = "he was not"
"""In the files of that folder, and what every model hears of it."""


@pytest.fixture(scope="module")
def words(ears: Running, clips: list[Clip]) -> list[str]:
    """Of the clip that the variants are made from."""
    return normalize(heard(ears, clips[4].pcm), "en").split()


def same_words(ears: Running, file: bytes, words: list[str], **fields: Any) -> None:
    assert normalize(heard(ears, file, **fields), "en").split() == words


@pytest.mark.parametrize("kind", KINDS)
def test_p16_samples_of_every_kind(ears: Running, clips: list[Clip], words: list[str], kind: Kind) -> None:
    same_words(ears, wav(clips[4].pcm, kind=kind), words)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_p16_every_rate(ears: Running, clips: list[Clip], words: list[str], rate: int) -> None:
    same_words(ears, wav(resample(clips[4].pcm, rate), rate), words)


@pytest.mark.parametrize(("count", "on"), [(1, None), (2, None), (6, None), (2, [0]), (2, [1]), (6, [2])])
def test_p16_channels(ears: Running, clips: list[Clip], words: list[str], count: int, on: list[int] | None) -> None:
    same_words(ears, wav(channels(clips[4].pcm, count, on=on)), words)


def test_p16_all_at_once(ears: Running, clips: list[Clip], words: list[str]) -> None:
    """Stereo µ-law at 8 kHz, as telephone systems record; 6 channels of 24 bits at 48 kHz, as cameras do."""
    same_words(ears, wav(channels(resample(clips[4].pcm, 8_000), 2), 8_000, "mulaw"), words)
    same_words(ears, wav(channels(resample(clips[4].pcm, 48_000), 6), 48_000, "s24"), words)


@pytest.mark.parametrize(
    "name",
    [
        "speech.wav",
        "speech.flac",
        "cbr.mp3",
        "no-info.mp3",
        "vorbis.ogg",
        "silk.opus",
        "hybrid-60ms.opus",
        "opus.webm",
        "recorder.webm",
        "vorbis.webm",
        "aac.m4a",
        "fragmented.mp4",
        "stream.aac",
        "he.aac",
        "he.m4a",
        "he-v2.m4a",
        "video.mkv",
    ],
)
def test_p17_by_content_whatever_its_name(ears: Running, name: str) -> None:
    content = (FILES / name).read_bytes()
    texts = {heard(ears, content, name=called) for called in (name, "rec.wav", "notes.txt")}
    assert len(texts) == 1
    assert normalize(texts.pop(), "en").startswith(SAID)


def test_p17_a_file_without_a_name(ears: Running) -> None:
    """A part called `file` without a file name is a field: accepted as a file, or refused by its name."""
    response = post(ears, (FILES / "recorder.webm").read_bytes(), name=None)
    if response.status_code == 200:
        assert normalize(response.json()["text"], "en").startswith(SAID)
    else:
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "file"


@pytest.mark.parametrize("name", ["adpcm.wav", "ac3.mp4", "speex.ogg", "silent-film.mp4"])
def test_p17_a_codec_that_is_not_built_in_is_named(ears: Running, name: str) -> None:
    response = post(ears, (FILES / name).read_bytes(), name=name)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "file"
    assert len(error["message"]) > 20


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"RIFF",
        b"not a sound at all, however long it is" * 100,
        wav(np.zeros(0)),
        wav(np.zeros(RATE))[:40],
        wav(np.zeros(4 * RATE))[: 2 * RATE],
    ],
    ids=["nothing", "four bytes", "text", "no samples", "a cut header", "a quarter of what it promises"],
)
def test_broken_files_are_refused_and_harm_nobody(
    ears: Running, words: list[str], clips: list[Clip], content: bytes
) -> None:
    response = post(ears, content)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "file")
    assert "panic" not in error["message"]
    same_words(ears, wav(clips[4].pcm), words)


def test_log_probabilities_through_the_sdk(ears: Running, clips: list[Clip]) -> None:
    """They are of the text's tokens alone, and say what `avg_logprob` of the only segment says."""
    answer = ears.client.audio.transcriptions.create(file=clips[0].file, model=ears.model, include=["logprobs"])
    scored = answer.logprobs
    assert scored
    assert "".join(token.token for token in scored).strip() == answer.text
    assert all(bytes(map(int, token.bytes)).decode() == token.token for token in scored)
    values = [token.logprob for token in scored]
    assert all(value <= 0 for value in values)
    (segment,) = verbose(ears, clips[0].pcm)["segments"]
    # That one counts two times and the end besides, of which the model is sure.
    assert abs(np.mean(values) - segment["avg_logprob"]) < 0.1
    with ears.client.audio.transcriptions.with_streaming_response.create(
        file=clips[0].file, model=ears.model, include=["logprobs"], stream=True
    ) as response:
        seen = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in seen] == ["transcript.text.delta", "transcript.text.done"]
    for event in seen:
        assert [token["logprob"] for token in event["logprobs"]] == pytest.approx(values, abs=1e-5)


def test_p14_verbose_json_through_the_sdk(ears: Running, clips: list[Clip]) -> None:
    answer = ears.client.audio.transcriptions.create(
        file=clips[0].file, model=ears.model, response_format="verbose_json"
    )
    assert answer.language == "english"
    assert float(answer.duration) == pytest.approx(len(clips[0].pcm) / RATE, abs=0.01)
    assert answer.segments
    assert "".join(segment.text for segment in answer.segments).strip() == answer.text
    for number, segment in enumerate(answer.segments):
        assert segment.id == number
        assert segment.avg_logprob < 0
        assert 0 <= segment.no_speech_prob <= 1
        assert segment.compression_ratio > 0.3
        assert segment.temperature == 0
        assert segment.tokens
        assert segment.seek == 0
    raw = verbose(ears, clips[0].pcm)
    assert raw["task"] == "transcribe"
    assert "words" not in raw


@pytest.mark.parametrize("key", ["timestamp_granularities[]", "timestamp_granularities"])
def test_p15_granularities_in_every_spelling(ears: Running, clips: list[Clip], key: str) -> None:
    file = wav(clips[4].pcm)

    def ask(*values: str) -> dict[str, Any]:
        response = post(ears, file, response_format="verbose_json", **{key: list(values)})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    word, segment, both = ask("word"), ask("segment"), ask("word", "segment")
    assert word["words"]
    assert segment["segments"]
    assert "words" not in segment
    assert both["words"] == word["words"]
    assert both["segments"]


def test_p15_a_granularity_that_does_not_exist_or_does_not_fit(ears: Running, clips: list[Clip]) -> None:
    file = wav(clips[4].pcm)
    for fields in (
        {"response_format": "verbose_json", "timestamp_granularities[]": "sentence"},
        {"response_format": "json", "timestamp_granularities[]": "word"},
    ):
        response = post(ears, file, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "timestamp_granularities"


@pytest.mark.parametrize(
    ("kind", "content_type", "pattern"),
    [
        ("text", "text/plain; charset=utf-8", r"\A[^\n{}]+\n\Z"),
        ("srt", "application/x-subrip; charset=utf-8", r"\A1\n00:00:00,\d{3} --> 00:00:0\d,\d{3}\n[^\n]+\n"),
        ("vtt", "text/vtt; charset=utf-8", r"\AWEBVTT\n\n00:00:00\.\d{3} --> 00:00:0\d\.\d{3}\n[^\n]+\n"),
        ("json", "application/json", r'\A\{"text":'),
    ],
)
def test_p21_each_format_has_its_own_type_and_body(
    ears: Running, clips: list[Clip], words: list[str], kind: str, content_type: str, pattern: str
) -> None:
    response = post(ears, wav(clips[4].pcm), response_format=kind)
    assert response.status_code == 200
    assert response.headers["content-type"] == content_type
    assert re.search(pattern, response.text), response.text
    if kind == "text":
        assert normalize(response.text, "en").split() == words


def test_a_stream_is_the_transcript_in_pieces(ears: Running, clips: list[Clip]) -> None:
    whole = heard(ears, clips[0].pcm)
    stream = ears.client.audio.transcriptions.create(file=clips[0].file, model=ears.model, stream=True)
    seen = list(stream)
    assert {event.type for event in seen[:-1]} == {"transcript.text.delta"}
    assert seen[-1].type == "transcript.text.done"
    assert seen[-1].text == whole
    assert "".join(event.delta for event in seen[:-1]) == whole


@pytest.mark.parametrize("language", ["en", "English", "EN"])
def test_a_language_by_code_or_name(ears: Running, clips: list[Clip], words: list[str], language: str) -> None:
    same_words(ears, wav(clips[4].pcm), words, language=language)


def test_a_language_that_nobody_speaks_is_refused(ears: Running, clips: list[Clip]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ears.client.audio.transcriptions.create(file=clips[4].file, model=ears.model, language="klingon")
    assert caught.value.param == "language"


@pytest.mark.parametrize("tokens", [1, 223, 224, 225, 2000])
def test_p20_prompts_of_any_length(ears: Running, clips: list[Clip], tokens: int) -> None:
    """The last 224 tokens are kept; the transcript is neither cut nor lost."""
    text = heard(ears, clips[1].pcm, prompt=("Kubernetes, etcd, " * tokens)[: 6 * tokens])
    assert normalize(text, "en").startswith(SAID)
    assert "young man" in text.lower()
