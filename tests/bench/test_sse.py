"""The event parser of the harness's client."""

from __future__ import annotations

from denizen.bench.sse import Events


def test_events_are_whole_wherever_the_stream_is_cut() -> None:
    stream = 'data: {"a":"é👩‍👩‍👧"}\n\n: comment\n\nevent: x\ndata:{"b":2}\r\n\r\ndata: [DONE]\n\n'.encode()
    expected = ['{"a":"é👩‍👩‍👧"}'.encode(), b'{"b":2}', b"[DONE]"]
    for cut in range(len(stream) + 1):
        events = Events()
        found = [*events.feed(stream[:cut]), *events.feed(stream[cut:])]
        assert found == expected
        assert events.done


def test_an_event_that_has_not_ended_is_not_given() -> None:
    events = Events()
    assert list(events.feed(b"data: [DONE]")) == []
    assert not events.done
