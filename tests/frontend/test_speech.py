"""Speech over real sockets, the arena, and the stub, which says a tone."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import os
import signal
import wave
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest
from denizen.bench.stub_models import write_ears
from denizen.worker.stub.tone import pitch
from tokenizers.pre_tokenizers import ByteLevel

from tests.e2e.calling import Caller
from tests.e2e.waiting import eventually

from .conftest import STUB, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.running import Running

    from .conftest import Stub

PATH = "/v1/audio/speech"
TEXT = "Good morning."
RATE = 24_000
FRAME = RATE * 80 // 1000
"""Samples for each token of the text, and a byte of text is a token."""


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three models side by side: `voice` speaks, `text` continues text, `ears` hears."""
    from tests.e2e.running import Running

    folder = tmp_path_factory.mktemp("speech")
    models = {"voice": write_checkpoint, "text": write_checkpoint, "ears": write_ears}
    named = [word for name, write in models.items() for word in ("--model", f"{name}={write(folder / name)}")]
    options = {"DENIZEN_STUB": json.dumps({"speech": {"models": ["voice"]}})}
    with Running([*STUB, *named], model="voice", env=options) as server:
        yield server
        server.settles()


def ask(server: Running, text: str = TEXT, **more: Any) -> httpx.Response:
    return server.http.post(PATH, json={"model": server.model, "input": text, **more})


def levels(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2")


def expected(text: str = TEXT, voice: int = 0, speed: float = 1.0, rate: int = RATE) -> np.ndarray:
    """What the stub says, as 16 bit."""
    count = len(text.encode()) * round(rate * 0.08 / speed)
    tone = 0.25 * np.sin(2 * np.pi * pitch(token_ids(text), voice) * np.arange(count) / rate)
    return np.round(tone.astype(np.float32) * 32767).astype(np.int16)


def token_ids(text: str) -> np.ndarray:
    """Ids in the toy tokenizer, whose vocabulary is the sorted alphabet of byte-level BPE."""
    order = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return np.array([order[character] for piece, _ in pieces for character in piece])


def same(said: np.ndarray, wanted: np.ndarray) -> bool:
    return said.shape == wanted.shape and int(np.abs(said.astype(int) - wanted).max()) <= 1


@pytest.mark.parametrize("stream", [True, False])
def test_pcm_is_the_tone(speaking: Running, stream: bool) -> None:
    response = ask(speaking, response_format="pcm", stream=stream)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "audio/pcm"
    assert response.headers["x-sample-rate"] == str(RATE)
    assert ("content-length" in response.headers) is not stream
    assert same(levels(response.content), expected())


def test_a_whole_wav_has_its_sizes(speaking: Running) -> None:
    response = ask(speaking, stream=False)
    assert response.headers["content-type"] == "audio/wav"
    with wave.open(io.BytesIO(response.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        assert file.getnframes() == len(TEXT) * FRAME
        assert same(levels(file.readframes(file.getnframes())), expected())


def test_a_streamed_wav_is_one_of_unknown_length(speaking: Running) -> None:
    content = ask(speaking, response_format="wav").content
    assert content[:4] == b"RIFF"
    assert content[4:8] == content[40:44] == b"\xff" * 4
    assert same(levels(content[44:]), expected())


@pytest.mark.parametrize(("voice", "number"), [("low", 0), ("high", 1), ({"id": "high"}, 1), (None, 0)])
def test_voices_differ(speaking: Running, voice: Any, number: int) -> None:
    content = ask(speaking, voice=voice, response_format="pcm").content
    assert same(levels(content), expected(voice=number))


@pytest.mark.parametrize("speed", [0.25, 2.0, 4])
def test_speed_changes_the_length(speaking: Running, speed: float) -> None:
    content = ask(speaking, speed=speed, response_format="pcm").content
    assert same(levels(content), expected(speed=speed))


def test_events_carry_the_file_and_the_usage(speaking: Running) -> None:
    for format in ("pcm", "wav", "flac"):
        response = ask(speaking, response_format=format, stream_format="sse")
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[5:]) for line in response.text.splitlines() if line.startswith("data:")]
        assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
        assert len(events) > len(TEXT), "a piece for each frame"
        content = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
        assert content == ask(speaking, response_format=format).content
        usage = {"input_tokens": len(TEXT), "output_tokens": len(TEXT), "total_tokens": 2 * len(TEXT)}
        assert events[-1] == {"type": "speech.audio.done", "finish_reason": "stop", "usage": usage}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("format", "content_type"), [("flac", "audio/flac"), ("opus", "audio/ogg")])
