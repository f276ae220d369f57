"""The client for programs that wait in threads."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from denizen.shm import requests
from denizen.shm.deadline import Deadline
from denizen.shm.opening import connect
from denizen.shm.stream import Speech, Stream, wait

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


class Client:
    """A connection to a server on this machine. Any number of threads may use it, and have calls open, at once.

    `name` is that of `denizen serve --shm-name`; `path`, if given, is the socket's path and takes its place. `audio`
    asks for larger shared memory (5 MiB in place of 1), with which long recordings travel in fewer pieces.

    `timeout` is how many seconds a call may take unless it names another; None means for ever. It runs from the call to
    the end of the answer, the time that the caller spends between two pieces included. `connect_timeout` is how many
    seconds connecting may take.

    A call without `model` goes to the server's only model of the kind that it needs.

    Raises ConnectError. Any call raises BadRequest, NotFound, Busy, Timeout, ServerError, SlowReader, ServerGone,
    ClientClosed or Forked.
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
        self._connection = connect(name, path, audio, connect_timeout)
        self._models = self._connection.models
        # A client that is dropped without `close` ends its connection all the same.
        weakref.finalize(self, self._connection.close).atexit = False

    @overload
    def generate(
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
    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
        stream: Literal[True],
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[GenerateParameters],
    ) -> Stream[Chunk, Completion]: ...
    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
        stream: bool = False,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[GenerateParameters],
    ) -> Completion | Stream[Chunk, Completion]:
        """Continues a text or token ids (`prompt`: one or a list of either), or answers a conversation (`messages`).

        With `stream` the answer comes in pieces, as they are made, from an iterator.
        """
        deadline = self._deadline(timeout)
        body = self._body("text", model, parameters, deadline)
        request = requests.generate(prompt, messages, stream, body)
        if stream:
            return Stream(self, self._connection, request, deadline)
        return wait(self._connection, request, deadline)

    @overload
    def transcribe(
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
    def transcribe(
        self,
        pcm: Audio,
        rate: int,
        *,
        model: str | None = None,
        translate: bool = False,
        stream: Literal[True],
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[TranscribeParameters],
    ) -> Stream[TranscriptChunk, Transcript]: ...
    def transcribe(
        self,
        pcm: Audio,
        rate: int,
        *,
        model: str | None = None,
        translate: bool = False,
        stream: bool = False,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[TranscribeParameters],
    ) -> Transcript | Stream[TranscriptChunk, Transcript]:
        """Writes down what is said in `pcm`, sampled at `rate` hertz; with `translate`, in English.

        `pcm` is an array `[samples]`, `[channels, samples]` or `[samples, channels]`, float32 (−1 to 1) or int16. The
        shorter axis has the channels, at most 8; their mean is transcribed.
        """
        deadline = self._deadline(timeout)
        body = self._body("asr", model, parameters, deadline)
        request = requests.transcribe(pcm, rate, translate, stream, body)
        if stream:
            return Stream(self, self._connection, request, deadline)
        return wait(self._connection, request, deadline)

    def speak(
        self,
        text: str,
        *,
        model: str | None = None,
        timeout: float | EllipsisType | None = ...,
        **parameters: Unpack[SpeakParameters],
    ) -> Speech:
        """Reads `text` aloud: an iterator over float32 arrays `[samples]`, mono, as they are made."""
        deadline = self._deadline(timeout)
        request, voice = requests.speak(text, self._body("tts", model, parameters, deadline))
        return Speech(self, self._connection, request, deadline, voice)

    def tokenize(
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
        body = self._body("text", model, parameters, deadline)
        return wait(self._connection, requests.tokenize(prompt, messages, body), deadline)

    def detokenize(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        *,
        model: str | None = None,
        timeout: float | EllipsisType | None = ...,
    ) -> str:
        """The text of token ids, special tokens shown."""
        deadline = self._deadline(timeout)
        body = self._body("text", model, {}, deadline)
        return wait(self._connection, requests.detokenize(tokens, body), deadline)

    def models(self, *, timeout: float | EllipsisType | None = ...) -> tuple[Model, ...]:
        """What the server offers now."""
        self._models = wait(self._connection, requests.models(), self._deadline(timeout))
        return self._models

    @property
    def limits(self) -> Limits:
        """The server's."""
        return self._connection.limits

    @property
    def server_version(self) -> str:
        return self._connection.server_version

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, from whichever side."""
        return self._connection.closed

    def close(self) -> None:
        """Ends all open calls, in whichever thread, with ClientClosed. More than once does no harm."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _deadline(self, timeout: float | EllipsisType | None) -> Deadline:
        return Deadline(self._timeout if timeout is ... else timeout)

    def _body(self, kind: str, model: str | None, parameters: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """The parameters with the model's name."""
        if model is None:
            if not any(known.kind == kind for known in self._models):  # connected while the server was still loading
                self._models = wait(self._connection, requests.models(), deadline)
            model = requests.only_model(self._models, kind)
        return {"model": model, **parameters}
