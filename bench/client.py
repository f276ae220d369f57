"""Requests for text, and their answers: streamed, event by event, or whole."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from denizen.bench.api import Client, ErrorEvent, Left, Target, Whole, error_text, path_of
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
    slow_pace: float = 1000.0
    """Bytes a second that a slow reader reads."""

    def connect(self) -> TextClient:
        return TextClient(self)

    def body(self, job: Job, history: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """The body of a request; `history` is the conversation before it."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": job.max_tokens, "seed": job.seed, **self.extra}
        if self.endpoint == "chat":
            body["messages"] = [*(history or ()), *(job.messages or [{"role": "user", "content": job.prompt}])]
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
        self._conversations: dict[int, list[dict[str, Any]] | None] = {}
        """What was said so far; None after a turn that failed."""

    async def send(self, job: Job, scheduled: float, clock: Clock) -> Record:
        record = Record(index=job.index, max_tokens=job.max_tokens, scheduled=scheduled, slow=job.slow)
        history: list[dict[str, Any]] | None = None
        if job.conversation is not None:
            history = self._conversations.setdefault(job.conversation, [])
            if history is None:
                record.sent = record.end = clock.now()
                record.error = "not sent: an earlier turn of its conversation failed"
                return record
        body = self._target.body(job, history)
        said: list[str] | None = None if history is None else []
        answer = _Stream(record, clock, job.cancel_after, said) if self._target.stream else _Answer(record, said)
        pace = self._target.slow_pace if job.slow else None
        await self.exchange(record, clock, self._path, json.dumps(body).encode(), answer, answer.end, pace=pace)
        if record.slow and record.first is not None and record.error is not None:
            # A server may well end what nobody reads; that it had begun to answer is all that was asked of it.
            record.cut, record.error = record.error, None
        if job.conversation is not None:
            answered = [*body["messages"], {"role": "assistant", "content": "".join(said or ())}]
            self._conversations[job.conversation] = None if record.error is not None else answered
        return record


class _Answer(Whole):
    """An answer in one piece; what it says goes to `said`, if that is given."""

    def __init__(self, record: Record, said: list[str] | None) -> None:
        super().__init__()
        self._record = record
        self._said = said

    def end(self) -> None:
        choice = _read_answer(self.text(), self._record)
        if self._said is not None:
            self._said.append(choice.get("message", choice).get("content") or "")


class _Stream(Whole):
    """Times the events of a streamed answer.

    What it says goes to `said`, if that is given. After the event number `leave` that carries text it is given up.
    """

    def __init__(self, record: Record, clock: Clock, leave: int | None = None, said: list[str] | None = None) -> None:
        super().__init__()
        self._leave = leave
        self._said = said
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
        if record.events == self._leave:
            record.cancelled = True
            raise Left

    def _is_plain_text(self, event: bytes) -> bool:
        """Whether it equals the kept event but for a text that is not empty and has no escapes."""
        before, after = self._before, self._after
        if not (before and event.startswith(before) and event.endswith(after)):
            return False
        text = event[len(before) : len(event) - len(after)]
        if not text or b'"' in text or b"\\" in text:
            return False
        if self._said is not None and b'"reasoning_content"' not in before:
            self._said.append(text.decode())
        return True

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
        if self._said is not None:
            self._said += [text for choice in choices if (text := (choice.get("delta") or {}).get("content"))]
        says_more = event.get("usage") or any(choice.get("finish_reason") for choice in choices)
        found = None if says_more else _TEXT.search(data)
        if found and texts == [found[1].decode()]:
            self._before, self._after = data[: found.start(1)], data[found.end(1) :]
        return bool(texts)


def _read_answer(body: str, record: Record) -> dict[str, Any]:
    """Reads a whole answer into the record; returns its first choice."""
    answer = json.loads(body)
    _read_usage(answer, record)
    choice: dict[str, Any] = answer["choices"][0]
    record.finish_reason = choice.get("finish_reason")
    if record.completion_tokens is None:
        record.error = "an answer without usage: its tokens cannot be counted"
    return choice


def _read_usage(message: dict[str, Any], record: Record) -> None:
    usage = message.get("usage")
    if usage:
        record.prompt_tokens = int(usage["prompt_tokens"])
        record.completion_tokens = int(usage["completion_tokens"])
