"""A connection to the front end, and the calls that wait for it.

Any thread may begin a call, take what has come for it, and cancel it. The extension sorts what comes by call
(`shm/src/inbox.rs`): of the threads that wait, one receives for all, so that no other stands between a caller and its
answer. What a call leaves unread lies in its box, up to `UNREAD_BYTES`, and holds up no other.

What runs when the garbage collector pleases (`__del__`, finalizers) may interrupt any line here, in any thread. It
therefore takes no lock of Python's.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import time
import weakref
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
    from collections.abc import Callable

    from typing_extensions import Buffer

#: Bytes of output that a call may leave unread: eleven minutes of speech at 24 kHz.
UNREAD_BYTES = 64 << 20
#: The box of what belongs to no call: WELCOME and BYE.
_NO_CALL = 0
_EXIT_SECONDS = 5.0

Messages = list[tuple[bytes, bytes | None]]


class ArenaEnd(Protocol):
    """The client's end of an arena pair: `denizen._native.ClientArena`."""

    @property
    def part_bytes(self) -> int: ...
    @property
    def gone(self) -> bool: ...
    @property
    def inside(self) -> int: ...
    def send(self, envelope: bytes, attachment: Buffer | None = None, timeout_ms: int = 0) -> None: ...
    def open(self, call: int, limit: int) -> None: ...
    def take(self, call: int, timeout_ms: int = -1) -> Messages | None: ...
    def collect(self, call: int) -> Messages | None: ...
    def announce(self) -> None: ...
    def arrivals(self, timeout_ms: int = -1) -> list[int]: ...
    def close_call(self, call: int) -> None: ...
    def cancel(self, call: int) -> None: ...
    def close(self) -> None: ...


