"""A connection to the front end: one reader thread, and the calls that wait for it.

Any thread may begin a call and cancel one. Answers are taken out of the arena by one thread a connection, which hands
each to its call's mailbox; so a slow reader holds up no other call, and what it has not read lies in its own mailbox,
up to `MAILBOX_BYTES`.

What runs when the garbage collector pleases (`__del__`, finalizers) may interrupt any line here, in any thread. It
therefore takes no lock: it appends to a deque and wakes the reader, which does the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from denizen._native import ArenaClosed, ArenaError, ArenaFull, MessageTooLarge, PeerGone, SlabFull
from denizen.shm import wire
from denizen.shm.errors import (
    ClientClosed,
    ConnectError,
    DenizenError,
    Forked,
    RequestError,
    ServerGone,
    SlowReader,
    bad_request,
    from_failure,
)
from denizen.shm.results import Limits, Model

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Bytes of output that a call may leave unread: eleven minutes of speech at 24 kHz.
MAILBOX_BYTES = 64 << 20
_BATCH = 256
_RETRY_MS = 1
_NO_MESSAGES: list[tuple[bytes, bytes | None]] = []

#: What a mailbox holds: what has come for the call, or the error that ends it.
Item = wire.Envelope | DenizenError


class ArenaEnd(Protocol):
    """The client's end of an arena pair: `denizen._native.ClientArena`."""

    @property
    def part_bytes(self) -> int: ...
    def send(self, envelope: bytes, attachment: Buffer | None = None, timeout_ms: int = 0) -> None: ...
    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]]: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class Mailbox(ABC):
    """Where the reader thread leaves what comes for a call.

    Each count has one writing thread, so that neither needs a lock.
    """

    def __init__(self) -> None:
        self.received = 0
        """Bytes put; the reader thread's."""
        self.taken = 0
        """Bytes taken out; the call's."""

    @abstractmethod
    def put(self, item: Item) -> None:
        """Called by the reader thread. Raises RuntimeError if nobody can read it any more."""


class Call:
    """An open request. It ends with a terminal or an error in its mailbox, or with `cancel`."""

    __slots__ = ("cancelled", "connection", "mailbox", "part_total", "parts", "request")

    def __init__(self, connection: Connection, request: int, mailbox: Mailbox) -> None:
        self.connection = connection
        self.request = request
        self.mailbox = mailbox
        self.parts: list[bytes] = []
        """Of a result that comes in parts; the reader thread's."""
        self.part_total = 0
        self.cancelled = False

    def cancel(self) -> None:
        """Ends it at the server, unless it has ended. May be called from anywhere, any number of times."""
        self.cancelled = True
        self.connection.cancel(self.request)


