"""A small OpenAI-shaped server that misbehaves on request, for tests of the harness."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


@dataclass
class Behaviour:
    """What the peer does, by the index at which a request arrives (from 0)."""

    short: set[int] = field(default_factory=set)
    """One token less than asked, though finish_reason says `length`."""
    refuse: set[int] = field(default_factory=set)
    """HTTP 500 with an error body."""
    error_event: set[int] = field(default_factory=set)
    """An error event after the first token."""
    truncate: set[int] = field(default_factory=set)
    """The connection is closed after the first token, cleanly for HTTP, but without `[DONE]`."""
    drop: set[int] = field(default_factory=set)
    """The socket is cut after the first token."""
    hang: set[int] = field(default_factory=set)
    """No answer at all until the peer stops."""
    overcount: set[int] = field(default_factory=set)
    """Usage claims fewer tokens than the stream carried."""
    stall: dict[int, float] = field(default_factory=dict)
    """When this request arrives, the whole peer stands still for so many seconds."""
    rows: int | None = None
    """Requests that are answered at once; the others wait."""
    limit: int | None = None
    """Open requests beyond which more are refused with 429."""
    token_s: float = 0.0
    """Seconds a token."""
    loading: int = 0
    """How often `/ready` says that it is not; without it, there is no such route."""
    padding: int = 0
    """Bytes that each event has beyond its text."""
    usage: bool = True
    api_key: str | None = None


class Peer:
    """`requests` and `paths` keep what arrived, in order."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.url = ""
        self.open = self.most = 0
        self.left = 0
        """Requests whose client went away."""
        self._stalled_until = 0.0
        self._rows = asyncio.Semaphore(behaviour.rows or 1_000_000)
        self._asked = 0

    def app(self) -> web.Application:
        app = web.Application()
        if self.behaviour.loading:
            app.router.add_get("/ready", self._ready)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        key = self.behaviour.api_key
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    async def _ready(self, _: web.Request) -> web.Response:
        self._asked += 1
        return web.json_response({}, status=503 if self._asked <= self.behaviour.loading else 200)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        index, body = len(self.requests), await request.json()
        self.requests.append(body)
        self.paths.append(request.path)
        loop = asyncio.get_running_loop()
        if index in self.behaviour.stall:
            self._stalled_until = loop.time() + self.behaviour.stall[index]
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            if self.behaviour.limit is not None and self.open > self.behaviour.limit:
                return web.json_response({"error": {"message": "too many requests"}}, status=429)
            await self._stand_still()
            async with self._rows:
                return await self._answer(request, index, body)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.open -= 1

    async def _stand_still(self) -> None:
        """Waits while the peer stalls."""
        loop = asyncio.get_running_loop()
        while (rest := self._stalled_until - loop.time()) > 0:
            await asyncio.sleep(rest)

    async def _answer(self, request: web.Request, index: int, body: dict[str, Any]) -> web.StreamResponse:
        does = self.behaviour
        if index in does.hang:
            await asyncio.Event().wait()
        if index in does.refuse:
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        count = body["max_tokens"] - (index in does.short)
        usage = {"prompt_tokens": 7, "completion_tokens": count - (index in does.overcount)}
        chat = request.path.endswith("chat/completions")
        if not body.get("stream"):
            text = "x" * count
            choice = {"index": 0, "finish_reason": "length"}
            choice |= {"message": {"content": text}} if chat else {"text": text}
            return web.json_response({"choices": [choice], **({"usage": usage} if does.usage else {})})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(event: dict[str, Any]) -> None:
            await self._stand_still()
            if does.padding:
                event = {**event, "padding": " " * does.padding}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        for token in range(count):
            if does.token_s:
                await asyncio.sleep(does.token_s)
            choice = {"index": 0, "finish_reason": "length" if token == count - 1 else None}
            choice |= {"delta": {"content": "x"}} if chat else {"text": "x"}
            await send({"choices": [choice]})
            if token == 0 and index in does.error_event:
                await send({"error": {"message": "worker died"}})
                return response
            if token == 0 and index in does.truncate:
                return response
            if token == 0 and index in does.drop and request.transport is not None:
                request.transport.abort()
                return response
        if does.usage:
            await send({"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


class App(Protocol):
    """What :func:`running` runs; it learns its own address."""

    url: str

    def app(self) -> web.Application: ...


A = TypeVar("A", bound=App)


def serving(behaviour: Behaviour | None = None) -> AbstractContextManager[Peer]:
    """Runs a peer in a thread of its own until the block is left."""
    return running(Peer(behaviour or Behaviour()))


@contextmanager
def running(peer: A) -> Iterator[A]:
    """Runs any such server in a thread of its own until the block is left."""
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        runner = web.AppRunner(peer.app(), handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        peer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    try:
        assert started.wait(30), "the peer did not start"
        yield peer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def main() -> None:
    """A peer as a process of its own: `peer.py PORT BEHAVIOUR`, the latter as JSON."""
    peer = Peer(Behaviour(**json.loads(sys.argv[2])))
    web.run_app(peer.app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
