"""The audio endpoints and `denizen transcribe` over real sockets, the arena, and the stub, which hears letters."""

from __future__ import annotations

import concurrent.futures
import io
import json
import math
import os
import signal
import subprocess
import sys
import wave
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from denizen.bench.server import find_binary
from denizen.bench.stub_models import write_ears

from tests.e2e.waiting import eventually

from .conftest import STUB

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.running import Running

    from .conftest import Denizen, Stub

SPEECH = "frontend-rs/tests/assets/audio/speech.wav"


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ears(tmp_path_factory.mktemp("whisper") / "letters")


@pytest.fixture(scope="session")
def speech(pytestconfig: pytest.Config) -> bytes:
    return (pytestconfig.rootpath / SPEECH).read_bytes()


@pytest.fixture
def server(stub: Stub, whisper: Path) -> Running:
    return stub("--model", f"letters={whisper}")


def repeated(speech: bytes, seconds: float) -> bytes:
    """The two seconds of speech again and again, as a WAV file."""
    data = speech[44:]
    size = round(seconds * 16_000) * 2
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((data * math.ceil(size / len(data)))[:size])
    return out.getvalue()


def post(server: Running, audio: bytes, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    fields = {"model": "letters", **fields}
    return server.http.post(f"/v1/audio/{path}", files={"file": ("a.wav", audio)}, data=fields)


def test_a_transcript_comes_through_the_arena(server: Running, speech: bytes) -> None:
    body = post(server, speech, response_format="verbose_json").raise_for_status().json()
    assert len(body["text"]) == 4, "a letter for each half second"
    assert body["text"].isalpha()
    assert body["language"] in ("english", "german")
    assert (body["duration"], body["task"]) == (2.0, "transcribe")
    [segment] = body["segments"]
    assert (segment["start"], segment["end"], segment["avg_logprob"]) == (0.0, 2.0, -0.25)
    # Every byte of the audio counts.
    other = bytearray(speech)
    other[20_001] ^= 1
    assert post(server, bytes(other)).json()["text"] != body["text"]
    assert post(server, speech).json()["text"] == body["text"]
    server.settles()


def test_the_openai_client_gets_every_format(server: Running, speech: bytes) -> None:
    create = server.client.audio.transcriptions.create
    plain = create(model="letters", file=("a.wav", speech))
    assert create(model="letters", file=("a.wav", speech), response_format="text") == f"{plain.text}\n"
    verbose = create(
        model="letters",
        file=("a.wav", speech),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert verbose.segments is not None
    assert verbose.words is not None
    assert [segment.text for segment in verbose.segments] == [plain.text]
    assert (verbose.words[0].word, verbose.words[0].start, verbose.words[-1].end) == (plain.text, 0.0, 2.0)
    assert "-->" in create(model="letters", file=("a.wav", speech), response_format="srt")
    assert create(model="letters", file=("a.wav", speech), response_format="vtt").startswith("WEBVTT\n\n")
    assert post(server, speech, path="translations").json()["text"]
    events = list(create(model="letters", file=("a.wav", speech), stream=True))
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[0].delta == events[-1].text == plain.text


def test_long_audio_in_a_stream_and_whole(server: Running, speech: bytes) -> None:
    audio = repeated(speech, 95)
    whole = post(server, audio, response_format="verbose_json").raise_for_status().json()
    assert len(whole["text"]) >= 190, "a letter for each half second"
    ends = [segment["end"] for segment in whole["segments"]]
    assert ends == sorted(ends)
    assert ends[-1] == 95.0
    with server.http.stream(
        "POST",
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", audio)},
        data={"model": "letters", "stream": "true"},
    ) as response:
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    *deltas, done = events
    assert "".join(event["delta"] for event in deltas) == whole["text"] == done["text"]
    parallel = post(server, audio, chunking_strategy="auto").raise_for_status().json()
    assert len(parallel["text"]) >= 180
    server.settles()


@pytest.mark.parametrize("seconds", [30.0, 30.01])
def test_a_window_and_a_little_more(server: Running, speech: bytes, seconds: float) -> None:
    body = post(server, repeated(speech, seconds), response_format="verbose_json").json()
    assert body["duration"] == seconds
    assert len(body["text"]) == 60
    assert body["segments"][-1]["end"] == 30.0


def test_an_unfinished_window_is_heard_on(stub: Stub, whisper: Path, speech: bytes) -> None:
    server = stub("--model", f"letters={whisper}", unfinished=True)
    body = post(server, repeated(speech, 45), response_format="verbose_json").json()
    # The first window's second half has no end, so that the next window begins at 15 s and reaches the end.
    first = body["segments"][0]
    assert (first["start"], first["end"]) == (0.0, 15.0)
    assert body["segments"][-1]["end"] == 45.0


def test_doubt_climbs_the_ladder(stub: Stub, whisper: Path, speech: bytes) -> None:
    server = stub("--model", f"letters={whisper}", doubt=0.3)
    [segment] = post(server, speech, response_format="verbose_json").json()["segments"]
    assert segment["temperature"] == pytest.approx(0.4)
    assert server.metrics()["denizen_audio_fallbacks_total"] == 2


def test_silence_is_empty(server: Running) -> None:
    with io.BytesIO() as out:
        with wave.open(out, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(bytes(320_000))
        silence = out.getvalue()
    body = post(server, silence, response_format="verbose_json").json()
    assert (body["text"], body["segments"]) == ("", [])


def test_text_and_speech_at_once_and_more_audio_than_the_arena_holds(server: Running, speech: bytes) -> None:
    """Symptom: a full slab fails requests, or holds them until something else happens."""
    audio = repeated(speech, 30)
    with concurrent.futures.ThreadPoolExecutor(48) as pool:
        heard = [pool.submit(post, server, audio) for _ in range(40)]
        texts = [pool.submit(server.complete, "abc", max_tokens=20) for _ in range(8)]
        transcripts = {future.result().raise_for_status().json()["text"] for future in heard}
        for future in texts:
            future.result()
    assert len(transcripts) == 1
    server.settles()


def test_mistakes_leave_the_server_well(server: Running, speech: bytes) -> None:
    for audio, param in [(b"", "file"), (b"not audio", "file"), (speech[:3000], "file")]:
        response = post(server, audio)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert post(server, speech, model="bytes").json()["error"]["param"] == "model"
    assert post(server, speech, model="nobody").status_code == 404
    with pytest.raises(openai.BadRequestError, match="audio/transcriptions"):
        server.client.completions.create(model="letters", prompt="x")
    assert post(server, speech).status_code == 200
    server.settles()


def test_a_client_that_goes_frees_everything(stub: Stub, whisper: Path, speech: bytes) -> None:
    server = stub("--model", f"letters={whisper}", step_ms=50)
    audio = repeated(speech, 120)

    def leave(_: int) -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/audio/transcriptions",
                files={"file": ("a.wav", audio)},
                data={"model": "letters"},
                timeout=httpx.Timeout(30, read=1.0),
            )

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, range(4)))
    server.settles()


