"""The same question over shared memory and over HTTP has the same answer, and the same refusal."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from denizen.shm import AsyncClient, BadRequest, Client, RequestError

from tests.e2e.hearing import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Rendezvous

TEXTS: list[dict[str, Any]] = [
    {"prompt": "hello world"},
    {"prompt": "hello world", "max_tokens": 40, "stop": ["wor"]},
    {"prompt": [104, 105], "max_tokens": 5},
    {"prompt": ["one", "two"], "n": 2, "max_tokens": 7},
    {"prompt": "abc", "logprobs": 3, "echo": True},
    {"prompt": "abc", "logprobs": 0, "max_tokens": 3},
    {"prompt": "ünïcödé €", "max_tokens": 15},
    {"prompt": "x" * 3000, "max_tokens": 1000},
    {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20},
    {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "logprobs": True, "top_logprobs": 2},
]
COMMON = {"temperature": 0, "seed": 1, "model": "text"}


@pytest.fixture
def client(fast: Rendezvous) -> Iterator[Client]:
    with fast.connect() as client:
        yield client


def over_http(server: Rendezvous, question: dict[str, Any]) -> Any:
    path = "/v1/chat/completions" if "messages" in question else "/v1/completions"
    return server.http.post(path, json={**COMMON, **question})


def as_read(answer: Any) -> list[tuple[Any, ...]]:
    return [(choice.index, choice.text, choice.reasoning, choice.finish_reason) for choice in answer.choices]


@pytest.mark.parametrize("question", TEXTS, ids=lambda question: str(question)[:60])
def test_answers_are_the_same(fast: Rendezvous, client: Client, question: dict[str, Any]) -> None:
    response = over_http(fast, question)
    assert response.status_code == 200, response.text
    expected = response.json()
    answer = client.generate(**{**COMMON, **question})
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in expected["choices"]]
    assert [choice.text for choice in answer.choices] == [text or "" for text in texts]
    assert [choice.finish_reason for choice in answer.choices] == [
        each["finish_reason"] for each in expected["choices"]
    ]
    usage = expected["usage"]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert (answer.model, answer.id.partition("-")[0]) == (expected["model"], expected["id"].partition("-")[0])
    # Ids of the output, the end id that was sampled not among them.
    sampled = sum(len(choice.tokens) for choice in answer.choices)
    assert 0 <= usage["completion_tokens"] - sampled <= len(answer.choices)
    for choice, other in zip(answer.choices, expected["choices"], strict=True):
        own = (other["logprobs"] or {}).get("token_logprobs")
        if own is None:
            own = [entry["logprob"] for entry in (other["logprobs"] or {}).get("content", ())]
        assert [each.logprob for each in choice.logprobs] == own

    if not (question.get("echo") and "logprobs" in question):  # refused in a stream, by both
        stream = client.generate(**{**COMMON, **question}, stream=True)
        pieces = list(stream)
        whole = stream.result()
        assert as_read(whole) == as_read(answer)
        assert [choice.tokens for choice in whole.choices] == [choice.tokens for choice in answer.choices]
        assert [choice.logprobs for choice in whole.choices] == [choice.logprobs for choice in answer.choices]
        assert whole.usage == answer.usage
        assert len(pieces) >= len(answer.choices)


WRONG: list[dict[str, Any]] = [
    {"prompt": "x", "max_tokens": 0},
    {"prompt": "x", "max_tokens": "many"},
    {"prompt": "x", "temperature": 3},
    {"prompt": "x", "no_such_parameter": 1},
    {"prompt": "x", "suffix": "y"},
    {"prompt": "x", "n": 1000},
    {"prompt": [1, 2, 99999]},
    {"prompt": [1, -2]},
    {"prompt": []},
    {"prompt": {"a": 1}},
    {"prompt": "x" * 5000},
    {"prompt": "x", "max_tokens": 5000},
    {"prompt": "x", "stop": ["a"] * 17},
    {"prompt": "x", "logit_bias": {"99999": 1}},
    {"prompt": "x", "model": "nobody"},
    {"prompt": "x", "model": "ears"},
    {"messages": []},
    {"messages": [{"role": "nobody", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
    {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2},
]


@pytest.mark.parametrize("question", WRONG, ids=lambda question: str(question)[:60])
def test_refusals_are_the_same(fast: Rendezvous, client: Client, question: dict[str, Any]) -> None:
    response = over_http(fast, question)
    assert response.status_code >= 400, response.text
    error = response.json()["error"]
    streamed = client.generate(**{**COMMON, **question}, stream=True)
    for call in (lambda: client.generate(**{**COMMON, **question}), streamed.result):
        with pytest.raises(RequestError) as raised:
            call()
        found = raised.value
        assert (found.status, found.type, found.param, found.code) == (
            response.status_code,
            error["type"],
            error["param"],
            error["code"],
        )
        assert found.message == error["message"]
    # The client is unharmed.
    assert client.generate("ok", model="text", max_tokens=2, temperature=0).text == "ok"


def test_arrays_of_ids_are_prompts(client: Client) -> None:
    h, i = client.tokenize("hi").ids
    for ids in (np.array([h, i], np.int64), np.array([[h, i]], np.int32), [np.int64(h), i]):
        assert client.generate(ids, max_tokens=2, temperature=0).text == "hi"
    with pytest.raises(BadRequest, match="prompt"):
        client.generate(np.array([104, 300], np.uint32))
    with pytest.raises(BadRequest, match="integer type"):
        client.generate(np.array([1.5]))


@pytest.mark.parametrize("length", [100_000, 900_000])
def test_long_parameters_travel_in_parts(fast: Rendezvous, client: Client, length: int) -> None:
    """Far more than the shared memory holds at once; the context is what is too short."""
    error = over_http(fast, {"prompt": "x" * length}).json()["error"]
    with pytest.raises(BadRequest) as raised:
        client.generate("x" * length, model="text")
    assert (raised.value.message, raised.value.code) == (error["message"], "context_length_exceeded")


def test_too_long_a_body_is_refused_early(fast: Rendezvous, client: Client) -> None:
    limit = client.limits.max_body
    assert limit
    response = over_http(fast, {"prompt": "x" * (limit + 1)})
    with pytest.raises(BadRequest) as raised:
        client.generate("x" * (limit + 1))
    assert (raised.value.status, raised.value.code) == (413, "request_too_large")
    assert response.status_code == 413
    assert client.generate("ok", max_tokens=2, temperature=0).text == "ok"


def test_a_long_answer_comes_in_parts(fast: Rendezvous, client: Client) -> None:
    question = {"prompt": ["abcdefgh" * 100] * 8, "echo": True, "logprobs": 5, "max_tokens": 200}
    expected = over_http(fast, question).json()
    answer = client.generate(**{**COMMON, **question})
    assert len(json.dumps(expected)) > 500_000
    assert [choice.text for choice in answer.choices] == [choice["text"] for choice in expected["choices"]]
    for choice, other in zip(answer.choices, expected["choices"], strict=True):
        assert [each.token for each in choice.logprobs] == other["logprobs"]["tokens"]


def test_tokens_are_the_same(fast: Rendezvous, client: Client) -> None:
    body = {"model": "text", "prompt": "hé", "return_token_strs": True}
    expected = fast.http.post("/tokenize", json=body).json()
    tokens = client.tokenize("hé", return_token_strs=True)
    assert list(tokens.ids) == expected["tokens"]
    assert list(tokens.strings) == expected["token_strs"]
    assert tokens.max_model_len == expected["max_model_len"]
    assert client.detokenize(tokens.ids) == "hé"
    assert client.detokenize(np.array(tokens.ids)) == "hé"
    messages = [{"role": "user", "content": "hi"}]
    expected = fast.http.post("/tokenize", json={"model": "text", "messages": messages}).json()
    assert list(client.tokenize(messages=messages).ids) == expected["tokens"]


def test_models_are_the_same(fast: Rendezvous, client: Client) -> None:
    expected = fast.http.get("/v1/models").json()["data"]
    assert [(model.id, model.kind, model.context) for model in client.models()] == [
        (model["id"], model["kind"], model["max_model_len"]) for model in expected
    ]
    assert client.server_version == fast.http.get("/version").json()["version"]


# --- sound ---


def noise(seconds: float, rate: int = 16_000) -> np.ndarray:
    """Of values that 16-bit files hold exactly."""
    values = np.random.default_rng(7).integers(-20_000, 20_000, round(seconds * rate))
    return (values / 32768).astype(np.float32)


def wav(samples: np.ndarray, rate: int = 16_000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(samples * 32768).astype("<i2").tobytes())
    return out.getvalue()


def upload(server: Rendezvous, file: bytes, path: str = "/v1/audio/transcriptions", **fields: Any) -> Any:
    return server.http.post(path, files={"file": ("a.wav", file)}, data={"model": "ears", **fields})


@pytest.mark.parametrize(("seconds", "rate"), [(0.5, 16_000), (3, 16_000), (3, 8_000), (2, 44_100), (70, 16_000)])
def test_transcripts_are_the_same(fast: Rendezvous, client: Client, seconds: float, rate: int) -> None:
    samples = noise(seconds, rate)
    words = {"response_format": "verbose_json", "timestamp_granularities[]": ["segment", "word"]}
    expected = upload(fast, wav(samples, rate), **words).json()
    granularities: Any = ["segment", "word"]
    answer = client.transcribe(samples, rate, timestamp_granularities=granularities)
    assert (answer.text, answer.language) == (expected["text"], expected["language"])
    assert answer.duration == pytest.approx(expected["duration"])
    assert [(each.start, each.end, each.text, list(each.tokens)) for each in answer.segments] == [
        (each["start"], each["end"], each["text"], each["tokens"]) for each in expected["segments"]
    ]
    assert [(each.start, each.end, each.word) for each in answer.words] == [
        (each["start"], each["end"], each["word"]) for each in expected["words"]
    ]
    # The same sound in other clothes.
    as_int16 = np.round(samples * 32768).astype(np.int16)
    assert client.transcribe(as_int16, rate).text == answer.text
    assert client.transcribe(np.stack([samples, samples], axis=1), rate).text == answer.text


@pytest.mark.parametrize("kind", ["json", "text", "srt", "vtt"])
def test_other_formats_are_the_same(fast: Rendezvous, client: Client, kind: Any) -> None:
    samples = noise(12)
    response = upload(fast, wav(samples), response_format=kind)
    answer = client.transcribe(samples, 16_000, response_format=kind)
    assert answer.text == (response.json()["text"] if kind == "json" else response.text)
    assert answer.segments == ()


def test_translations_and_streams_are_the_same(fast: Rendezvous, client: Client) -> None:
    samples = noise(65)
    file = wav(samples)
    translation = upload(fast, file, "/v1/audio/translations").json()["text"]
    assert client.transcribe(samples, 16_000, translate=True).text == translation
    deltas = [event["delta"] for event in events_of(fast, file)]
    stream = client.transcribe(samples, 16_000, stream=True)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == "".join(deltas)
    assert stream.result().text == "".join(deltas)
    spans = tuple(segment for piece in pieces for segment in piece.segments)
    assert len(spans) >= len(deltas)
    assert spans == client.transcribe(samples, 16_000).segments


def events_of(server: Rendezvous, file: bytes) -> list[dict[str, Any]]:
    every = events(server, file, model="ears")
    return [event for event in every if event["type"] == "transcript.text.delta"]


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"language": "klingon"}, "language"),
        ({"temperature": 2}, "temperature"),
        ({"response_format": "docx"}, "response_format"),
        ({"response_format": "json", "timestamp_granularities": ["word"]}, "timestamp_granularities"),
        ({"model": "text"}, "model"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)
def test_refusals_of_sound_are_the_same(
    fast: Rendezvous, client: Client, arguments: dict[str, Any], param: str
) -> None:
    samples = noise(1)
    fields = {key: str(value[0] if isinstance(value, list) else value) for key, value in arguments.items()}
    response = upload(fast, wav(samples), **fields)
    with pytest.raises(BadRequest) as raised:
        client.transcribe(samples, 16_000, **arguments)
    error = response.json()["error"]
    assert (raised.value.status, raised.value.code) == (response.status_code, error["code"])
    assert raised.value.param == error["param"]
    assert param in (error["param"] or "")


@pytest.mark.parametrize(
    ("samples", "rate"),
    [
        (np.array([0.5, np.nan], np.float32), 16_000),
        (np.array([0.5, np.inf], np.float32), 16_000),
        (noise(0.1), 100),
        (noise(0.1), 1_000_000),
    ],
)
def test_impossible_sound_is_refused(client: Client, samples: np.ndarray, rate: int) -> None:
    with pytest.raises(BadRequest) as raised:
        client.transcribe(samples, rate)
    assert raised.value.param in ("file", "pcm", "rate")
    assert client.transcribe(noise(0.5), 16_000).text


def test_asyncio_hears_and_writes(fast: Rendezvous) -> None:
    async def use() -> None:
        samples = noise(70)
        async with AsyncClient(path=fast.socket) as client:
            text, transcript = await asyncio.gather(
                client.generate("hello", max_tokens=5, temperature=0), client.transcribe(samples, 16_000)
            )
            assert text.text == "hello"
            stream = await client.transcribe(samples, 16_000, stream=True)
            assert "".join([piece.text async for piece in stream]) == transcript.text

    asyncio.run(use())
