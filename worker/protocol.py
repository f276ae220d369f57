"""The envelopes between the front end and a worker: typed bodies, encoder, decoder with limits.

The contract is ``docs/design/protocol.md``; the Rust twin is ``frontend-rs/src/route/envelope.rs``; the byte files in
``tests/golden/envelope`` hold both to it. This is the only Python module that knows what an envelope looks like.

An envelope is ``[version, kind, request, sequence, body]``; the class of a body decides its kind.
:func:`encode` and :func:`decode` are inverse; :func:`encode_tokens` splits a step's rows so that each envelope fits the
inline bytes of one arena descriptor. Anything malformed raises :class:`ProtocolError`, never anything else.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from denizen.worker.asr import AsrOptions, AsrResult
from denizen.worker.messages import (
    SCHEMA,
    Abort,
    Audio,
    Body,
    Bye,
    Done,
    Drain,
    Error,
    Hello,
    Kind,
    Load,
    PromptLogprob,
    Ready,
    ReadyModel,
    Stats,
    Submit,
    TokenRow,
    Tokens,
    TopLogprob,
    wire_row,
)
from denizen.worker.tts import TtsOptions
from denizen.worker.wire import U32, U64, Fields, ProtocolError, check_depth

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "INLINE_BYTES",
    "SCHEMA",
    "VERSION",
    "Abort",
    "AsrOptions",
    "AsrResult",
    "Audio",
    "Body",
    "Bye",
    "Done",
    "Drain",
    "Envelope",
    "Error",
    "Hello",
    "Kind",
    "Load",
    "PromptLogprob",
    "ProtocolError",
    "Ready",
    "ReadyModel",
    "Stats",
    "Submit",
    "TokenRow",
    "Tokens",
    "TopLogprob",
    "TtsOptions",
    "decode",
    "encode",
    "encode_rows",
    "encode_tokens",
    "token_rows",
]

VERSION = 1

#: Longest envelope that is decoded: a long context's prompt_logprobs with 20 alternatives fits several times.
MAX_BYTES = 32 << 20
#: Longest array: prompt_logprobs has one entry a prompt position.
MAX_ITEMS = 4 << 20
MAX_STRING = 64 << 10
#: Nesting of the deepest envelope, DONE with prompt_logprobs, plus room for unknown keys.
MAX_DEPTH = 12


def _inline_bytes() -> int:
    try:
        return int(importlib.import_module("denizen._native").INLINE_LEN)
    except (ImportError, AttributeError):  # pure Python use, as in the tests of this module
        return 200


#: Envelope bytes that fit one arena descriptor, without the slab.
INLINE_BYTES = _inline_bytes()

#: Largest head of TOKENS: array, version, kind, request, 9-byte sequence, map, "rows", 3-byte array header.
_TOKENS_HEAD = 1 + 1 + 1 + 1 + 9 + 1 + 5 + 3
#: A TOKENS row without log-probabilities, in integers of fixed width: any width is msgpack.
_ROW = np.dtype(
    [("array", "u1"), ("u64", "u1"), ("request", ">u8"), ("u32", "u1"), ("position", ">u4"), ("also_u32", "u1"),
     ("token", ">u4")]
)  # fmt: skip


_BODIES: dict[int, type[Body]] = {
    body.KIND: body for body in (Hello, Ready, Submit, Abort, Tokens, Audio, Done, Error, Stats, Drain, Bye)
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A decoded envelope. ``request``: slot in the low 32 bits, generation in the high 32; 0 = none.

    ``attachment``: bytes that came beside it, copied out of the arena.
    """

    request: int
    sequence: int
    body: Body
    attachment: bytes | None = None


def encode(body: Body, *, request: int = 0, sequence: int = 0) -> bytes:
    """The bytes of one envelope. Floats travel in single precision."""
    return _pack([VERSION, int(body.KIND), request, sequence, body.wire_map()])


