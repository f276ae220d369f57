"""A small transcription server that misbehaves on request, for tests of the harness."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from .peer import running

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


@dataclass
class AsrBehaviour:
    """What the peer does, by the index at which a request arrives (from 0)."""

    texts: dict[str, str] = field(default_factory=dict)
    """What it hears, by the SHA-256 of the file."""
    otherwise: str = "a voice"
    """What it hears in every other file."""
    refuse: set[int] = field(default_factory=set)
    drop: set[int] = field(default_factory=set)
    """The socket is cut before the answer."""
    hang: set[int] = field(default_factory=set)
    garble: set[int] = field(default_factory=set)
    """An answer that is no JSON."""
    textless: set[int] = field(default_factory=set)
    """JSON without a text."""
    short: set[int] = field(default_factory=set)
    """One token less than was forced."""
    delay: float = 0.0
    usage: bool = True


@dataclass
class Upload:
    """What arrived: the form's fields, and the file."""

    fields: dict[str, str]
    filename: str
    content_type: str
    content: bytes


class AsrPeer:
    """`uploads` keeps what arrived, in order; `most` is how many were open at once."""

    def __init__(self, behaviour: AsrBehaviour) -> None:
        self.behaviour = behaviour
        self.uploads: list[Upload] = []
        self.open = self.most = 0
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "ears", "object": "model"}]})

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        fields = {name: str(value) for name, value in form.items() if name != "file"}
        index = len(self.uploads)
        upload = Upload(fields, file.filename, file.content_type, file.file.read())
        self.uploads.append(upload)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            return await self._answer(request, index, upload)
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, index: int, upload: Upload) -> web.StreamResponse:
        does = self.behaviour
        await asyncio.sleep(does.delay)
        if index in does.hang:
            await asyncio.Event().wait()
        if index in does.refuse:
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        if index in does.drop and request.transport is not None:
            request.transport.abort()
            return web.Response()
        if index in does.garble:
            return web.Response(body=b"<html>")
        text = does.texts.get(hashlib.sha256(upload.content).hexdigest(), does.otherwise)
        kind = upload.fields["response_format"]
        if kind == "text":
            return web.Response(text=text + "\n")
        if kind == "srt":
            return web.Response(
                text=f"1\n00:00:00,000 --> 00:00:01,000\n{text}\n\n2\n00:00:01,000 --> 00:00:02,000\nend\n"
            )
        if kind == "vtt":
            return web.Response(text=f"WEBVTT\n\nNOTE by ear\n\n00:00.000 --> 00:01.000\n{text}\n")
        answer: dict[str, Any] = {} if index in does.textless else {"text": text}
        if does.usage and "max_tokens" in upload.fields:
            count = int(upload.fields["max_tokens"]) - (index in does.short)
            answer["usage"] = {"type": "tokens", "output_tokens": count}
        return web.Response(text=json.dumps(answer), content_type="application/json")


def hearing(behaviour: AsrBehaviour | None = None) -> AbstractContextManager[AsrPeer]:
    """Runs a peer in a thread of its own until the block is left."""
    return running(AsrPeer(behaviour or AsrBehaviour()))