def test_compressed_speech_can_be_heard(speaking: Running, format: str, content_type: str, stream: bool) -> None:
    """The other direction decodes it: its duration is that of the tone."""
    response = ask(speaking, response_format=format, stream=stream)
    assert response.headers["content-type"] == content_type
    assert len(response.content) < 2 * len(TEXT) * FRAME
    files = {"file": response.content}
    form = {"model": "ears", "response_format": "verbose_json"}
    heard = speaking.http.post("/v1/audio/transcriptions", files=files, data=form)
    assert heard.status_code == 200, heard.text
    assert heard.json()["duration"] == pytest.approx(len(TEXT) * 0.08, abs=1e-3)


def test_the_official_client_speaks(speaking: Running, tmp_path: Path) -> None:
    speech = speaking.client.audio.speech
    with speech.with_streaming_response.create(
        model="voice", voice="high", input=TEXT, response_format="pcm"
    ) as response:
        assert same(levels(b"".join(response.iter_bytes(1001))), expected(voice=1))
    whole = speech.create(model="voice", voice="low", input=TEXT, response_format="wav", extra_body={"stream": False})
    whole.write_to_file(tmp_path / "speech.wav")
    with wave.open(str(tmp_path / "speech.wav")) as file:
        assert file.getnframes() == len(TEXT) * FRAME
    with pytest.raises(openai.BadRequestError) as caught:
        speech.create(model="voice", voice="nobody", input=TEXT)
    assert caught.value.param == "voice"


def test_voices_and_models_are_listed(speaking: Running) -> None:
    voices = [{"id": name, "object": "voice", "model": "voice"} for name in ("low", "high")]
    assert speaking.http.get("/v1/audio/voices").json() == {"object": "list", "data": voices}
    models = {model["id"]: model for model in speaking.http.get("/v1/models").json()["data"]}
    assert {name: model["kind"] for name, model in models.items()} == {"voice": "tts", "text": "text", "ears": "asr"}
    assert (models["voice"]["sample_rate"], models["voice"]["voices"]) == (RATE, ["low", "high"])
    assert "voices" not in models["text"]


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": " \n"}, "input", "empty"),
        ({"input": None}, "input", "missing"),
        ({"input": 7}, "input", "a string"),
        ({"input": "x" * 4097}, "input", "4097 characters; at most 4096"),
        ({"voice": "alloy"}, "voice", "'low', 'high'"),
        ({"voice": 7}, "voice", "name of a voice"),
        ({"speed": 0.2}, "speed", "between 0.25 and 4"),
        ({"speed": 4.5}, "speed", "between 0.25 and 4"),
        ({"speed": "fast"}, "speed", "a number"),
        ({"response_format": "mp3"}, "response_format", "'wav', 'pcm', 'flac', 'opus'"),
        ({"response_format": "WAV"}, "response_format", "'wav'"),
        ({"stream_format": "raw"}, "stream_format", "'audio' or 'sse'"),
        ({"stream_format": "sse", "stream": False}, "stream_format", "'stream'"),
        ({"instructions": "x" * 4097}, "instructions", "at most 4096"),
        ({"language": "Klingon"}, "language", "'Klingon'"),
        ({"temperature": 3}, "temperature", "between 0 and 2"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 4096}, "max_tokens", "4096 tokens"),
        ({"seed": "x"}, "seed", "64-bit"),
        ({"vioce": "low"}, "vioce", "unknown parameter"),
    ],
)
def test_what_cannot_be_is_refused_by_name(speaking: Running, change: dict[str, Any], param: str, words: str) -> None:
    response = speaking.http.post(PATH, json={"model": "voice", "input": TEXT, **change})
    assert response.status_code == 400, response.content
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_every_kind_is_refused_where_it_does_not_belong(speaking: Running) -> None:
    chat = [{"role": "user", "content": "hello"}]
    for path, body in [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": chat}),
        ("/tokenize", {"prompt": "x"}),
    ]:
        response = speaking.http.post(path, json={"model": "voice", **body})
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("model", "unsupported_model")
        assert PATH in error["message"]
    for model in ("text", "ears"):
        response = ask(speaking, model=model)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("model", "unsupported_model")
        assert "does not speak" in error["message"]
    response = speaking.http.post("/v1/audio/transcriptions", files={"file": b"x"}, data={"model": "voice"})
    assert response.status_code == 400
    assert "does not hear" in response.json()["error"]["message"]
    assert ask(speaking, model="nobody").status_code == 404


