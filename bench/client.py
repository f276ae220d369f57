"""Sends a request to an OpenAI-compatible server and times its answer."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from denizen.bench.errors import BenchError
from denizen.bench.http1 import Pool
from denizen.bench.schema import Record
from denizen.bench.sse import Events

if TYPE_CHECKING:
    from denizen.bench.load import Clock
    from denizen.bench.workload import Job

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_TEXT = re.compile(rb'"(?:content|text|reasoning_content)": ?"([^"\\]+)"')


@dataclass(frozen=True)
class Target:
    """Where and how requests are sent."""

    url: str
    """Base URL, with or without `/v1`."""
    model: str
    endpoint: Endpoint = "chat"
    api_key: str | None = None
    stream: bool = True
    ignore_eos: bool = False
    timeout: float = 600.0
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of every body, for example `temperature`."""

    def route(self, path: str) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + path

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


class Client:
    """One connection pool to one target. Use as an async context manager."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._path = _path(target.route(_PATHS[target.endpoint]))
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self._pool = Pool(target.url, headers)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    async def models(self) -> list[str]:
        """Names that the server offers. Raises BenchError if it cannot be asked."""
        url = self.target.route("/v1/models")
        answer = _Whole()
        try:
            async with asyncio.timeout(self.target.timeout):
                await self._pool.request(_path(url), answer)
            if answer.status != 200:
                raise BenchError(f"{url} answered {answer.status}: {_error_text(answer.text())}")
            return [str(model["id"]) for model in json.loads(answer.text())["data"]]
        except OSError as error:  # TimeoutError among them
            raise BenchError(f"no server answers at {url} ({error}); is --url right?") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{url} did not answer with a list of models; is it an OpenAI-compatible API?") from error

    async def send(self, job: Job, scheduled: float, clock: Clock) -> Record:
        """Sends `job`; whatever goes wrong is in the record's `error`."""
        record = Record(index=job.index, max_tokens=job.max_tokens, scheduled=scheduled)
        payload = json.dumps(self.target.body(job)).encode()
        answer = _Stream(record, clock) if self.target.stream else _Whole()
        record.sent = clock.now()
        try:
            async with asyncio.timeout(self.target.timeout):
                await self._pool.request(self._path, answer, payload)
            if answer.status != 200:
                record.error = f"HTTP {answer.status}: {_error_text(answer.text())}"
            elif isinstance(answer, _Stream):
                answer.end()
            else:
                _read_answer(answer.text(), record)
        except _ErrorEvent as error:
            record.error = f"error event: {error}"
        except TimeoutError:
            record.error = f"no complete answer within {self.target.timeout:g} s"
        except OSError as error:
            record.error = f"broken connection: {error or type(error).__name__}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            record.error = f"an answer that is not OpenAI's ({type(error).__name__}: {error})"
        record.end = clock.now()
        return record


class _ErrorEvent(Exception):
    """The stream carried an error; its message."""


class _Whole:
    """Keeps an answer (:class:`denizen.bench.http1.Sink`)."""

    def __init__(self) -> None:
        self.status = 0
        self._parts: list[bytes] = []

    def begin(self, status: int) -> None:
        self.status = status

    def feed(self, data: bytes) -> None:
        self._parts.append(data)

    def text(self) -> str:
        return b"".join(self._parts).decode(errors="replace")


class _Stream(_Whole):
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
            raise _ErrorEvent(_error_text(data.decode(errors="replace")))
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


def _path(url: str) -> str:
    """What of a URL goes into the request line."""
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _error_text(text: str) -> str:
    """The message of an error in OpenAI's shape, else the start of the text."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text[:200].strip() or "(empty body)"
