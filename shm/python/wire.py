"""The envelopes between a client and the front end: `docs/design/sdk.md` is the contract.

An envelope is the msgpack array `[version, kind, request, sequence, body]`. Unknown kinds and keys are ignored, so that
a newer server can say more; what is malformed raises :class:`ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack  # type: ignore[import-untyped]
from denizen.shm.errors import DenizenError

VERSION = 1
#: Longest envelope, or result in parts, that is read.
MAX_BYTES = 1 << 30
#: Longest parameters that travel in the envelope; longer ones are its attachment, in parts.
BODY_BYTES = 64 << 10

Body = Mapping[str, Any]


class Kind(IntEnum):
    WELCOME = 32
    CALL = 33
    CANCEL = 34
    CHUNK = 35
    RESULT = 36
    FAILED = 37
    BYE = 38
    PART = 39


_KINDS = {int(kind): kind for kind in Kind}


class ProtocolError(DenizenError):
    """The server sent something that no server sends."""


@dataclass(slots=True)  # not frozen: that triples the time to make one, and a stream makes many
class Envelope:
    """`attachment`: bytes that came beside it, those of the PARTs before a RESULT included."""

    kind: Kind
    request: int
    body: Body
    attachment: bytes | None = None

    def result(self) -> tuple[Any, bytes]:
        """Of a RESULT: its value, and the audio that came with it. Raises ProtocolError."""
        attachment = self.attachment or b""
        length = self.body.get("result_len")
        if length is None:
            return self.body.get("result"), attachment
        if not isinstance(length, int) or not 0 <= length <= len(attachment):
            raise ProtocolError(f"the server announced a result of {length!r} bytes and sent {len(attachment)}")
        return _unpack(attachment[:length]), attachment[length:]


@dataclass(frozen=True, slots=True)
class Message:
    """An envelope that is about to be sent: its body packed, and what goes beside it."""

    kind: Kind
    body: bytes
    attachment: memoryview | None = None


EMPTY: bytes = msgpack.packb({})


def pack(value: Any) -> bytes:
    """Raises TypeError, ValueError or OverflowError for what msgpack cannot carry."""
    packed: bytes = msgpack.packb(value)
    return packed


def call(
    endpoint: str, body: bytes, part_bytes: int, audio: memoryview | None = None, rate: int | None = None
) -> Iterator[Message]:
    """CALL, and the PARTs that follow where `body` (packed) or `audio` are longer than one message may be."""
    fields = {"endpoint": pack(endpoint)}
    if rate is not None:
        fields["rate"] = pack(rate)
    payload = []
    if len(body) <= BODY_BYTES:
        fields["body"] = body
    else:
        fields["body_len"] = pack(len(body))
        payload.append(memoryview(body))
    if audio is not None:
        if payload or len(audio) > part_bytes:
            fields["audio_len"] = pack(len(audio))
        payload.append(audio)
    pieces = [data[start : start + part_bytes] for data in payload for start in range(0, len(data), part_bytes)]
    yield Message(Kind.CALL, _pack_map(fields), pieces[0] if pieces else None)
    for piece in pieces[1:]:
        yield Message(Kind.PART, EMPTY, piece)


def envelope(message: Message, request: int, sequence: int) -> bytes:
    head = pack([VERSION, int(message.kind), request, sequence])
    return b"\x95" + head[1:] + message.body


def decode(data: bytes, attachment: bytes | None = None) -> Envelope | None:
    """None for a kind that this side does not know."""
    message = _unpack(data)
    if not isinstance(message, list) or len(message) != 5:
        raise ProtocolError("the server sent an envelope that is no array of five")
    version, kind, request, _, body = message
    if version != VERSION:
        raise ProtocolError(f"the server speaks version {version!r} of the client protocol; this side speaks {VERSION}")
    if not isinstance(kind, int) or not isinstance(request, int):
        raise ProtocolError("the server sent an envelope whose kind or request is no number")
    known = _KINDS.get(kind)
    if known is None:
        return None
    body = {} if body is None else body
    if not isinstance(body, dict):
        raise ProtocolError(f"the server sent a {known.name} whose body is no map")
    return Envelope(known, request, body, attachment)


def _pack_map(fields: Mapping[str, bytes]) -> bytes:
    """A map of values that are packed already; at most 15."""
    return bytes([0x80 | len(fields)]) + b"".join(pack(key) + value for key, value in fields.items())


def _unpack(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"the server sent {len(data)} bytes at once; the limit is {MAX_BYTES}")
    try:
        return msgpack.unpackb(data, strict_map_key=True, max_ext_len=0)
    except Exception as error:  # msgpack's own errors share no base class
        raise ProtocolError(f"the server sent no msgpack: {error or type(error).__name__}") from None
