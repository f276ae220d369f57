"""Requests for text, and their answers: streamed, event by event, or whole."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from denizen.bench.api import Client, ErrorEvent, Target, Whole, error_text, path_of
from denizen.bench.errors import BenchError
from denizen.bench.schema import Record
from denizen.bench.sse import Events

if TYPE_CHECKING:
    from denizen.bench.load import Clock
    from denizen.bench.workload import Job

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_TEXT = re.compile(rb'"(?:content|text|reasoning_content)": ?"([^"\\]+)"')


@dataclass(frozen=True, kw_only=True)
class TextTarget(Target):
    """A server of text."""

    endpoint: Endpoint = "chat"
    stream: bool = True
    ignore_eos: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of every body, for example `temperature`."""

    def connect(self) -> TextClient:
        return TextClient(self)

    def body(self, job: Job) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": job.max_tokens, "seed": job.seed, **self.extra}
        if self.endpoint == "chat":
            body["messages"] = job.messages or [{"role": "user", "content": job.prompt}]
        elif job.messages is not None:
            raise BenchError("prompts with `messages` need --endpoint chat")
        else:
            body["prompt"] = job.prompt
        if self.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body


class TextClient(Client):
    """Sends requests for text."""

    def __init__(self, target: TextTarget) -> None:
        super().__init__(target)
        self._target = target
        self._path = path_of(target.route(_PATHS[target.endpoint]))

    async def send(self, job: Job, scheduled: float, clock: Clock) -> Record:
        record = Record(index=job.index, max_tokens=job.max_tokens, scheduled=scheduled)
        payload = json.dumps(self._target.body(job)).encode()
        answer = _Stream(record, clock) if self._target.stream else _Answer(record)
        await self.exchange(record, clock, self._path, payload, answer, answer.end)
        return record


class _Answer(Whole):
    """An answer in one piece."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def end(self) -> None:
        _read_answer(self.text(), self._record)


class _Stream(Whole):
    """Times the events of a streamed answer."""

    def __init__(self, record: Record, clock: Clock) -> None:
        super().__init__()
        self._record = record
        self._clock = clock
        self._events = Events()
        # Most events differ from the one before in their text alone. What stands around it is kept as bytes, so that
        # only the others are parsed as JSON.
        self._before = self._after = b""

    def feed(self, data: bytes) -> None:
        if self.status != 200:
            super().feed(data)
            return
        now = self._clock.now()
        for event in self._events.feed(data):
            if self._is_plain_text(event) or self._carries_text(event):
                self._count(now)

    def end(self) -> None:
        if not self._events.done:
            self._record.error = "the stream ended without [DONE]"

    def _count(self, now: float) -> None:
        record = self._record
        record.events += 1
        if record.last is None:
            record.first = now
        else:
            record.gaps.append(now - record.last)
        record.last = now

    def _is_plain_text(self, event: bytes) -> bool:
        """Whether it equals the kept event but for a text that is not empty and has no escapes."""
        before, after = self._before, self._after
        if not (before and event.startswith(before) and event.endswith(after)):
            return False
        text = event[len(before) : len(event) - len(after)]
        return bool(text) and b'"' not in text and b"\\" not in text

    def _carries_text(self, data: bytes) -> bool:
        if data == b"[DONE]":
            return False
        record = self._record
        event = json.loads(data)
        if "error" in event:
            raise ErrorEvent(error_text(data.decode(errors="replace")))
        _read_usage(event, record)
        choices = event.get("choices") or ()
        texts = []
        for choice in choices:
            record.finish_reason = choice.get("finish_reason") or record.finish_reason
            delta = choice.get("delta") or choice
            texts += [text for name in ("content", "reasoning_content", "text") if (text := delta.get(name))]
        says_more = event.get("usage") or any(choice.get("finish_reason") for choice in choices)
        found = None if says_more else _TEXT.search(data)
        if found and texts == [found[1].decode()]:
            self._before, self._after = data[: found.start(1)], data[found.end(1) :]
        return bool(texts)


def _read_answer(body: str, record: Record) -> None:
    answer = json.loads(body)
    _read_usage(answer, record)
    record.finish_reason = answer["choices"][0].get("finish_reason")
    if record.completion_tokens is None:
        record.error = "an answer without usage: its tokens cannot be counted"


def _read_usage(message: dict[str, Any], record: Record) -> None:
    usage = message.get("usage")
    if usage:
        record.prompt_tokens = int(usage["prompt_tokens"])
        record.completion_tokens = int(usage["completion_tokens"])
