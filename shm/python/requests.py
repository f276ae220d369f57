"""From the arguments of a call to what is sent, and from what comes back to typed results; no input or output.

Parameters are the HTTP API's, by the same names; the server checks them, with the code that checks an HTTP body. Only
what has no counterpart there is checked here: arrays, and which arguments go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from denizen.shm import pcm as sound
from denizen.shm import wire
from denizen.shm.errors import bad_request
from denizen.shm.results import Chunk, Completion, Model, Spoken, Tokens, Transcript, TranscriptChunk
from denizen.shm.wire import Envelope, ProtocolError

C = TypeVar("C")
R = TypeVar("R")

Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | npt.NDArray[np.integer[Any]]
Message = Mapping[str, Any]
Audio = npt.NDArray[np.float32] | npt.NDArray[np.int16]


@dataclass(frozen=True)
class Request(Generic[C, R]):
    """What to send, and how to read the answer: CHUNK to an item (None: nothing to hand on), RESULT to the result."""

    endpoint: str
    body: dict[str, Any]
    chunk: Callable[[Envelope], C | None]
    result: Callable[[Envelope], R]
    audio: sound.Pcm | None = None
    rate: int | None = None

    def messages(self, part_bytes: int) -> Iterator[wire.Message]:
        """What to send, in order. Raises BadRequest for parameters that cannot be."""
        try:
            body = wire.pack(self.body)
        except (TypeError, ValueError, OverflowError) as error:
            raise bad_request("body", f"a parameter is of a type that cannot be sent: {error}") from None
        audio = None if self.audio is None else self.audio.data.cast("B")
        return wire.call(self.endpoint, body, part_bytes, audio, self.rate)

    def read_chunk(self, envelope: Envelope) -> C | None:
        """Raises ProtocolError."""
        return _understood(self.chunk, envelope)

    def read_result(self, envelope: Envelope) -> R:
        """Raises ProtocolError."""
        return _understood(self.result, envelope)


def generate(
    prompt: Prompt | None,
    messages: Sequence[Message] | None,
    stream: bool,
    parameters: Mapping[str, Any],
) -> Request[Chunk, Completion]:
    body = _conversation(prompt, messages, parameters)
    endpoint = "completions" if messages is None else "chat.completions"
    if not stream:
        return Request(endpoint, body, _nothing, _completion)
    body["stream"] = True
    gathered = _Gathered()
    return Request(endpoint, body, gathered.chunk, gathered.result)


def transcribe(
    pcm: Audio, rate: int, translate: bool, stream: bool, parameters: Mapping[str, Any]
) -> Request[TranscriptChunk, Transcript]:
    # A stream's pieces have their segments anyway, and a stream takes no other format.
    body: dict[str, Any] = {"response_format": "json" if stream else "verbose_json", **parameters}
    if stream:
        body["stream"] = True
    return Request(
        "audio.translations" if translate else "audio.transcriptions",
        body,
        lambda envelope: TranscriptChunk.read(envelope.body),
        lambda envelope: Transcript.read(envelope.result()[0]),
        sound.mono(pcm),
        sound.sample_rate(rate),
    )


def speak(text: str, parameters: Mapping[str, Any]) -> tuple[Request[sound.Pcm, Spoken], Voice]:
    body = {"input": text, **parameters, "stream": True}
    voice = Voice()
    return Request("audio.speech", body, voice.chunk, voice.result), voice


def tokenize(
    prompt: str | None, messages: Sequence[Message] | None, parameters: Mapping[str, Any]
) -> Request[None, Tokens]:
    body = _conversation(prompt, messages, parameters)
    return Request("tokenize", body, _nothing, lambda envelope: Tokens.read(envelope.result()[0]))


def detokenize(
    tokens: Sequence[int] | npt.NDArray[np.integer[Any]], parameters: Mapping[str, Any]
) -> Request[None, str]:
    body = {"tokens": _ids("tokens", tokens), **parameters}
    return Request("detokenize", body, _nothing, lambda envelope: str(envelope.result()[0]["prompt"]))


def models() -> Request[None, tuple[Model, ...]]:
    def read(envelope: Envelope) -> tuple[Model, ...]:
        return tuple(Model.read(model) for model in envelope.result()[0]["data"])

    return Request("models", {}, _nothing, read)


def only_model(models: Sequence[Model], kind: str) -> str:
    """The model that a call goes to which names none. Raises BadRequest unless there is exactly one of its kind."""
    fitting = [model.id for model in models if model.kind == kind]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(f"'{name}'" for name in fitting)
        raise bad_request("model", f"'model' is missing, and the server has several of kind '{kind}': {names}")
    names = ", ".join(f"'{model.id}' ({model.kind})" for model in models) or "none yet"
    raise bad_request("model", f"the server has no model of kind '{kind}'; it has {names}", "unsupported_model")


@dataclass(slots=True)
class Voice:
    """Reads speech, and remembers its sample rate: 0 until the first of it has come."""

    rate: int = 0

    def chunk(self, envelope: Envelope) -> sound.Pcm | None:
        self.rate = int(envelope.body.get("rate") or self.rate)
        return sound.samples(envelope.attachment) if envelope.attachment else None

    def result(self, envelope: Envelope) -> Spoken:
        spoken = Spoken.read(envelope.result()[0])
        self.rate = spoken.sample_rate
        return spoken


@dataclass(slots=True)
class _Gathered:
    """The chunks of a stream, so that its result can say what they came to."""

    chunks: list[Chunk] = field(default_factory=list)

    def chunk(self, envelope: Envelope) -> Chunk:
        self.chunks.append(Chunk.read(envelope.body))
        return self.chunks[-1]

    def result(self, envelope: Envelope) -> Completion:
        return Completion.join(envelope.result()[0], self.chunks)


def _conversation(
    prompt: Prompt | None, messages: Sequence[Message] | None, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    if (prompt is None) == (messages is None):
        raise bad_request("prompt", "give either 'prompt' (text or token ids) or 'messages', and not both")
    if messages is None:
        return {"prompt": _ids("prompt", prompt), **parameters}
    return {"messages": messages, **parameters}


def _ids(param: str, value: Any) -> Any:
    """Arrays of token ids as the wire has them; all else as it is."""
    if isinstance(value, np.ndarray):
        if not np.issubdtype(value.dtype, np.integer):
            raise bad_request(param, f"'{param}' must be token ids of an integer type, not {value.dtype}")
        if value.ndim == 1 and value.size and value.min() >= 0 and value.max() < 1 << 32:
            return value.astype("<u4").tobytes()
        return value.tolist()
    if isinstance(value, list | tuple) and any(isinstance(part, np.ndarray | np.integer) for part in value):
        return [part.tolist() if isinstance(part, np.ndarray | np.integer) else part for part in value]
    return value


def _completion(envelope: Envelope) -> Completion:
    return Completion.read(envelope.result()[0], envelope.body.get("tokens") or ())


def _nothing(_: Envelope) -> None:
    return None


def _understood(read: Callable[[Envelope], R], envelope: Envelope) -> R:
    try:
        return read(envelope)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the server's {envelope.kind.name} cannot be read: {error!r}") from None
