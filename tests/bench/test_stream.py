"""Which events of a stream carry text: what is not parsed as JSON must be counted as if it had been."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from denizen.bench.api import ErrorEvent
from denizen.bench.client import _Stream
from denizen.bench.load import Clock
from denizen.bench.schema import Record

_TEXTS = ("x", "", " word", 'a"b', "\\", "ends with \\", "\n", "ü", "文", '"content":"', "}", "null", "\ud83d\ude00")


def chat(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def completion(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": 0, "text": text or "", "finish_reason": finish}], **more}


def read(events: list[dict[str, Any]], *, ascii_only: bool = False, tight: bool = True) -> Record:
    record = Record(index=0, max_tokens=1, scheduled=0.0)
    stream = _Stream(record, Clock())
    stream.begin(200, {})
    separators = (",", ":") if tight else None
    for event in events:
        stream.feed(b"data: " + json.dumps(event, ensure_ascii=ascii_only, separators=separators).encode() + b"\n\n")
    stream.feed(b"data: [DONE]\n\n")
    stream.end()
    assert record.error is None
    return record


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize("tight", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_every_text_counts_once_whatever_came_before(make: Any, tight: bool, seed: int) -> None:
    rng = random.Random(seed)
    texts = [rng.choice(_TEXTS) if rng.random() < 0.5 else "tok" for _ in range(60)]
    texts = [text.encode("utf-16", "surrogatepass").decode("utf-16") for text in texts]
    record = read([make(text) for text in texts], tight=tight, ascii_only=rng.random() < 0.5)
    assert record.events == sum(bool(text) for text in texts)
    assert len(record.gaps) == record.events - 1
    assert record.finish_reason is None


def test_the_last_event_is_read_although_it_looks_like_the_others() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    record = read([chat("a"), chat("b"), chat("c", "length", usage=usage), chat(None, "stop")])
    assert (record.events, record.finish_reason) == (3, "stop")
    assert (record.prompt_tokens, record.completion_tokens) == (3, 4)


def test_usage_in_every_event_is_kept_up_to_date() -> None:
    events = [chat("a", usage={"prompt_tokens": 3, "completion_tokens": count}) for count in (1, 2, 3)]
    assert read(events).completion_tokens == 3


def test_thoughts_are_text() -> None:
    events = [{"choices": [{"delta": {"reasoning_content": text, "content": None}}]} for text in ("a", "b", "")]
    assert read(events).events == 2


def test_two_choices_in_one_event_are_one_event() -> None:
    both = {"choices": [{"delta": {"content": "x"}}, {"delta": {"content": "x"}}]}
    first = {"choices": [{"delta": {"content": "x"}}, {"delta": {"content": ""}}]}
    assert read([both, first, both]).events == 3


def test_a_text_outside_of_the_choices_is_none() -> None:
    assert (
        read([{"text": "static", "choices": [{"delta": {"content": text}}]} for text in ("static", "", "x")]).events
        == 2
    )


def test_an_error_event_after_plain_text_is_seen() -> None:
    with pytest.raises(ErrorEvent, match="worker died"):
        read([chat("a"), chat("b"), {"error": {"message": "worker died"}}])


def test_each_gap_is_from_one_event_to_the_next() -> None:
    times = iter([1.0, 1.5, 1.75, 4.0])

    class Ticking(Clock):
        def now(self) -> float:
            return next(times)

    record = Record(index=0, max_tokens=3, scheduled=0.0)
    stream = _Stream(record, Ticking())
    stream.begin(200, {})
    for events in (chat(""), chat("a"), chat("b"), chat("c")):
        stream.feed(b"data: " + json.dumps(events).encode() + b"\n\n")
    assert (record.first, record.last) == (1.5, 4.0)
    assert record.gaps == [0.25, 2.25]
