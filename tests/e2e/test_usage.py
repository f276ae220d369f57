"""P07 and its kind: `stream_options`, and usage where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .running import Running

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
@pytest.mark.parametrize("n", [1, 3])
def test_p07_usage_is_one_last_chunk_without_choices_and_only_if_asked(
    tiny_server: Running, path: str, options: dict[str, Any] | None, n: int
) -> None:
    body = {**BODIES[path], "max_tokens": 5, "ignore_eos": True, "temperature": 0, "n": n}
    whole = tiny_server.post(path, body)["usage"]
    extra = {} if options is None else {"stream_options": options}
    events = list(tiny_server.stream(path, {**body, **extra}))
    with_usage = [event for event in events if event.get("usage")]
    if options and options.get("include_usage"):
        assert with_usage == events[-1:]
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == whole
        assert whole["completion_tokens"] == 5 * n
        assert whole["total_tokens"] == whole["prompt_tokens"] + 5 * n
    else:
        assert with_usage == []
        assert all(event["choices"] for event in events)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
@pytest.mark.parametrize("stream", [{}, {"stream": False}])
def test_p07_stream_options_without_stream_are_refused(
    tiny_server: Running, path: str, options: dict[str, Any], stream: dict[str, Any]
) -> None:
    body = {"model": "hybrid", **BODIES[path], "max_tokens": 2, "stream_options": options, **stream}
    response = tiny_server.http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


def test_all_chunks_of_a_stream_have_one_identity(tiny_server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "n": 2}
    events = list(tiny_server.stream("/v1/chat/completions", body))
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
