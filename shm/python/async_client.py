"""The client for programs that use asyncio."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from denizen.shm import requests
from denizen.shm.aio import AsyncSpeech, AsyncStream, LoopConnection
from denizen.shm.deadline import Deadline
from denizen.shm.errors import ClientClosed
from denizen.shm.opening import connect

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from types import EllipsisType, TracebackType

    import numpy as np
    import numpy.typing as npt
    from denizen.shm.parameters import GenerateParameters, SpeakParameters, TokenizeParameters, TranscribeParameters
    from denizen.shm.requests import Audio, Message, Prompt
    from denizen.shm.results import Chunk, Completion, Limits, Model, Tokens, Transcript, TranscriptChunk
    from typing_extensions import Unpack

R = TypeVar("R")


class AsyncClient:
    """What :class:`Client` is for threads, for asyncio: the same calls, to be awaited; any number may be open at once.

    Connecting happens in `async with` or `connect`. The arguments are those of :class:`Client`. A client may be used by
    several event loops, in several threads.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        path: str | os.PathLike[str] | None = None,
        timeout: float | None = 600.0,
        connect_timeout: float = 10.0,
        audio: bool = False,
    ) -> None:
        Deadline(timeout)
        self._timeout = timeout
        self._where = (name, path, audio, connect_timeout)
        self._opened: LoopConnection | None = None
        self._models: tuple[Model, ...] = ()

    async def connect(self) -> Self:
        """Connects, unless that was done. Raises ConnectError."""
        if self._opened is None:
            connection = await asyncio.to_thread(connect, *self._where)
            if self._opened is not None:  # two tasks at once
                connection.close()
                return self
            self._opened = LoopConnection(connection)
            self._models = connection.models
            # A client that is dropped without `close` ends its connection all the same.
            weakref.finalize(self, connection.close).atexit = False
        return self

    @property
    def _connection(self) -> LoopConnection:
        if self._opened is None:
            raise ClientClosed(
                "the client is not connected: use `async with AsyncClient(…) as client`, or await connect()"
            )
        return self._opened

    @overload
    async def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
        stream: Literal[False] = False,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[GenerateParameters],
    ) -> Completion: ...
    @overload
    async def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
        stream: Literal[True],
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[GenerateParameters],
    ) -> AsyncStream[Chunk, Completion]: ...
    async def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
        stream: bool = False,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[GenerateParameters],
    ) -> Completion | AsyncStream[Chunk, Completion]:
        """Continues a text or token ids (`prompt`: one or a list of either), or answers a conversation (`messages`).

        With `stream` the answer comes in pieces, as they are made, from an asynchronous iterator.
        """
        deadline = self._deadline(timeout)
        body = await self._body("text", model, parameters, deadline)
        request = requests.generate(prompt, messages, stream, body)
        if stream:
            return await AsyncStream(self, self._connection, request, deadline)._begin()
        return await self._connection.wait(request, deadline)

    @overload
    async def transcribe(
        self,
        pcm: Audio,
        rate: int,
        *,
        model: str | None = None,
        translate: bool = False,
        stream: Literal[False] = False,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[TranscribeParameters],
    ) -> Transcript: ...
    @overload
    async def transcribe(
        self,
        pcm: Audio,
        rate: int,
        *,
        model: str | None = None,
        translate: bool = False,
        stream: Literal[True],
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[TranscribeParameters],
    ) -> AsyncStream[TranscriptChunk, Transcript]: ...
    async def transcribe(
        self,
        pcm: Audio,
        rate: int,
        *,
        model: str | None = None,
        translate: bool = False,
        stream: bool = False,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[TranscribeParameters],
    ) -> Transcript | AsyncStream[TranscriptChunk, Transcript]:
        """Writes down what is said in `pcm`, sampled at `rate` hertz; with `translate`, in English.

        `pcm` is an array `[samples]`, `[channels, samples]` or `[samples, channels]`, float32 (−1 to 1) or int16. The
        shorter axis has the channels, at most 8; their mean is transcribed.
        """
        deadline = self._deadline(timeout)
        body = await self._body("asr", model, parameters, deadline)
        # Converting a long recording takes a while.
        request = await asyncio.to_thread(requests.transcribe, pcm, rate, translate, stream, body)
        if stream:
            return await AsyncStream(self, self._connection, request, deadline)._begin()
        return await self._connection.wait(request, deadline)

    async def speak(
        self,
        text: str,
        *,
        model: str | None = None,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[SpeakParameters],
    ) -> AsyncSpeech:
        """Reads `text` aloud: an asynchronous iterator over float32 arrays `[samples]`, mono, as they are made."""
        deadline = self._deadline(timeout)
        request, voice = requests.speak(text, await self._body("tts", model, parameters, deadline))
        return await AsyncSpeech(self, self._connection, request, deadline, voice)._begin()

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[TokenizeParameters],
    ) -> Tokens:
        """Token ids of a text or of a conversation."""
        deadline = self._deadline(timeout)
        body = await self._body("text", model, parameters, deadline)
        return await self._connection.wait(requests.tokenize(prompt, messages, body), deadline)

    async def detokenize(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        *,
        model: str | None = None,
        timeout: float | EllipsisType | None = ...,
    ) -> str:
        """The text of token ids, special tokens shown."""
        deadline = self._deadline(timeout)
        body = await self._body("text", model, {}, deadline)
        return await self._connection.wait(requests.detokenize(tokens, body), deadline)

    async def models(self, *, timeout: float | EllipsisType | None = ...) -> tuple[Model, ...]:
        """What the server offers now."""
        self._models = await self._connection.wait(requests.models(), self._deadline(timeout))
        return self._models

    @property
    def limits(self) -> Limits:
        """The server's."""
        return self._connection.connection.limits

    @property
    def server_version(self) -> str:
        return self._connection.connection.server_version

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, from whichever side."""
        return self._connection.connection.closed

    async def close(self) -> None:
        """Ends all open calls with ClientClosed. More than once does no harm."""
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _deadline(self, timeout: float | EllipsisType | None) -> Deadline:
        return Deadline(self._timeout if timeout is ... else timeout)

    async def _body(
        self, kind: str, model: str | None, parameters: Mapping[str, Any], deadline: Deadline
    ) -> dict[str, Any]:
        """The parameters with the model's name."""
        if model is None:
            if not any(known.kind == kind for known in self._models):  # connected while the server was still loading
                self._models = await self._connection.wait(requests.models(), deadline)
            model = requests.only_model(self._models, kind)
        return {"model": model, **parameters}