class Call:
    """An open request, until its terminal or an error has been taken, or `cancel`."""

    __slots__ = ("_connection", "_messages", "_open", "_part_bytes", "_parts", "cancelled", "request")

    def __init__(self, connection: Connection, request: int) -> None:
        self.request = request
        self.cancelled = False
        self._connection = connection
        self._messages: deque[tuple[bytes, bytes | None]] = deque()
        self._open = True
        self._parts: list[bytes] = []
        """Of a result that comes in parts."""
        self._part_bytes = 0

    def ready(self) -> wire.Envelope | None:
        """The next CHUNK or RESULT of those that have been received. Raises the error that ended the call."""
        while self._messages:
            envelope = self._read(*self._messages.popleft())
            if envelope is not None:
                return envelope
        return None

    def take(self, wait_ms: int) -> wire.Envelope | None:
        """The next CHUNK or RESULT; None if there is none within `wait_ms`. Raises the error that ended the call."""
        while True:
            envelope = self.ready()
            if envelope is not None:
                return envelope
            fresh = self._connection.messages(self.request, wait_ms)
            if not fresh:
                if self.cancelled:
                    raise DenizenError("the call was cancelled, by another thread, while this one waited for it")
                return None
            self._messages.extend(fresh)

    def answered(self) -> bool:
        """Whether something has come, before all of the call was sent: it has failed, and needs no more."""
        if not self._messages:
            self._messages.extend(self._connection.messages(self.request, 0))
        return bool(self._messages)

    def cancel(self) -> None:
        """Ends it at the server, unless it has ended. May be called from anywhere, any number of times."""
        if self._open:
            self._open = False
            self.cancelled = True
            self._connection.cancel(self.request)

    def _read(self, data: bytes, attachment: bytes | None) -> wire.Envelope | None:
        try:
            envelope = wire.decode(data, attachment)
            if envelope is None:
                return None
            match envelope.kind:
                case wire.Kind.CHUNK:
                    return envelope
                case wire.Kind.PART:
                    self._parts.append(attachment or b"")
                    self._part_bytes += len(attachment or b"")
                    if self._part_bytes > wire.MAX_BYTES:
                        raise wire.ProtocolError(f"the server sent a result of more than {wire.MAX_BYTES} bytes")
                case wire.Kind.RESULT:
                    self._end()
                    if self._parts:
                        whole = b"".join([*self._parts, attachment or b""])
                        return wire.Envelope(envelope.kind, envelope.request, envelope.body, whole)
                    return envelope
                case wire.Kind.FAILED:
                    self._end()
                    raise _failure(envelope.body)
        except wire.ProtocolError as error:
            raise self._connection.give_up(error) from None
        return None

    def _end(self) -> None:
        self._open = False
        self._connection.end(self.request)


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
        self._announced = False
        self._error: DenizenError | None = None
        """Why it has ended, where this side has seen that."""
        arena.open(_NO_CALL, UNREAD_BYTES)
        try:
            self._welcome(deadline)
        except BaseException:
            arena.close()
            raise
        _open.add(self)

    # --- calls ---

    def begin(self) -> Call:
        """A new call, whose messages still have to be sent. Raises Forked, ClientClosed, ServerGone."""
        self.check()
        if self._error is not None:
            raise _again(self._error)
        call = Call(self, next(self._ids))
        try:
            self._arena.open(call.request, UNREAD_BYTES)
        except ArenaError as error:
            raise self._ended(error) from None
        return call

    def send(self, call: Call, message: wire.Message, wait_ms: int) -> bool:
        """Sends one of a call's messages; False if there was no room for it within `wait_ms`.

        Raises BadRequest for a message that could never be sent.
        """
        try:
            self._send(message, call.request, wait_ms)
        except (SlabFull, ArenaFull):
            return False
        except MessageTooLarge as error:
            raise bad_request("body", f"the request does not fit the shared memory: {error}") from None
        except (PeerGone, ArenaClosed):
            pass  # whoever waits for the answer learns what has happened
        if call.cancelled:  # by another thread, while this one was about to send: that CANCEL came too early
            self._arena.cancel(call.request)
        return True

    def messages(self, request: int, wait_ms: int) -> Messages:
        """What has come for a call; waits for it, where no thread announces it. None at the end of that time, or of the
        call.

        Raises SlowReader, ServerGone, ClientClosed.
        """
        try:
            found = self._arena.collect(request) if self._announced else self._arena.take(request, wait_ms)
        except ArenaError as error:
            raise self._ended(error) from None
        if found is None:
            raise _slow()
        if self._announced and not found and self._error is not None:
            raise _again(self._error)
        return found

    def announce(self) -> None:
        """From now on no thread waits for a call, but one is in :meth:`arrivals`."""
        self._announced = True
        self._arena.announce()

    def arrivals(self, tell: Callable[[int], None]) -> None:
        """Calls `tell` with each call that something has come for, until the connection ends."""
        try:
            while True:
                for request in self._arena.arrivals():
                    tell(request)
        except ArenaError as error:
            self._ended(error)

    def end(self, request: int) -> None:
        """After the terminal of a call."""
        self._arena.close_call(request)

    def cancel(self, request: int) -> None:
        """May run in a finalizer. Nothing happens in a forked child."""
        self._arena.cancel(request)

    def check(self) -> None:
        """Raises Forked in a child of the process that connected."""
        if os.getpid() != self._pid:
            raise Forked(
                f"this client was opened by process {self._pid}, of which this one is a fork; "
                "open a new client here, after the fork"
            )

    # --- the end ---

    def close(self) -> None:
        """Ends all calls with ClientClosed, and says goodbye. May run in a finalizer."""
        if os.getpid() != self._pid:
            return
        if self._error is None:
            self._error = ClientClosed("the client was closed")
            with contextlib.suppress(ArenaError):
                self._send(wire.Message(wire.Kind.BYE, wire.EMPTY), 0)
        self._arena.close()

    def give_up(self, fault: DenizenError) -> DenizenError:
        """Ends it for a fault of the server's; the error for whoever has seen it."""
        if self._error is None:
            self._error = ServerGone(f"the connection was given up: {fault}")
        self._arena.close()
        return _again(self._error)

    @property
    def closed(self) -> bool:
        """Whether it has ended, from whichever side."""
        return self._error is not None or self._arena.gone

    def leave(self, deadline: float) -> None:
        """Closes it and waits until no thread is in the extension, where none must be when the interpreter goes."""
        self.close()
        # In a forked child there are none: what is counted are its parent's.
        while os.getpid() == self._pid and self._arena.inside and time.monotonic() < deadline:
            time.sleep(0.001)

    def _ended(self, error: ArenaError) -> DenizenError:
        """What an error of the arena's means for the calls: all of them end."""
        if self._error is None:
            if isinstance(error, PeerGone):
                self._error = ServerGone(
                    f"the server has gone ({self._farewell() or error}); connect again when it is back"
                )
            elif isinstance(error, ArenaClosed):
                self._error = ClientClosed("the client was closed")
            else:
                return self.give_up(DenizenError(str(error)))
        return _again(self._error)

    def _farewell(self) -> str:
        """Why the server says that it goes."""
        for data, attachment in self._arena.collect(_NO_CALL) or ():
            with contextlib.suppress(wire.ProtocolError):
                envelope = wire.decode(data, attachment)
                if envelope is not None and envelope.kind is wire.Kind.BYE:
                    return _why(envelope.body)
        return ""

    # --- small parts ---

    def _welcome(self, deadline: float) -> None:
        """Waits for the server's first envelope."""
        left = deadline - time.monotonic()
        try:
            messages = self._arena.take(_NO_CALL, max(1, int(left * 1000)))
        except ArenaError as error:
            raise ConnectError(f"the server broke the connection: {error}") from None
        if not messages:
            raise ConnectError("the server took the connection and then said nothing: is it stopped?")
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

    def _send(self, message: wire.Message, request: int, wait_ms: int = 0) -> None:
        self._arena.send(wire.envelope(message, request, next(self._sequence)), message.attachment, wait_ms)


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


def _slow() -> SlowReader:
    return SlowReader(
        f"{UNREAD_BYTES >> 20} MiB of this call's output were left unread, so it was cancelled; "
        "take the items as they come",
        status=408,
        param="stream",
        code="slow_client",
    )


def _again(error: DenizenError) -> DenizenError:
    """The same error as a fresh object: raised in several threads, one would collect all their tracebacks."""
    return type(error)(*error.args)


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for connection in list(_open):
        connection.leave(deadline)