class Connection:
    """An attached arena end. The constructor waits for WELCOME, at most until `deadline` (monotonic seconds).

    Raises ConnectError.
    """

    def __init__(self, arena: ArenaEnd, deadline: float) -> None:
        self.part_bytes = arena.part_bytes
        self._arena = arena
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._sequence = itertools.count()
        self._calls: dict[int, Call] = {}
        self._cancels: deque[int] = deque()
        self._closing = False
        self._farewell = ""
        self._error: DenizenError | None = None
        self._lock = threading.Lock()
        """No call is entered into the table after the error that ends them all."""
        try:
            early = self._welcome(deadline)
        except BaseException:
            arena.close()
            raise
        self._thread = threading.Thread(target=self._read, args=(early,), name="denizen.shm reader", daemon=True)
        self._thread.start()
        _open.add(self)

    # --- calls ---

    def begin(self, mailbox: Mailbox) -> Call:
        """A new call, whose messages still have to be sent. Raises Forked, ClientClosed, ServerGone."""
        self.check()
        with self._lock:
            if self._error is not None:
                raise _again(self._error)
            call = Call(self, next(self._ids), mailbox)
            self._calls[call.request] = call
        return call

    def send(self, call: Call, message: wire.Message, wait_ms: int) -> bool:
        """Sends one of a call's messages; False if there was no room for it within `wait_ms`.

        A call that has ended meanwhile needs no more of them: nothing is sent then. Raises BadRequest for a message
        that could never be sent.
        """
        if call.request not in self._calls:
            return True
        try:
            self._send(message, call.request, wait_ms)
        except (SlabFull, ArenaFull):
            return False
        except MessageTooLarge as error:
            raise bad_request("body", f"the request does not fit the shared memory: {error}") from None
        except (PeerGone, ArenaClosed):
            pass  # the reader thread sees the same, and tells all calls what has happened
        if call.cancelled:  # by another thread, while this one was about to send: that CANCEL came too early
            self._cancels.append(call.request)
            self._wake()
        return True

    def cancel(self, request: int) -> None:
        """May run in a finalizer: no locks. Nothing happens in a forked child, or after the call's end."""
        if os.getpid() == self._pid and self._calls.pop(request, None) is not None:
            self._cancels.append(request)
            self._wake()

    def check(self) -> None:
        """Raises Forked in a child of the process that connected."""
        if os.getpid() != self._pid:
            raise Forked(
                f"this client was opened by process {self._pid}, of which this one is a fork; "
                "open a new client here, after the fork"
            )

    # --- the end ---

    def close(self) -> None:
        """Ends all calls with ClientClosed, says goodbye, and waits for the reader thread to end."""
        if os.getpid() != self._pid:
            return
        self.close_soon()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close_soon(self) -> None:
        """The same without waiting. May run in a finalizer."""
        self._closing = True
        if os.getpid() == self._pid:
            self._wake()

    @property
    def closed(self) -> bool:
        """Whether it has ended, from whichever side."""
        return self._error is not None

    # --- the reader thread ---

    def _welcome(self, deadline: float) -> list[tuple[bytes, bytes | None]]:
        """Waits for the server's first envelope; returns what came behind it."""
        messages = _NO_MESSAGES
        while not messages:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ConnectError("the server took the connection and then said nothing: is it stopped?")
            try:
                messages = self._arena.recv(_BATCH, max(1, int(left * 1000)))
            except ArenaError as error:
                raise ConnectError(f"the server broke the connection: {error}") from None
        try:
            first = wire.decode(*messages[0])
            if first is not None and first.kind is wire.Kind.BYE:
                raise ConnectError(f"the server hung up: {_why(first.body)}")
            if first is None or first.kind is not wire.Kind.WELCOME:
                raise ConnectError("the server did not begin with WELCOME; is it of another version?")
            self.server_version = str(first.body.get("version") or "")
            self.models = tuple(Model.read(model) for model in first.body.get("models") or ())
            self.limits = Limits.read(first.body.get("limits") or {})
        except (wire.ProtocolError, LookupError, TypeError, AttributeError) as error:
            raise ConnectError(f"the server's WELCOME cannot be read: {error}") from None
        return messages[1:]

    def _read(self, messages: list[tuple[bytes, bytes | None]]) -> None:
        error: DenizenError
        try:
            while not self._closing:
                for data, attachment in messages:
                    self._dispatch(data, attachment)
                messages = _NO_MESSAGES
                waiting = self._send_cancels()
                messages = self._arena.recv(_BATCH, _RETRY_MS if waiting else -1)
            error = ClientClosed("the client was closed")
        except PeerGone as gone:
            error = ServerGone(f"the server has gone ({self._farewell or gone}); connect again when it is back")
        except ArenaClosed:
            error = ClientClosed("the client was closed")
        except (ArenaError, wire.ProtocolError) as fault:
            error = ServerGone(f"the connection was given up: {fault}")
        except BaseException as fault:  # a fault of this package: no call may wait for ever because of it
            error = ServerGone(f"the client's reader thread failed: {type(fault).__name__}: {fault}")
        self._end(error)

    def _dispatch(self, data: bytes, attachment: bytes | None) -> None:
        envelope = wire.decode(data, attachment)
        if envelope is None:
            return
        # Calls that were cancelled have left the table: what still comes for them is dropped.
        match envelope.kind:
            case wire.Kind.CHUNK:
                if (call := self._calls.get(envelope.request)) is not None:
                    self._deliver(call, envelope)
            case wire.Kind.PART:
                if (call := self._calls.get(envelope.request)) is not None:
                    call.parts.append(attachment or b"")
                    call.part_total += len(attachment or b"")
                    if call.part_total > wire.MAX_BYTES:
                        raise wire.ProtocolError(f"the server sent a result of more than {wire.MAX_BYTES} bytes")
            case wire.Kind.RESULT:
                if (call := self._calls.pop(envelope.request, None)) is not None:
                    if call.parts:
                        whole = b"".join([*call.parts, attachment or b""])
                        envelope = wire.Envelope(envelope.kind, envelope.request, envelope.body, whole)
                    # Nothing follows a result, so it is no sign of a slow reader.
                    self._put(call, envelope)
            case wire.Kind.FAILED:
                if (call := self._calls.pop(envelope.request, None)) is not None:
                    self._put(call, _failure(envelope.body))
            case wire.Kind.BYE:
                self._farewell = _why(envelope.body)

    def _deliver(self, call: Call, envelope: wire.Envelope) -> None:
        mailbox = call.mailbox
        mailbox.received += envelope.size
        if mailbox.received - mailbox.taken <= MAILBOX_BYTES:
            self._put(call, envelope)
            return
        call.cancel()
        error = SlowReader(
            f"{MAILBOX_BYTES >> 20} MiB of this call's output were left unread, so it was cancelled; "
            "take the items as they come",
            status=408,
            param="stream",
            code="slow_client",
        )
        self._put(call, error)

    def _put(self, call: Call, item: Item) -> None:
        try:
            call.mailbox.put(item)
        except RuntimeError:  # an event loop that has been closed
            call.cancel()

    def _send_cancels(self) -> bool:
        """Sends what is due; whether some had no room."""
        while self._cancels:
            try:
                self._send(wire.Message(wire.Kind.CANCEL, wire.EMPTY), self._cancels[0])
            except (SlabFull, ArenaFull):
                return True
            self._cancels.popleft()
        return False

    def _end(self, error: DenizenError) -> None:
        if self._closing:
            with contextlib.suppress(ArenaError):
                self._send(wire.Message(wire.Kind.BYE, wire.EMPTY), 0)
        self._arena.close()
        with self._lock:
            self._error = error
            calls, self._calls = self._calls, {}
        for call in calls.values():
            self._put(call, _again(error))

    # --- small parts ---

    def _send(self, message: wire.Message, request: int, wait_ms: int = 0) -> None:
        self._arena.send(wire.envelope(message, request, next(self._sequence)), message.attachment, wait_ms)

    def _wake(self) -> None:
        with contextlib.suppress(ArenaError):  # closed: the reader has ended
            self._arena.wake()


def _why(body: wire.Body) -> str:
    return str(body.get("why") or body.get("code") or "no reason given")


def _failure(body: wire.Body) -> RequestError:
    error: Any = body.get("error")
    if not isinstance(error, dict):
        error = {}
    status = body.get("status")
    return from_failure(
        status if isinstance(status, int) else 500,
        str(error.get("message") or "the server gave no reason"),
        str(error.get("type") or "server_error"),
        error.get("param"),
        error.get("code"),
        body.get("retry_after_s"),
    )


def _again(error: DenizenError) -> DenizenError:
    """The same error as a fresh object: raised in several threads, one would collect all their tracebacks."""
    return type(error)(*error.args)


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A reader thread inside the extension must not outlive the interpreter."""
    for connection in list(_open):
        connection.close()
