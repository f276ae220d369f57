"""Real models over shared memory: the same text as over HTTP, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.models import real_whisper, tiny

from .conftest import Rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendezvous]:
    """A tiny random model with gated delta nets, and Whisper tiny.en with its real weights."""
    folder = tmp_path_factory.mktemp("real")
    ears = real_whisper.or_skip(real_whisper.checkpoint, "tiny.en")
    models = {"tiny": tiny.build("qwen3_5-grouped", folder / "tiny"), "ears": ears}
    with Rendezvous(folder, "--threads", "1", models=models) as server:
        yield server


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 7}], ids=str)
def test_a_model_writes_the_same(server: Rendezvous, sampling: dict[str, float]) -> None:
    body = {"prompt": [5, 6, 7, 8, 9], "max_tokens": 24, "ignore_eos": True, **sampling}
    expected = server.post("/v1/completions", body)["choices"][0]["text"]
    with server.connect() as client:
        whole = client.generate(**body)  # type: ignore[call-overload]
        stream = client.generate(**body, stream=True)  # type: ignore[call-overload]
        tokens = [token for chunk in stream for token in chunk.tokens]
        assert whole.text == expected
        assert list(whole.tokens) == tokens
        assert len(tokens) == 24
        assert client.detokenize(tokens, model="tiny").startswith(expected[:3])
    server.settles()


def test_whisper_hears_the_same(server: Rendezvous) -> None:
    clip = real_whisper.or_skip(real_whisper.clips)[0]
    response = server.http.post(
        "/v1/audio/transcriptions", files={"file": ("a.wav", clip.file.read_bytes())}, data={"model": "ears"}
    )
    with server.connect(audio=True) as client:
        transcript = client.transcribe(clip.pcm, 16_000, timestamp_granularities=["word", "segment"])
    assert transcript.text == response.json()["text"]
    assert transcript.words
    assert np.all(np.diff([word.start for word in transcript.words]) >= 0)
    server.settles()
