"""What a client sends, and what it makes of the answers, against a front end that is faked over a real arena pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import pytest
from denizen.shm import (
    BadRequest,
    Busy,
    Choice,
    Chunk,
    Completion,
    DenizenError,
    Logprob,
    NotFound,
    RequestError,
    ServerError,
    ServerGone,
    SlowReader,
    Timeout,
    Usage,
)

from .fake import CHUNK, FAILED, PART, RESULT, USAGE, FakeServer, Heard

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Fakes

HELLO = [{"role": "user", "content": "hello"}]
COMPLETION = {
    "id": "cmpl-1",
    "model": "text",
    "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}],
    "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 1}},
}


def whole(result: Any, **more: Any) -> Callable[[FakeServer, Heard], None]:
    return lambda server, heard: server.say(RESULT, heard.request, {"result": result, **more})


def test_a_prompt_is_a_completion(fakes: Fakes) -> None:
    server = fakes.server(whole(COMPLETION, tokens=[[7, 8]]))
    with fakes.client(server) as client:
        answer = client.generate("ab", max_tokens=2, temperature=0.5, stop=["x"])
    assert answer == Completion("cmpl-1", "text", (Choice(0, "ab", "", (7, 8), (), "length"),), Usage(3, 2, 1, 0))
    assert (answer.text, answer.tokens, answer.finish_reason) == ("ab", (7, 8), "length")
    (call,) = server.calls()
    assert call.endpoint == "completions"
    assert call.parameters == {"model": "text", "prompt": "ab", "max_tokens": 2, "temperature": 0.5, "stop": ["x"]}


def test_messages_are_a_chat(fakes: Fakes) -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    top = [{"token": "b", "logprob": -0.25, "bytes": [98]}]
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top}]}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    server = fakes.server(whole({"id": "chat-1", "model": "text", "choices": [choice], "usage": USAGE}))
    with fakes.client(server) as client:
        answer = client.generate(messages=HELLO, model="text", n=1)
    assert answer.choices == (Choice(0, "", "hm", (), (Logprob("a", -0.5, (("b", -0.25),)),), "stop"),)
    (call,) = server.calls()
    assert call.endpoint == "chat.completions"
    assert call.parameters == {"model": "text", "messages": HELLO, "n": 1}


def test_logprobs_of_completions_read_the_same(fakes: Fakes) -> None:
    logprobs = {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"c": -0.25}],
        "text_offset": [0, 1],
    }
    choice = {**COMPLETION["choices"][0], "logprobs": logprobs}  # type: ignore[index]
    server = fakes.server(whole({**COMPLETION, "choices": [choice]}))
    with fakes.client(server) as client:
        answer = client.generate("ab")
    assert answer.choices[0].logprobs == (Logprob("a", None), Logprob("b", -0.5, (("c", -0.25),)))


@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.int64])
def test_arrays_of_token_ids_travel_as_bytes(fakes: Fakes, dtype: type) -> None:
    server = fakes.server(whole(COMPLETION))
    with fakes.client(server) as client:
        client.generate(np.array([1, 2, 300], dtype))
    (call,) = server.calls()
    assert call.parameters["prompt"] == np.array([1, 2, 300], "<u4").tobytes()


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ([1, 2], [1, 2]),
        ([np.int64(1), np.uint8(2)], [1, 2]),
        ([np.array([1]), np.array([2, 3])], [[1], [2, 3]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([-1, 2]), [-1, 2]),  # the server says what is wrong with it
        (["a", "b"], ["a", "b"]),
    ],
)
def test_other_prompts_travel_as_they_are(fakes: Fakes, prompt: Any, sent: Any) -> None:
    server = fakes.server(whole(COMPLETION))
    with fakes.client(server) as client:
        client.generate(prompt)
    assert server.calls()[0].parameters["prompt"] == sent


def test_long_parameters_travel_in_parts(fakes: Fakes) -> None:
    server = fakes.server(whole(COMPLETION))
    text = "0123456789" * 30_000
    with fakes.client(server) as client:
        client.generate(text)
    (call,) = server.calls()
    assert call.parameters == {"model": "text", "prompt": text}


def test_a_long_result_comes_in_parts(fakes: Fakes) -> None:
    text = "x" * 300_000
    packed = msgpack.packb({**COMPLETION, "choices": [{"index": 0, "text": text}]})

    def answer(server: FakeServer, heard: Heard) -> None:
        server.say(PART, heard.request, {}, packed[:100_000])
        server.say(PART, heard.request, {}, packed[100_000:250_000])
        server.say(RESULT, heard.request, {"result_len": len(packed)}, packed[250_000:])

    with fakes.client(fakes.server(answer)) as client:
        assert client.generate("ab").text == text


def test_a_stream_gives_pieces_and_then_its_result(fakes: Fakes) -> None:
    def answer(server: FakeServer, heard: Heard) -> None:
        server.say(CHUNK, heard.request, {"index": 1, "reasoning": "hm", "tokens": [5]})
        server.say(CHUNK, heard.request, {"index": 0, "text": "a", "tokens": [6]})
        server.say(CHUNK, heard.request, {"index": 1, "text": "b", "tokens": [7], "finish_reason": "stop"})
        server.say(CHUNK, heard.request, {"index": 0, "text": "c", "finish_reason": "length"})
        ends = [{"index": 0, "finish_reason": "length"}, {"index": 1, "finish_reason": "stop"}]
        server.say(RESULT, heard.request, {"result": {"id": "1", "model": "text", "choices": ends, "usage": USAGE}})

    with fakes.client(fakes.server(answer)) as client:
        stream = client.generate("ab", stream=True, n=2)
        chunks = list(stream)
        assert chunks[:2] == [Chunk(1, "", "hm", (5,)), Chunk(0, "a", "", (6,))]
        assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop", "length"]
        assert stream.result().choices == (
            Choice(0, "ac", "", (6,), (), "length"),
            Choice(1, "b", "hm", (5, 7), (), "stop"),
        )
        assert stream.result().usage == Usage(3, 2)
        assert list(stream) == []


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, None, BadRequest),
        (400, "context_length_exceeded", BadRequest),
        (404, "model_not_found", NotFound),
        (413, "request_too_large", BadRequest),
        (408, "body_timeout", Timeout),
        (408, "slow_client", SlowReader),
        (429, "rate_limit_exceeded", Busy),
        (500, "internal_error", ServerError),
        (503, "shutting_down", Busy),
        (504, "timeout", Timeout),
    ],
)
def test_refusals_are_exceptions(fakes: Fakes, status: int, code: str | None, kind: type[RequestError]) -> None:
    error = {"message": "'n' is wrong", "type": "some_error", "param": "n", "code": code}

    def answer(server: FakeServer, heard: Heard) -> None:
        server.say(FAILED, heard.request, {"status": status, "error": error, "retry_after_s": 2})

    with fakes.client(fakes.server(answer)) as client:
        with pytest.raises(kind, match="'n' is wrong") as raised:
            client.generate("ab")
        found = raised.value
        assert type(found) is kind
        assert (found.status, found.type, found.param, found.code, found.retry_after) == (
            status,
            "some_error",
            "n",
            code,
            2,
        )
        # Of a stream, where it is read.
        stream = client.generate("ab", stream=True)
        with pytest.raises(kind):
            next(stream)
        assert list(stream) == []
        with pytest.raises(DenizenError, match="closed before its end"):
            stream.result()


def test_the_only_model_of_a_kind_is_taken(fakes: Fakes) -> None:
    models = {"object": "list", "data": [{"id": "one", "kind": "text"}, {"id": "two", "max_model_len": 9}]}
    server = fakes.server(whole(models))
    with fakes.client(server) as client:
        assert [(model.id, model.kind, model.context) for model in client.models()] == [
            ("one", "text", 0),
            ("two", "text", 9),
        ]
        with pytest.raises(BadRequest, match="several of kind 'text': 'one', 'two'") as raised:
            client.generate("ab")
        assert raised.value.param == "model"
        # The server may have got one since: it is asked first.
        with pytest.raises(BadRequest, match="no model of kind 'asr'; it has 'one'"):
            client.transcribe(np.zeros(10, np.float32), 16000)
        assert [call.endpoint for call in server.calls()] == ["models", "models"]


def test_welcome_tells_models_and_limits(fakes: Fakes) -> None:
    with fakes.client(fakes.server()) as client:
        assert client.server_version == "0.0-fake"
        assert (client.limits.max_in_flight, client.limits.max_audio_s) == (8, 60)
        assert client.limits.max_buffered is None
        assert not client.closed


def test_tokenize_and_detokenize(fakes: Fakes) -> None:
    def answer(server: FakeServer, heard: Heard) -> None:
        if heard.endpoint == "tokenize":
            result = {"count": 2, "max_model_len": 9, "tokens": [1, 2], "token_strs": ["a", "b"]}
        else:
            result = {"prompt": "ab"}
        server.say(RESULT, heard.request, {"result": result})

    server = fakes.server(answer)
    with fakes.client(server) as client:
        tokens = client.tokenize("ab", return_token_strs=True)
        assert (tokens.ids, tokens.strings, tokens.max_model_len) == ((1, 2), ("a", "b"), 9)
        assert client.detokenize(tokens.ids) == "ab"
        assert server.calls(2)[0].parameters == {"model": "text", "prompt": "ab", "return_token_strs": True}
        assert server.calls(2)[1].parameters == {"model": "text", "tokens": [1, 2]}
        with pytest.raises(BadRequest, match="either 'prompt'"):
            client.tokenize()


@pytest.mark.parametrize("arguments", [{}, {"prompt": "a", "messages": HELLO}])
def test_prompt_and_messages_exclude_each_other(fakes: Fakes, arguments: dict[str, Any]) -> None:
    server = fakes.server()
    with fakes.client(server) as client, pytest.raises(BadRequest, match="either 'prompt'"):
        client.generate(**arguments)
    assert server.heard == [] or server.heard[0].kind != 33


@pytest.mark.parametrize("value", [object(), {1, 2}, 1 << 70])
def test_what_cannot_be_sent_is_refused_here(fakes: Fakes, value: Any) -> None:
    with fakes.client(fakes.server(whole(COMPLETION))) as client:
        with pytest.raises(BadRequest, match="cannot be sent"):
            client.generate("ab", stop=value)
        assert client.generate("ab").text == "ab"


@pytest.mark.parametrize(
    "body", [{"result": None}, {"result": [1]}, {"result_len": 99}, {"result": {"choices": [1]}}, {}]
)
def test_a_result_that_cannot_be_read_is_an_error(fakes: Fakes, body: dict[str, Any]) -> None:
    server = fakes.server(lambda server, heard: server.say(RESULT, heard.request, body))
    with fakes.client(server) as client, pytest.raises(DenizenError, match=r"RESULT cannot be read|announced a result"):
        client.generate("ab")


@pytest.mark.parametrize(
    "data",
    [b"\xc1", b"", msgpack.packb([1, 2]), msgpack.packb([9, CHUNK, 1, 0, {}]), msgpack.packb([1, CHUNK, 1, 0, 5])],
)
def test_garbage_from_the_server_ends_all_calls(fakes: Fakes, data: bytes) -> None:
    with fakes.client(fakes.server(lambda server, heard: server.raw(data))) as client:
        with pytest.raises(ServerGone, match="given up"):
            client.generate("ab")
        assert client.closed


def test_unknown_kinds_and_late_messages_are_ignored(fakes: Fakes) -> None:
    def answer(server: FakeServer, heard: Heard) -> None:
        server.say(77, heard.request, {"what": "ever"})
        server.say(CHUNK, 4711, {"text": "late"})
        server.say(PART, 4711, {}, b"late")
        server.say(RESULT, 4711, {"result": {}})
        server.say(FAILED, 4711, {"status": 499})
        server.say(RESULT, heard.request, {"result": COMPLETION})

    with fakes.client(fakes.server(answer)) as client:
        assert client.generate("ab").text == "ab"