def test_seconds_and_requests_are_counted(stub: Stub) -> None:
    server = stub(speech={})
    for format in ("wav", "pcm"):
        assert ask(server, response_format=format).status_code == 200
    server.settles()
    text = server.http.get("/metrics").text
    assert f'denizen_speech_seconds_total{{model="bytes"}} {2 * len(TEXT) * 0.08:g}' in text
    assert 'denizen_requests_total{model="bytes",outcome="stop"} 2' in text
    assert f'denizen_output_tokens_total{{model="bytes"}} {2 * len(TEXT)}' in text
    assert f'denizen_http_requests_total{{route="{PATH}",status="200"}} 2' in text


def test_max_tokens_ends_the_audio(stub: Stub) -> None:
    server = stub(speech={})
    assert same(levels(ask(server, response_format="pcm", max_tokens=3).content), expected()[: 3 * FRAME])
    server.settles()
    assert 'denizen_requests_total{model="bytes",outcome="length"} 1' in server.http.get("/metrics").text


def test_speech_that_does_not_end_within_the_context_is_an_error(stub: Stub) -> None:
    """Audio that is cut off without notice would pass for the whole."""
    server = stub(speech={})
    text = "x" * 4000  # leaves 96 frames
    response = ask(server, text, stream=False)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("input", "speech_cut_off")
    content, broken = break_off(server, input=text, stream_format="sse")
    assert broken is None
    assert last_event(content)["error"]["code"] == "speech_cut_off"
    _, broken = break_off(server, input=text)
    assert isinstance(broken, httpx.RemoteProtocolError)
    content, _ = break_off(server, input=text, stream_format="sse", max_tokens=96)
    assert last_event(content)["finish_reason"] == "length"


def test_another_rate(stub: Stub) -> None:
    server = stub(speech={"sample_rate": 22_050, "voices": ["only"]})
    response = ask(server, response_format="pcm")
    assert response.headers["x-sample-rate"] == "22050"
    assert same(levels(response.content), expected(rate=22_050))
    response = ask(server, response_format="opus")
    assert response.status_code == 400, "Opus does not have this rate"
    assert "'wav', 'pcm', 'flac' for this model" in response.json()["error"]["message"]


def test_many_at_once_keep_their_audio_apart(speaking: Running) -> None:
    texts = [f"{'word ' * (number % 7 + 1)}{number}" for number in range(48)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: ask(speaking, text, response_format="pcm").content, texts))
    assert all(same(levels(answer), expected(text)) for answer, text in zip(answers, texts, strict=True))


LONG = "a long text " * 150
"""1,800 frames, 144 s: with 5 ms a step it takes 9 s at least."""


