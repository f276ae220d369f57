"""P04, P05, P06, P12 and their kind: a bad request is refused with the parameter named, and harms nobody.

After each one a plain request is served, and (for every test here) the server is healthy and holds nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .running import Running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def refused(server: Running, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    """The error of a request that must be refused: in OpenAI's shape, without insides leaking."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = server.http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    for leak in ("Traceback", "panicked", ".rs:", ".py"):
        assert leak not in error["message"]
    served = server.post(CHAT, {"messages": HI, "max_tokens": 2, "temperature": 0})
    assert served["choices"][0]["finish_reason"] in ("stop", "length")
    return error


def chat(**changes: Any) -> dict[str, Any]:
    return {"model": "hybrid", "messages": HI, "max_tokens": 4, **changes}


# --- P04: logit_bias and its like ---


@pytest.mark.parametrize(
    "bias",
    [
        {"99999999": 5},
        {"508": 1, "512": 1},
        {"-1": 1},
        {"4294967296": 1},
        {"abc": 1},
        {"": 1},
        {"1.5": 1},
        {"12": 1000},
        {"12": -100.5},
        {"12": "1"},
        {"12": None},
        {"12": [1]},
        [1, 2],
        "12",
        7,
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_p04_a_bad_logit_bias_is_named_and_kills_nobody(
    tiny_server: Running, path: str, bias: Any, stream: bool
) -> None:
    body = {"model": "hybrid", "logit_bias": bias, "max_tokens": 4, "stream": stream}
    body |= {"messages": HI} if path == CHAT else {"prompt": "hi"}
    assert refused(tiny_server, path, body)["param"] == "logit_bias"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", -0.5),
        ("top_p", 1.5),
        ("top_k", -5),
        ("top_k", 1.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("seed", "x"),
        ("seed", 1.5),
        ("n", 0),
        ("n", 100000),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_completion_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 5),
        ("stop", ""),
        ("stop", [""]),
        ("stop", 5),
        ("stop", ["x"] * 100),
        ("stop_token_ids", [99999999]),
        ("stop_token_ids", ["a"]),
        ("top_logprobs", 5),
        ("stream", "yes"),
        ("ignore_eos", 1),
        ("stream_options", {"include_usage": True}),
        ("model", 5),
        ("model", ""),
        ("chat_template_kwargs", "x"),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("no_such_parameter", 1),
    ],
)
def test_a_bad_parameter_is_named(tiny_server: Running, field: str, value: Any) -> None:
    error = refused(tiny_server, CHAT, chat(**{field: value}), 404 if (field, value) == ("model", "") else 400)
    assert (error["param"] or "").split("[")[0].split(".")[0] == field


# --- P05: lengths ---


def test_p05_a_prompt_that_is_too_long_by_itself_is_told(tiny_server: Running) -> None:
    error = refused(tiny_server, CHAT, chat(messages=[{"role": "user", "content": "a " * 400_000}]))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "2048" in error["message"]
    assert "prompt alone" in error["message"]


@pytest.mark.parametrize("asked", [2048, 2_000_000_000, 2**40, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_p05_an_output_that_is_too_long_is_told_with_all_numbers(tiny_server: Running, asked: int, field: str) -> None:
    body = {"model": "hybrid", "messages": HI, field: asked}
    error = refused(tiny_server, CHAT, body)
    prompt = tiny_server.post("/tokenize", {"messages": HI})["count"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == field
    for number in (2048, prompt, min(asked, 2**63 - 1)):
        assert str(number) in error["message"]
    assert "-" not in error["message"].replace("context-length", "")


def test_the_longest_request_that_fits_is_served(tiny_server: Running) -> None:
    """The limit is exact: one token more is refused."""
    ids = [300 + index % 100 for index in range(2000)]
    served = tiny_server.complete(ids, max_tokens=48, ignore_eos=True)
    assert served["usage"] == {**served["usage"], "prompt_tokens": 2000, "completion_tokens": 48}
    refused(tiny_server, COMPLETIONS, {"model": "hybrid", "prompt": ids, "max_tokens": 49})
    assert tiny_server.complete(ids + [300] * 47, max_tokens=1)["usage"]["prompt_tokens"] == 2047
    error = refused(tiny_server, COMPLETIONS, {"model": "hybrid", "prompt": ids + [300] * 48, "max_tokens": 1})
    assert error["param"] == "prompt"


# --- P06: content that is not text ---


@pytest.mark.parametrize(
    "part",
    [
        PIXEL,
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "video_url", "video_url": {"url": "http://127.0.0.1:1/x.mp4"}},
    ],
)
def test_p06_a_part_that_is_not_text_is_refused_by_its_place(tiny_server: Running, part: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    error = refused(tiny_server, CHAT, chat(messages=[{"role": "user", "content": content}]))
    assert error["param"] == "messages[0].content[1]"
    assert "text only" in error["message"]


def test_text_parts_are_taken(tiny_server: Running) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    whole = tiny_server.chat("one\ntwo", max_tokens=6, ignore_eos=True)
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    assert tiny_server.post(CHAT, body)["choices"] == whole["choices"]


# --- P12: messages and prompts that are none ---


@pytest.mark.parametrize("messages", [[], None, 5, "hi", {}, True, "missing"])
def test_p12_messages_that_are_none_are_named(tiny_server: Running, messages: Any) -> None:
    body = chat(messages=messages)
    if messages == "missing":
        del body["messages"]
    assert refused(tiny_server, CHAT, body)["param"] == "messages"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (None, ""),
        ("hi", ""),
        ({}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "king", "content": "hi"}, ".role"),
        ({"role": 5, "content": "hi"}, ".role"),
        ({"role": "user", "content": 5}, ".content"),
        ({"role": "user", "content": []}, ".content"),
        ({"role": "user", "content": ["hi"]}, ".content[0]"),
        ({"role": "user", "content": [{"text": "hi"}]}, ".content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text"),
    ],
)
def test_p12_a_message_that_is_none_is_named_by_its_place(tiny_server: Running, message: Any, place: str) -> None:
    body = chat(messages=[*HI, message])
    assert refused(tiny_server, CHAT, body)["param"] == f"messages[1]{place}"


@pytest.mark.parametrize(
    "prompt", ["", [], None, 5, {}, [[]], [""], [None], [1.5], [-1], [99999999], ["a", 1], [[1], "a", [2**40]]]
)
def test_p12_prompts_that_are_none_are_named(tiny_server: Running, prompt: Any) -> None:
    error = refused(tiny_server, COMPLETIONS, {"model": "hybrid", "prompt": prompt, "max_tokens": 2})
    assert error["param"].split("[")[0] == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model":"hybrid"', b"[" * 100_000])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_a_body_that_is_no_json_object_is_refused(tiny_server: Running, path: str, body: bytes) -> None:
    assert refused(tiny_server, path, body)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", CHAT, 405), ("POST", "/health", 405), ("DELETE", "/v1/models", 405)],
)
def test_a_wrong_route_or_method_is_an_error_in_openais_shape(
    tiny_server: Running, method: str, path: str, status: int
) -> None:
    response = tiny_server.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["message"]