def encode_tokens(
    rows: Iterable[TokenRow | tuple[int, int, int]], sequence: int, inline: int = INLINE_BYTES
) -> list[bytes]:
    """TOKENS envelopes for ``rows`` in order, numbered from ``sequence``, each within ``inline`` bytes.

    A plain triple is a row without log-probabilities. A row that is longer than ``inline`` (many alternatives) gets an
    envelope of its own.
    """
    envelopes: list[bytes] = []
    pending: list[bytes] = []
    used = 0

    def flush() -> None:
        nonlocal used
        head = _pack([VERSION, int(Kind.TOKENS), 0, sequence + len(envelopes), {"rows": []}])
        # The empty array is the last byte of the head; put the real one in its place.
        envelopes.append(head[:-1] + _array_header(len(pending)) + b"".join(pending))
        pending.clear()
        used = 0

    pack = msgpack.Packer(use_single_float=True).pack  # one buffer for all rows
    room = inline - _TOKENS_HEAD
    for row in rows:
        packed = pack(row if len(row) == 3 else wire_row(row))
        used += len(packed)
        if used > room and pending:
            flush()
            used = len(packed)
        pending.append(packed)
    if pending:
        flush()
    return envelopes


def token_rows(requests: np.ndarray) -> np.ndarray:
    """Rows of TOKENS for ``requests`` (uint64 ids); ``position`` and ``token`` are still to be filled in."""
    rows = np.zeros(len(requests), _ROW)
    rows["array"], rows["u64"], rows["u32"], rows["also_u32"] = 0x93, 0xCF, 0xCE, 0xCE
    rows["request"] = requests
    return rows


def encode_rows(rows: np.ndarray, sequence: int, inline: int = INLINE_BYTES) -> list[bytes]:
    """What :func:`encode_tokens` does for :func:`token_rows`: a step of many rows costs a few array operations."""
    data, size = rows.tobytes(), rows.itemsize
    count = max(1, (inline - _TOKENS_HEAD) // size)
    full = b"\x81\xa4rows" + _array_header(count)
    envelopes: list[bytes] = []
    for first in range(0, len(rows), count):
        number = sequence + len(envelopes)
        head = _TOKENS_PREFIX + number.to_bytes(8, "big")
        head += full if first + count <= len(rows) else b"\x81\xa4rows" + _array_header(len(rows) - first)
        envelopes.append(head + data[first * size : (first + count) * size])
    return envelopes


def decode(data: bytes) -> Envelope | None:
    """The envelope in ``data``; None for a kind this side does not know (a newer peer's; ignore it).

    Raises :class:`ProtocolError`; its ``request`` is set when the header could be read, so that the sender of a bad
    SUBMIT can be answered.
    """
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"envelope of {len(data)} bytes; the limit is {MAX_BYTES}")
    try:
        message = msgpack.unpackb(
            data,
            strict_map_key=True,
            max_str_len=MAX_STRING,
            max_bin_len=MAX_BYTES,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_STRING,
            max_ext_len=0,
        )
        check_depth(message, MAX_DEPTH)
    except ProtocolError:
        raise
    except Exception as error:  # msgpack's own errors share no base class
        raise ProtocolError(f"envelope is not msgpack within the limits: {error or type(error).__name__}") from None
    if not isinstance(message, list) or len(message) != 5:
        raise ProtocolError("envelope must be an array of five")
    header = Fields("envelope", dict(zip(("version", "kind", "request", "sequence"), message[:4], strict=True)))
    version = header.integer("version", high=U32, required=True)
    if version != VERSION:
        raise ProtocolError(f"envelope version {version}; this side speaks {VERSION}")
    kind = header.integer("kind", high=U32, required=True)
    request = header.integer("request", high=U64)
    sequence = header.integer("sequence", high=U64)
    body = _BODIES.get(kind)
    if body is None:
        return None
    try:
        return Envelope(request, sequence, body.read(Fields(body.KIND.name, {} if message[4] is None else message[4])))
    except ProtocolError as error:
        raise ProtocolError(str(error), request=request) from None


#: Up to the sequence number, which follows in eight bytes.
_TOKENS_PREFIX = bytes([0x95, VERSION, Kind.TOKENS, 0, 0xCF])


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_single_float=True)
    return packed


def _array_header(length: int) -> bytes:
    if length < 16:
        return bytes([0x90 | length])
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")
