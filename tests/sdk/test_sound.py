"""Audio on its way in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from denizen.shm import BadRequest, DenizenError, Segment, Spoken, Transcript, TranscriptChunk, Usage, Word, pcm

from .fake import CHUNK, RESULT, FakeServer, Heard

if TYPE_CHECKING:
    from .conftest import Fakes

LEFT, RIGHT = np.linspace(-1, 1, 100, dtype=np.float32), np.linspace(1, 0, 100, dtype=np.float32)
MEAN = (LEFT + RIGHT) / 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (LEFT, LEFT),
        (LEFT[None], LEFT),
        (LEFT[:, None], LEFT),
        (np.stack([LEFT, RIGHT]), MEAN),
        (np.stack([LEFT, RIGHT], axis=1), MEAN),
        (LEFT[::3], LEFT[::3]),
        (np.array([-32768, 0, 16384], np.int16), np.array([-1, 0, 0.5], np.float32)),
        (np.array([[-32768] * 9, [32767] * 9], np.int16), np.full(9, -0.5 / 32768, np.float32)),
        (np.array([0.5], np.float32), np.array([0.5], np.float32)),
        (np.array([[0.5]], np.float32), np.array([0.5], np.float32)),
    ],
)
def test_anything_that_is_sound_becomes_one_channel(given: Any, expected: Any) -> None:
    one = pcm.mono(given)
    assert (one.dtype, one.ndim, one.flags.c_contiguous) == (np.float32, 1, True)
    np.testing.assert_allclose(one, expected, atol=1e-7)


def test_mono_float32_is_not_copied() -> None:
    assert pcm.mono(LEFT) is LEFT or np.shares_memory(pcm.mono(LEFT), LEFT)
    assert np.shares_memory(pcm.mono(LEFT[None]), LEFT) or pcm.mono(LEFT[None]).size == LEFT.size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0.0, 0.1], "must be a NumPy array, not list"),
        (LEFT.astype(np.float64), "float32 .* or int16, not float64"),
        (LEFT.astype(">f4"), "not >f4"),
        (np.zeros(3, np.int32), "not int32"),
        (np.zeros(3, np.uint8), "not uint8"),
        (np.zeros(3, bool), "not bool"),
        (np.zeros(0, np.float32), "is empty"),
        (np.zeros((2, 0), np.float32), "is empty"),
        (np.zeros((), np.float32), r"shape \(\)"),
        (np.zeros((9, 100), np.float32), "at most 8 channels"),
        (np.zeros((4, 4), np.float32), "at most 8 channels"),
        (np.zeros((2, 2, 100), np.float32), r"shape \(2, 2, 100\)"),
    ],
)
def test_what_is_no_sound_is_refused(fakes: Fakes, given: Any, message: str) -> None:
    server = fakes.server()
    with fakes.client(server) as client, pytest.raises(BadRequest, match=message) as raised:
        client.transcribe(given, 16000)
    assert raised.value.param == "pcm"
    assert not [heard for heard in server.heard if heard.kind == 33]


@pytest.mark.parametrize("rate", ["16000", 16000.5, None, 0, -16000, 1 << 40])
def test_a_rate_is_a_whole_number(fakes: Fakes, rate: Any) -> None:
    with fakes.client(fakes.server()) as client, pytest.raises(BadRequest, match="'rate' must be a whole number"):
        client.transcribe(LEFT, rate)


SEGMENT = {"id": 1, "seek": 0, "start": 0.5, "end": 2.0, "text": " hello", "tokens": [5, 6], "avg_logprob": -0.25}
WORDS = [{"word": "hello", "start": 0.5, "end": 0.75}]


def test_a_transcript_is_typed(fakes: Fakes) -> None:
    result = {
        "task": "transcribe",
        "language": "english",
        "duration": 2.5,
        "text": "hello",
        "segments": [SEGMENT],
        "words": WORDS,
    }
    server = fakes.server(lambda server, heard: server.say(RESULT, heard.request, {"result": result}))
    with fakes.client(server) as client:
        answer = client.transcribe(LEFT, np.int64(16000), language="en", timestamp_granularities=["word", "segment"])
        client.transcribe(LEFT, 16000, translate=True)
    segment = Segment(0.5, 2.0, " hello", 1, 0, (5, 6), avg_logprob=-0.25)
    assert answer == Transcript("hello", "english", 2.5, (segment,), (Word(0.5, 0.75, "hello"),))
    first, second = server.calls(2)
    assert (first.endpoint, second.endpoint) == ("audio.transcriptions", "audio.translations")
    assert first.body["rate"] == 16000
    assert first.attachment == LEFT.tobytes()
    assert first.parameters == {
        "model": "ears",
        "language": "en",
        "timestamp_granularities": ["word", "segment"],
        "response_format": "verbose_json",
    }


def test_subtitles_are_text(fakes: Fakes) -> None:
    server = fakes.server(lambda server, heard: server.say(RESULT, heard.request, {"result": "WEBVTT\n"}))
    with fakes.client(server) as client:
        assert client.transcribe(LEFT, 16000, response_format="vtt") == Transcript("WEBVTT\n")
    assert server.calls()[0].parameters["response_format"] == "vtt"


@pytest.mark.parametrize("samples", [1, 16_384, 16_385, 500_000])
def test_long_audio_travels_in_parts(fakes: Fakes, samples: int) -> None:
    """A part of the fake is 64 KiB, 16,384 samples."""
    sound = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    result = {"text": "", "segments": []}
    server = fakes.server(lambda server, heard: server.say(RESULT, heard.request, {"result": result}))
    with fakes.client(server) as client:
        client.transcribe(sound, 16000)
        client.transcribe(sound, 16000, prompt="x" * 200_000)
    first, second = server.calls(2)
    assert first.audio == sound.tobytes()
    assert second.audio == sound.tobytes()
    assert second.parameters["prompt"] == "x" * 200_000


def test_a_streamed_transcript(fakes: Fakes) -> None:
    def answer(server: FakeServer, heard: Heard) -> None:
        server.say(CHUNK, heard.request, {"text": "hello", "segments": [SEGMENT], "words": WORDS})
        server.say(CHUNK, heard.request, {"text": " again"})
        server.say(RESULT, heard.request, {"result": {"text": "hello again"}})

    with fakes.client(fakes.server(answer)) as client:
        stream = client.transcribe(LEFT, 16000, stream=True)
        chunks = list(stream)
    assert [chunk.text for chunk in chunks] == ["hello", " again"]
    assert chunks[0] == TranscriptChunk("hello", (Segment.read(SEGMENT),), (Word(0.5, 0.75, "hello"),))
    assert stream.result() == Transcript("hello again")


def test_speech_comes_as_arrays(fakes: Fakes) -> None:
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}

    def answer(server: FakeServer, heard: Heard) -> None:
        server.say(CHUNK, heard.request, {"index": 0, "rate": 24000}, LEFT.tobytes())
        server.say(CHUNK, heard.request, {"index": 1, "rate": 24000}, RIGHT.tobytes())
        server.say(
            RESULT, heard.request, {"result": {"rate": 24000, "samples": 200, "finish_reason": "stop", "usage": usage}}
        )

    server = fakes.server(answer)
    with fakes.client(server) as client:
        speech = client.speak("hello", voice="anna", speed=1.5)
        assert speech.sample_rate == 24000
        arrays = list(speech)
        assert speech.sample_rate == 24000
    assert [array.dtype for array in arrays] == [np.float32, np.float32]
    np.testing.assert_array_equal(np.concatenate(arrays), np.concatenate([LEFT, RIGHT]))
    assert not arrays[0].flags.writeable
    assert speech.result() == Spoken(24000, 200, Usage(3, 2), "stop")
    (call,) = server.calls()
    assert call.endpoint == "audio.speech"
    assert call.parameters == {"model": "voice", "input": "hello", "voice": "anna", "speed": 1.5, "stream": True}


def test_no_sound_at_all_still_has_a_rate(fakes: Fakes) -> None:
    result = {"rate": 24000, "samples": 0}
    with fakes.client(
        fakes.server(lambda server, heard: server.say(RESULT, heard.request, {"result": result}))
    ) as client:
        speech = client.speak("…")
        assert speech.sample_rate == 24000
        assert list(speech) == []


def test_samples_that_are_cut_are_an_error(fakes: Fakes) -> None:
    server = fakes.server(lambda server, heard: server.say(CHUNK, heard.request, {}, b"12345"))
    with fakes.client(server) as client, pytest.raises(DenizenError, match="CHUNK cannot be read"):
        next(client.speak("x"))
