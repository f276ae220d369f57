"""Transcriptions among others and in bad company: aborts in every phase, text beside speech, a worker that dies.

After each test the fixture `_as_it_was` waits until rows, pages, state slots and places are back.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from .conftest import CPU, THREADS
from .hearing import PATH, events, heard, post, upload
from .sounds import join, wav
from .test_disconnect import aborted, running
from .waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.models.real_whisper import Clip

    from .conftest import Serve
    from .running import Running

TEXTS = ["one two three", "she said that", "there was once"]


@pytest.fixture(scope="module")
def long_file(clips: list[Clip]) -> bytes:
    """Ten windows."""
    samples, _ = join([clip.pcm for clip in clips], 280)
    return wav(samples)


@pytest.mark.parametrize("part", [0.1, 0.9999])
def test_a_client_that_goes_during_its_upload(ears: Running, long_file: bytes, part: float) -> None:
    callers = [upload(ears, long_file, part=part) for _ in range(4)]
    eventually(lambda: ears.metrics()["denizen_http_in_flight"] == 4, "four uploads are open")
    for caller in callers:
        caller.vanish()
    ears.settles()


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes_while_its_file_is_decoded(ears: Running, long_file: bytes, reset: bool) -> None:
    for _ in range(4):
        upload(ears, long_file).vanish(reset=reset)
    ears.settles()


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes_while_the_worker_listens(ears: Running, long_file: bytes, reset: bool) -> None:
    before = aborted(ears)
    callers = [upload(ears, long_file) for _ in range(4)]
    eventually(lambda: running(ears) > 0, "one runs")
    for caller in callers:
        caller.vanish(reset=reset)
    ears.settles()
    eventually(lambda: aborted(ears) > before, "they are counted as aborted")


def test_a_client_that_goes_in_mid_stream(ears: Running, long_file: bytes) -> None:
    before = aborted(ears)
    callers = [upload(ears, long_file, stream="true") for _ in range(2)]
    for caller in callers:
        caller.read_events(2)
    for caller in callers:
        caller.vanish()
    ears.settles()
    eventually(lambda: aborted(ears) >= before + 2, "they are counted as aborted")


def test_a_client_that_goes_while_queued(serve: Serve, tiny_ears_model: Path, long_file: bytes) -> None:
    model = ["--model", f"ears={tiny_ears_model}", "--max-rows", "1"]
    server = serve([*CPU, *THREADS, *model], model="ears")
    busy = upload(server, long_file, stream="true")
    busy.read_events(1)
    queued = [upload(server, long_file) for _ in range(3)]
    eventually(lambda: server.metrics()["denizen_http_in_flight"] == 4, "one runs, three wait")
    for caller in queued:
        caller.vanish()
    eventually(lambda: server.metrics()["denizen_http_in_flight"] == 1, "those that waited are gone")
    busy.read_events(1)  # the other goes on
    busy.vanish()
    server.settles()


def test_an_abort_that_races_the_end_is_settled_once(ears: Running, clips: list[Clip]) -> None:
    """Streams of one window, cut at every moment around their end."""
    file = wav(clips[4].pcm)

    def cut(number: int) -> None:
        caller = upload(ears, file, stream="true")
        caller.read_events(1 + number % 2)
        caller.vanish(reset=number % 3 == 0)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(cut, number) for number in range(24)]:
            assert future.exception() is None
    ears.settles()
    assert heard(ears, file)


@pytest.fixture(scope="module")
def both(tiny_ears_model: Path, dense_model: Path, hybrid_model: Path) -> Iterator[Running]:
    """Two text models and a speech model side by side."""
    from .running import Running

    models = [f"dense={dense_model}", f"hybrid={hybrid_model}", f"ears={tiny_ears_model}"]
    arguments = [word for model in models for word in ("--model", model)]
    with Running([*CPU, *THREADS, *arguments], model="dense") as server:
        yield server


def test_text_and_speech_side_by_side_are_what_each_is_alone(both: Running, clips: list[Clip]) -> None:
    def say(job: tuple[str, str]) -> str:
        model, prompt = job
        answer = both.complete(prompt, model=model, max_tokens=40, ignore_eos=True)
        text = answer["choices"][0]["text"]
        assert isinstance(text, str)
        return text

    def hear(clip: Clip) -> str:
        return heard(both, clip.pcm, model="ears")

    prompts = [(model, text) for model in ("dense", "hybrid") for text in TEXTS]
    said, written = [say(job) for job in prompts], [hear(clip) for clip in clips]
    with ThreadPoolExecutor(16) as pool:
        saying = [pool.submit(say, job) for job in prompts * 2]
        hearing = [pool.submit(hear, clip) for clip in clips]
        assert [future.result() for future in hearing] == written
        assert [future.result() for future in saying] == said * 2


def test_each_model_answers_on_its_own_routes_alone(both: Running, clips: list[Clip]) -> None:
    kinds = {model["id"]: model.get("kind") for model in both.http.get("/v1/models").json()["data"]}
    assert kinds == {"dense": "text", "hybrid": "text", "ears": "asr"}
    deaf = post(both, wav(clips[4].pcm), model="dense")
    dumb = both.http.post("/v1/completions", json={"model": "ears", "prompt": "one", "max_tokens": 2})
    chat = {"model": "ears", "messages": [{"role": "user", "content": "hello"}]}
    for response in (deaf, dumb, both.http.post("/v1/chat/completions", json=chat)):
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == "model"


def test_an_english_model_translates_nothing(ears: Running, clips: list[Clip]) -> None:
    response = post(ears, wav(clips[4].pcm), path="/v1/audio/translations")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


def test_translation_of_english_is_english(base_ears: Running, clips: list[Clip]) -> None:
    response = post(base_ears, wav(clips[4].pcm), path="/v1/audio/translations", response_format="verbose_json")
    assert response.status_code == 200
    answer = response.json()
    assert answer["task"] == "translate"
    assert "himself" in answer["text"]


def test_p30_a_worker_that_is_killed_in_mid_transcription(
    serve: Serve, tiny_ears_model: Path, clips: list[Clip]
) -> None:
    server = serve([*CPU, *THREADS, "--model", f"ears={tiny_ears_model}"], model="ears")

    samples, _ = join([clip.pcm for clip in clips], 60)
    file = wav(samples)

    def whole(_: int) -> dict[str, Any]:
        answer: dict[str, Any] = post(server, file).json()
        return answer

    def streamed(_: int) -> dict[str, Any]:
        return list(events(server, file))[-1]

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, number) for ask in (whole, streamed) for number in range(2)]
        eventually(lambda: running(server) > 1, "transcriptions run")
        [worker] = server.workers()
        os.kill(worker, signal.SIGKILL)
        ends = [future.result(timeout=200) for future in futures]
    died = [end["error"] for end in ends if "error" in end]
    assert died, "those that had begun to answer; what has said nothing yet begins anew elsewhere"
    assert {error["code"] for error in died} == {"worker_died"}
    assert all(error["message"] for error in died)
    # Between two windows a file has nothing to lose: it waits for the next worker.
    assert all(end["text"].count("himself") == 2 for end in ends if "error" not in end)
    assert server.get("/health") == 200
    eventually(lambda: server.workers() not in ([], [worker]), "another worker is started")
    server.wait_ready(120)
    assert heard(server, clips[4].pcm)
    server.settles()


def test_limits_of_uploads_are_named(serve: Serve, tiny_ears_model: Path) -> None:
    limits = ["--max-upload", "1", "--max-audio-seconds", "20"]
    server = serve([*CPU, *THREADS, "--model", f"ears={tiny_ears_model}", *limits], model="ears")
    response = post(server, wav(np.zeros(700_000)))
    assert response.status_code == 413
    assert "1048576" in response.json()["error"]["message"]
    response = post(server, wav(np.zeros(8_000 * 21), rate=8_000))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "audio_too_long"
    assert "20" in response.json()["error"]["message"]
    response = server.http.post(PATH, files={"model": (None, "ears")})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "file"
