"""A small speech server that misbehaves on request, for tests of the harness."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile
from aiohttp import web

from .peer import running

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

RATE = 24_000
SECONDS_A_CHARACTER = 0.02
_PART = 0.1


@dataclass
class TtsBehaviour:
    """What the peer does, by the index at which a request arrives (from 0)."""

    refuse: set[int] = field(default_factory=set)
    hang: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    empty: set[int] = field(default_factory=set)
    """A body without a byte."""
    odd: set[int] = field(default_factory=set)
    """Half of the last sample is missing."""
    short: set[int] = field(default_factory=set)
    """A tenth of the audio, properly ended."""
    drop: set[int] = field(default_factory=set)
    """The socket is cut after half of it."""
    apology: set[int] = field(default_factory=set)
    """JSON with status 200."""
    no_end: set[int] = field(default_factory=set)
    """Events end without `speech.audio.done`."""
    error_event: set[int] = field(default_factory=set)
    headless: set[int] = field(default_factory=set)
    """A WAV without its header."""
    wrong_sizes: set[int] = field(default_factory=set)
    """The WAV header promises more than comes."""
    wrong_frames: set[int] = field(default_factory=set)
    """The WAV header contradicts itself."""
    stall: dict[int, float] = field(default_factory=dict)
    """Seconds that it stands still after the first part."""
    delay: float = 0.0
    """Seconds before the first byte."""
    header_first: float = 0.0
    """Seconds between the WAV header and the first sample."""
    pace: float = 0.0
    """Seconds between parts of 0.1 s of audio."""
    leading: float = 0.0
    """Seconds of silence at the start of the audio."""
    rate: int = RATE
    rate_header: bool = False
    listed: bool = True
    """There is a list of models."""


class TtsPeer:
    """`requests` keeps what arrived, in order; `most` is how many were open at once."""

    def __init__(self, behaviour: TtsBehaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[dict[str, Any]] = []
        self.open = self.most = 0
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        if self.behaviour.listed:
            app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/audio/speech", self._speak)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "mouth", "object": "model"}]})

    async def _speak(self, request: web.Request) -> web.StreamResponse:
        index, body = len(self.requests), await request.json()
        self.requests.append(body)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            return await self._answer(request, index, body)
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, index: int, body: dict[str, Any]) -> web.StreamResponse:
        does = self.behaviour
        await asyncio.sleep(does.delay)
        if index in does.hang:
            await asyncio.Event().wait()
        if index in does.refuse:
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        if index in does.apology:
            return web.json_response({"message": "no voice today"})
        content = self._content(index, body)
        if "stream_format" not in body:
            if index in does.drop and request.transport is not None:
                request.transport.abort()
            return web.Response(body=content, content_type=f"audio/{body['response_format']}")
        return await self._stream(request, index, body, content)

    def _content(self, index: int, body: dict[str, Any]) -> bytes:
        does = self.behaviour
        text = body["input"]
        sound = tone(len(text) * SECONDS_A_CHARACTER, does.rate, pitch(text))
        sound = np.concatenate([np.zeros(round(does.leading * does.rate), np.float32), sound])
        if index in does.silent:
            sound *= 1e-4
        if index in does.short:
            sound = sound[: len(sound) // 10]
        if index in does.empty:
            sound = sound[:0]
        kind = body["response_format"]
        if kind not in ("pcm", "wav"):
            file = io.BytesIO()
            names = {"opus": ("OGG", "OPUS"), "mp3": ("MP3", None), "flac": ("FLAC", None)}
            form, subtype = names[kind]
            soundfile.write(file, sound, does.rate, format=form, subtype=subtype)
            return file.getvalue()
        samples = (sound * 32767).astype("<i2").tobytes()
        if index in does.odd:
            samples = samples[:-1]
        if kind == "pcm" or index in does.headless or index in does.empty:
            return samples
        size = 0xFFFFFFFF if "stream_format" in body else len(samples)
        align = 4 if index in does.wrong_frames else 2
        size = len(samples) + 1000 if index in does.wrong_sizes else size
        return wav_header(size, does.rate, align) + samples

    async def _stream(
        self, request: web.Request, index: int, body: dict[str, Any], content: bytes
    ) -> web.StreamResponse:
        does = self.behaviour
        events = body["stream_format"] == "sse"
        headers = {"Content-Type": "text/event-stream" if events else f"audio/{body['response_format']}"}
        if does.rate_header:
            headers["X-Sample-Rate"] = str(does.rate)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)

        async def send(event: dict[str, Any]) -> None:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        if does.header_first:
            await response.write(content[:44])
            content = content[44:]
            await asyncio.sleep(does.header_first)
        step = round(_PART * does.rate) * 2
        for number, at in enumerate(range(0, len(content), step)):
            if number:
                await asyncio.sleep(does.stall.get(index, does.pace) if number == 1 else does.pace)
            part = content[at : at + step]
            if events:
                await send({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
            else:
                await response.write(part)
            if number == 1 and index in does.error_event:
                await send({"error": {"message": "worker died"}})
                return response
            if number == 1 and index in does.drop and request.transport is not None:
                request.transport.abort()
                return response
        if events and index not in does.no_end:
            await send({"type": "speech.audio.done", "usage": {"input_tokens": 1, "output_tokens": 1}})
        return response


def tone(seconds: float, rate: int = RATE, hertz: float = 440.0) -> NDArray[np.float32]:
    """At −20 dB or so."""
    return (0.15 * np.sin(2 * np.pi * hertz / rate * np.arange(round(seconds * rate)))).astype(np.float32)


def pitch(text: str) -> float:
    """Hertz of the tone that says `text`."""
    return 200 + zlib.crc32(text.encode()) % 100_000 / 100


def wav_header(size: int, rate: int = RATE, align: int = 2) -> bytes:
    """Of mono s16 samples of `size` bytes."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * align, align, 16)
    return b"RIFF" + struct.pack("<I", min(size + 36, 0xFFFFFFFF)) + b"WAVE" + form + struct.pack("<4sI", b"data", size)


class Parrot(TtsPeer):
    """Transcribes, too: it knows what it has said by the samples. `hears` changes that."""

    def __init__(self, behaviour: TtsBehaviour, hears: Callable[[str], str | None]) -> None:
        super().__init__(behaviour)
        self.hears = hears
        self.uploads: list[dict[str, str]] = []
        self._said: dict[bytes, str] = {}

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "mouth"}, {"id": "ears"}]})

    def _content(self, index: int, body: dict[str, Any]) -> bytes:
        content = super()._content(index, body)
        samples, _ = soundfile.read(io.BytesIO(content), dtype="int16")
        self._said[samples.tobytes()] = body["input"]
        return content

    async def _transcribe(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.uploads.append({name: str(value) for name, value in form.items() if name != "file"})
        file = form["file"]
        assert isinstance(file, web.FileField)
        samples, _ = soundfile.read(file.file, dtype="int16")
        text = self.hears(self._said[samples.tobytes()])
        if text is None:
            return web.json_response({"error": {"message": "deaf"}}, status=500)
        return web.json_response({"text": text})


def conversing(
    hears: Callable[[str], str | None] = lambda text: text, behaviour: TtsBehaviour | None = None
) -> AbstractContextManager[Parrot]:
    """Runs a parrot in a thread of its own until the block is left."""
    return running(Parrot(behaviour or TtsBehaviour(), hears))


def speaking(behaviour: TtsBehaviour | None = None) -> AbstractContextManager[TtsPeer]:
    """Runs a peer in a thread of its own until the block is left."""
    return running(TtsPeer(behaviour or TtsBehaviour()))