def test_a_worker_that_dies_is_told_or_survived(stub: Stub, whisper: Path, speech: bytes, tmp_path: Path) -> None:
    fault = {"kind": "kill", "when": "decode", "after_tokens": 2, "times": 1, "counter": str(tmp_path / "count")}
    server = stub("--model", f"letters={whisper}", fault=fault)
    response = post(server, speech)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "worker_died"
    eventually(lambda: server.http.get("/ready").status_code == 200, "a new worker is ready")
    assert post(server, speech).status_code == 200


def test_a_file_that_was_begun_survives_sigterm(stub: Stub, whisper: Path, speech: bytes) -> None:
    """Symptom: a rolling restart cuts long files at the end of a window, though requests may finish."""
    server = stub("--model", f"letters={whisper}", step_ms=10)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(post, server, repeated(speech, 95))
        eventually(lambda: server.metrics()["denizen_audio_windows_total"] >= 1, "a window is done")
        os.kill(server.pid, signal.SIGTERM)
        body = pending.result().raise_for_status().json()
    assert len(body["text"]) >= 190
    eventually(lambda: not server.alive, "the server has gone")


@pytest.fixture
def files(tmp_path: Path, speech: bytes) -> list[Path]:
    paths = [tmp_path / "one.wav", tmp_path / "two.wav", tmp_path / "broken.wav"]
    for path, content in zip(paths, [speech, repeated(speech, 40), b"nothing"], strict=True):
        path.write_bytes(content)
    return paths


def test_transcribe_writes_a_file_each(denizen: Denizen, whisper: Path, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--model", str(whisper), "--devices", "cpu", *STUB]
    result = denizen("transcribe", *map(str, files), "--format", "srt", "--output", str(out), *arguments)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert any(line.startswith(f"{files[2]}: the file is not audio") for line in lines), result.stderr
    assert lines[-1] == "error: 1 of 3 files could not be transcribed"
    assert (out / "one.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:02,000\n")
    assert "00:00:40,000" in (out / "two.srt").read_text()
    assert sorted(path.name for path in out.iterdir()) == ["one.srt", "two.srt"]


def test_transcribe_shows_one_file(denizen: Denizen, whisper: Path, files: list[Path]) -> None:
    arguments = ["--model", str(whisper), "--devices", "cpu", *STUB]
    result = denizen("transcribe", str(files[0]), "--format", "verbose_json", "--word-timestamps", *arguments)
    assert result.returncode == 0, result.stderr
    body = json.loads(result.stdout)
    assert len(body["text"]) == 4
    assert body["words"][-1]["end"] == 2.0


def test_transcribe_refuses_a_model_that_is_deaf(denizen: Denizen, checkpoint: Path, files: list[Path]) -> None:
    result = denizen("transcribe", str(files[0]), "--model", str(checkpoint), "--devices", "cpu", *STUB)
    assert result.returncode == 1
    assert "does not hear" in result.stderr


def test_transcribe_stops_when_told_to(whisper: Path, files: list[Path]) -> None:
    command = [find_binary(), "transcribe", str(files[1]), "--model", str(whisper), "--devices", "cpu", *STUB]
    environment = os.environ | {"VIRTUAL_ENV": sys.prefix, "DENIZEN_STUB": json.dumps({"step_ms": 1000, "load_ms": 50})}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    stderr = process.stderr
    assert stderr is not None
    # It has loaded, and listens to a window that would take a minute.
    eventually(lambda: "100 %" in stderr.readline(), "the model is loaded")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 1
    assert "error: interrupted" in stderr.read()
