"""Speech over shared memory beside speech over HTTP: the same samples."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest
from denizen.shm import AsyncClient, BadRequest

if TYPE_CHECKING:
    from .conftest import Rendezvous

TEXT = "Good morning, and a good evening."


def over_http(server: Rendezvous, text: str, **body: object) -> np.ndarray:
    """As 16-bit samples."""
    body = {"model": "voice", "input": text, "response_format": "pcm", **body}
    response = server.http.post("/v1/audio/speech", json=body)
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<i2")


@pytest.mark.parametrize(
    "arguments", [{"voice": "low"}, {"voice": "high", "speed": 2.0}, {"voice": "low", "max_tokens": 3}], ids=str
)
def test_samples_are_the_same(talking: Rendezvous, arguments: dict[str, object]) -> None:
    expected = over_http(talking, TEXT, **arguments)
    with talking.connect() as client:
        speech = client.speak(TEXT, **arguments)  # type: ignore[arg-type]
        assert speech.sample_rate == 24_000
        samples = np.concatenate(list(speech))
    assert samples.dtype == np.float32
    assert np.abs(np.round(samples * 32767) - expected).max() <= 1
    assert speech.result().samples == len(samples)


def test_it_comes_in_pieces(talking: Rendezvous) -> None:
    with talking.connect(audio=True) as client:
        pieces = list(client.speak("x" * 1000, voice="low"))
        assert len(pieces) > 1
        assert sum(piece.size for piece in pieces) == 1000 * 1920


def test_leaving_it_frees_its_row(talking: Rendezvous) -> None:
    with talking.connect() as client:
        for samples in client.speak("x" * 2000, voice="low"):
            assert samples.size
            break
        talking.settles()


@pytest.mark.parametrize(
    "arguments", [{"voice": "nobody"}, {"voice": "low", "speed": 9.0}, {"voice": "low", "model": "text"}], ids=str
)
def test_refusals_are_the_same(talking: Rendezvous, arguments: dict[str, object]) -> None:
    body = {"model": "voice", "input": TEXT, **arguments}
    response = talking.http.post("/v1/audio/speech", json=body)
    error = response.json()["error"]
    with talking.connect() as client, pytest.raises(BadRequest) as raised:
        list(client.speak(TEXT, **arguments))  # type: ignore[arg-type]
    found = raised.value
    assert (found.status, found.param, found.code, found.message) == (
        response.status_code,
        error["param"],
        error["code"],
        error["message"],
    )


def test_models_tell_voices(talking: Rendezvous) -> None:
    with talking.connect() as client:
        (voice,) = [model for model in client.models() if model.kind == "tts"]
        assert (voice.sample_rate, set(voice.voices)) == (24_000, {"low", "high"})


def test_asyncio_speaks(talking: Rendezvous) -> None:
    async def use() -> None:
        async with AsyncClient(path=talking.socket) as client:
            speech = await client.speak(TEXT, voice="low")
            assert await speech.sample_rate() == 24_000
            samples = np.concatenate([piece async for piece in speech])
            assert len(samples) == (await speech.result()).samples

    asyncio.run(use())
