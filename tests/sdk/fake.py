"""A front end that does as a test tells it, at the other end of a real arena pair in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack
from denizen._native import ArenaError, ArenaFull, ClientArena, HostArena, SlabFull
from denizen.shm.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

WELCOME, CALL, CANCEL, CHUNK, RESULT, FAILED, BYE, PART = range(32, 40)
MODELS = [
    {"id": "text", "kind": "text", "context": 4096, "vocab": 256},
    {"id": "ears", "kind": "asr", "context": 448, "vocab": 51865},
    {"id": "voice", "kind": "tts", "context": 2048, "vocab": 1000, "sample_rate": 24000, "voices": ["anna", "ben"]},
]
LIMITS = {"max_in_flight": 8, "max_body": 1 << 20, "max_upload": 1 << 24, "max_audio_s": 60, "request_timeout_s": 30}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
PATIENCE = 30.0


@dataclass(frozen=True)
class Heard:
    """An envelope that the client has sent; of a CALL in parts, all of it."""

    kind: int
    request: int
    body: dict[str, Any]
    attachment: bytes

    @property
    def endpoint(self) -> str:
        return str(self.body["endpoint"])

    @property
    def parameters(self) -> dict[str, Any]:
        length = self.body.get("body_len")
        if length is None:
            return dict(self.body["body"])
        return dict(msgpack.unpackb(self.attachment[:length]))

    @property
    def audio(self) -> bytes:
        return self.attachment[self.body.get("body_len") or 0 :]

    @property
    def complete(self) -> bool:
        announced = (self.body.get("body_len") or 0) + (self.body.get("audio_len") or 0)
        return len(self.attachment) >= announced


class FakeServer:
    """Answers each CALL with `answer(server, heard)`, in a thread. Remembers all that it hears, in order."""

    def __init__(self, answer: Callable[[FakeServer, Heard], None] | None = None, *, welcome: bool = True) -> None:
        self.host, fd = HostArena.create("client", result_ring=64, result_slots=(8, 4, 2, 0, 0))
        self.end = ClientArena.inherited(fd)
        self.answer = answer or (lambda server, heard: None)
        self.heard: list[Heard] = []
        self.changed = threading.Condition()
        self._partial: dict[int, Heard] = {}
        self._sequence = 0
        if welcome:
            self.say(WELCOME, 0, {"version": "0.0-fake", "models": MODELS, "limits": LIMITS, "new": "ignored"})
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def connect(self, *_: object) -> Connection:
        return Connection(self.end, time.monotonic() + PATIENCE)

    def say(self, kind: int, request: int, body: dict[str, Any], attachment: Buffer | None = None) -> None:
        self.raw(msgpack.packb([1, kind, request, self._sequence, body]), attachment)

    def raw(self, envelope: bytes, attachment: Buffer | None = None) -> None:
        self._sequence += 1
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.host.send(envelope, attachment)
            except (SlabFull, ArenaFull):
                assert time.monotonic() < deadline, "the client takes nothing"
                time.sleep(0.001)

    def until(self, condition: Callable[[list[Heard]], Any]) -> Any:
        """Waits until what was heard fulfils the condition; returns its value."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.heard), PATIENCE), f"not heard; only {self.heard}"
            return condition(self.heard)

    def calls(self, count: int = 1) -> list[Heard]:
        return self.until(lambda heard: len(found := [each for each in heard if each.kind == CALL]) >= count and found)

    def cancelled(self, request: int) -> None:
        """Waits until the client has cancelled the request."""
        self.until(lambda heard: [each for each in heard if (each.kind, each.request) == (CANCEL, request)])

    def end_of_file(self) -> None:
        """Waits until the client has closed its end."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the client's end is still open"

    def close(self) -> None:
        """What the client sees when the server is killed."""
        self.host.close()
        self._thread.join(PATIENCE)

    def _listen(self) -> None:
        with contextlib.suppress(ArenaError):
            while True:
                for envelope, attachment in self.host.recv():
                    self._hear(envelope, attachment or b"")

    def _hear(self, envelope: bytes, attachment: bytes) -> None:
        version, kind, request, _, body = msgpack.unpackb(envelope)
        assert version == 1
        heard = Heard(kind, request, body, attachment)
        if kind == PART:
            first = self._partial.pop(request)
            heard = Heard(CALL, request, first.body, first.attachment + attachment)
        if heard.kind == CALL and not heard.complete:
            self._partial[request] = heard
            return
        with self.changed:
            self.heard.append(heard)
            self.changed.notify_all()
        if heard.kind == CALL:
            self.answer(self, heard)