def test_audio_comes_while_it_is_made(stub: Stub) -> None:
    server = stub(speech={}, step_ms=5)
    body = {"model": "bytes", "input": LONG, "response_format": "pcm"}
    with server.http.stream("POST", PATH, json=body) as response:
        read = 0
        for piece in response.iter_raw():
            read += len(piece)
            if read > 20 * FRAME:
                break
        assert server.metrics()["denizen_requests_in_flight"] == 1, "it is still being made"
    server.settles()


def open_stream(server: Running, **more: Any) -> Caller:
    content = json.dumps({"model": server.model, "input": LONG, **more}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return Caller(server, f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("more", [{}, {"stream_format": "sse"}, {"stream": False}])
def test_a_client_that_goes_frees_its_row(stub: Stub, reset: bool, more: dict[str, Any]) -> None:
    server = stub(speech={}, step_ms=5)
    callers = [open_stream(server, **more) for _ in range(3)]
    eventually(lambda: server.metrics()["denizen_worker_running"] == 3, "three are spoken")
    for caller in callers:
        caller.vanish(reset=reset)
    server.settles()
    assert 'denizen_requests_total{model="bytes",outcome="abort"} 3' in server.http.get("/metrics").text


def break_off(server: Running, **more: Any) -> tuple[bytes, BaseException | None]:
    """What a client gets of a stream, and how the stream ends for it."""
    content = b""
    try:
        with server.http.stream("POST", PATH, json={"model": server.model, "input": LONG, **more}) as response:
            assert response.status_code == 200
            for piece in response.iter_raw():
                content += piece
    except httpx.HTTPError as error:
        return content, error
    return content, None


def last_event(content: bytes) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(content.strip().split(b"\n\n")[-1][5:])
    return event


def test_a_worker_that_dies_breaks_its_streams_off(stub: Stub) -> None:
    server = stub(speech={}, step_ms=5)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        raw = [pool.submit(break_off, server, response_format=format) for format in ("pcm", "wav")]
        events = pool.submit(break_off, server, stream_format="sse")
        whole = pool.submit(ask, server, LONG, stream=False)
        eventually(lambda: server.metrics()["denizen_worker_running"] == 4, "all are spoken")
        eventually(lambda: server.metrics()["denizen_speech_seconds_total"] > 1, "audio comes")
        [worker] = server.workers()
        os.kill(worker, signal.SIGKILL)
        for future in raw:
            content, error = future.result(timeout=60)
            assert isinstance(error, httpx.RemoteProtocolError), "a short file must not look whole"
            assert 0 < len(content) < 2 * FRAME * len(LONG)
        content, error = events.result(timeout=60)
        assert error is None
        assert last_event(content)["error"]["code"] == "worker_died"
        assert b"speech.audio.done" not in content
        answer = whole.result(timeout=60)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "worker_died"
    server.wait_ready(60)
    assert same(levels(ask(server, response_format="pcm").content), expected())


def test_the_deadline_ends_a_stream(stub: Stub) -> None:
    server = stub("--request-timeout", "1", speech={}, step_ms=5)
    _, error = break_off(server)
    assert isinstance(error, httpx.RemoteProtocolError)
    content, error = break_off(server, stream_format="sse")
    assert error is None
    assert last_event(content)["error"]["code"] == "timeout"
    assert ask(server, LONG, stream=False).status_code == 504
    server.settles()


def test_a_failure_before_the_first_sound_has_its_status(stub: Stub) -> None:
    server = stub(speech={}, fault={"kind": "error"})
    for more in ({}, {"stream_format": "sse"}, {"stream": False}):
        response = ask(server, **more)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "stub_error"


def test_a_server_that_drains_finishes_what_it_says(stub: Stub) -> None:
    server = stub(speech={}, step_ms=20)
    text = "to the end " * 10
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask, server, text, response_format="pcm")
        eventually(lambda: server.metrics()["denizen_worker_running"] == 1, "it is spoken")
        os.kill(server.pid, signal.SIGTERM)
        answer = future.result(timeout=60)
    assert same(levels(answer.content), expected(text))
    assert server.process.wait(timeout=60) == 0
