"""The worker's end of the arena: numbered envelopes out, decoded envelopes in."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from denizen.worker.protocol import (
    Body,
    Envelope,
    Error,
    ProtocolError,
    TokenRow,
    decode,
    encode,
    encode_rows,
    encode_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np


#: How long to wait before another try to send what the arena had no room for.
_RETRY_MS = 5


class Arena(Protocol):
    """What the worker uses of ``denizen._native.Arena``; a queue pair in tests."""

    def send(self, envelope: bytes, attachment: bytes | None = None) -> None: ...
    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]]: ...
    def wake(self) -> None: ...
    def set_phase(self, phase: int) -> None: ...
    def close(self) -> None: ...


class Channel:
    """Used by the plan thread only. What the arena has no room for waits here, in order: a front end that stands still
    must not stop the engine, and it has bounded what can be in flight by its credits."""

    def __init__(
        self, arena: Arena, full: type[Exception] | tuple[type[Exception], ...], too_large: type[Exception]
    ) -> None:
        """What ``arena.send`` raises: ``full`` when there is no room now, ``too_large`` when there never will be."""
        self.arena = arena
        self._full = full
        self._too_large = too_large
        self._sequence = 0
        self._backlog: deque[tuple[bytes, int, bytes | None]] = deque()  #: envelope, its request, its attachment

    @property
    def backlog(self) -> int:
        return len(self._backlog)

    def send(self, body: Body, request: int = 0, attachment: bytes | None = None) -> None:
        self._put(encode(body, request=request, sequence=self._sequence), request, attachment)

    def send_tokens(self, rows: Iterable[TokenRow | tuple[int, int, int]]) -> None:
        for envelope in encode_tokens(rows, self._sequence):
            self._put(envelope, 0)

    def send_rows(self, rows: np.ndarray) -> None:
        """Rows of ``protocol.token_rows``."""
        for envelope in encode_rows(rows, self._sequence):
            self._put(envelope, 0)

    def flush(self) -> None:
        """Sends what waits, as far as there is room."""
        while self._backlog:
            envelope, request, attachment = self._backlog[0]
            try:
                self.arena.send(envelope, attachment)
            except self._full:
                return
            except self._too_large as error:
                if not request or attachment is not None:
                    raise  # audio is made in small stretches
                # Only a terminal envelope, with prompt_logprobs, can be so large: the request ends with this instead.
                message = f"the result is too large to be handed over: {error}; ask for fewer prompt_logprobs"
                refusal = Error("result_too_large", message, "prompt_logprobs")
                self._backlog[0] = encode(refusal, request=request, sequence=self._sequence), 0, None
                self._sequence += 1
                continue
            self._backlog.popleft()

    def finish(self, seconds: float) -> None:
        """Sends what waits, for as long as ``seconds``; what arrives meanwhile is not read."""
        deadline = time.monotonic() + seconds
        self.flush()
        while self._backlog and time.monotonic() < deadline:
            self.arena.recv(256, _RETRY_MS)
            self.flush()

    def receive(self, timeout_ms: int, max_messages: int = 256) -> list[Envelope | ProtocolError]:
        """Envelopes that have arrived, in order; a malformed one as the error that it is.

        Attachments have been copied: the slots of the arena that carried them are free again.
        """
        received: list[Envelope | ProtocolError] = []
        for data, attachment in self.arena.recv(max_messages, timeout_ms):
            try:
                envelope = decode(data)
            except ProtocolError as error:
                received.append(error)
                continue
            if envelope is not None:
                received.append(envelope if attachment is None else replace(envelope, attachment=attachment))
        return received

    def _put(self, envelope: bytes, request: int, attachment: bytes | None = None) -> None:
        self._sequence += 1
        if not self._backlog and not request:
            try:
                self.arena.send(envelope, attachment)
                return
            except self._full:
                pass
        self._backlog.append((envelope, request, attachment))
        self.flush()
