"""Sends a request to an OpenAI-compatible server and times its answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
from denizen.bench.errors import BenchError
from denizen.bench.schema import Record
from denizen.bench.sse import Events

if TYPE_CHECKING:
    from denizen.bench.load import Clock
    from denizen.bench.workload import Job

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


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
        self._url = target.route(_PATHS[target.endpoint])
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        headers = {"Authorization": f"Bearer {self.target.api_key}"} if self.target.api_key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            # The load generator alone decides how many requests are open.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.target.timeout),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the client is used outside its context"
        return self._session

    async def models(self) -> list[str]:
        """Names that the server offers. Raises BenchError if it cannot be asked."""
        url = self.target.route("/v1/models")
        try:
            async with self.session.get(url) as response:
                text = await response.text()
                if response.status != 200:
                    raise BenchError(f"{url} answered {response.status}: {_error_text(text)}")
                return [str(model["id"]) for model in json.loads(text)["data"]]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(f"no server answers at {url} ({error}); is --url right?") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{url} did not answer with a list of models; is it an OpenAI-compatible API?") from error

    async def send(self, job: Job, scheduled: float, clock: Clock) -> Record:
        """Sends `job`; whatever goes wrong is in the record's `error`."""
        record = Record(index=job.index, max_tokens=job.max_tokens, scheduled=scheduled)
        payload = json.dumps(self.target.body(job)).encode()
        record.sent = clock.now()
        try:
            async with self.session.post(
                self._url, data=payload, headers={"Content-Type": "application/json"}
            ) as response:
                if response.status != 200:
                    record.error = f"HTTP {response.status}: {_error_text(await response.text(errors='replace'))}"
                elif self.target.stream:
                    await _read_stream(response, record, clock)
                else:
                    _read_answer(await response.read(), record)
        except TimeoutError:
            record.error = f"no complete answer within {self.target.timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            record.error = f"broken connection: {error or type(error).__name__}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            record.error = f"an answer that is not OpenAI's ({type(error).__name__}: {error})"
        record.end = clock.now()
        return record


async def _read_stream(response: aiohttp.ClientResponse, record: Record, clock: Clock) -> None:
    events = Events()
    async for chunk in response.content.iter_any():
        now = clock.now()
        for data in events.feed(chunk):
            if data == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                record.error = f"error event: {_error_text(data.decode(errors='replace'))}"
                return
            _read_usage(event, record)
            for choice in event.get("choices") or ():
                record.finish_reason = choice.get("finish_reason") or record.finish_reason
                delta = choice.get("delta") or choice
                if not (delta.get("content") or delta.get("reasoning_content") or delta.get("text")):
                    continue
                record.events += 1
                if record.last is None:
                    record.first = now
                else:
                    record.gaps.append(now - record.last)
                record.last = now
    if not events.done:
        record.error = "the stream ended without [DONE]"


def _read_answer(body: bytes, record: Record) -> None:
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


def _error_text(text: str) -> str:
    """The message of an error in OpenAI's shape, else the start of the text."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text[:200].strip() or "(empty body)"
