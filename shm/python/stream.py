"""Answers that a thread waits for, whole or in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from denizen.shm import wire
from denizen.shm.errors import DenizenError, Timeout
from denizen.shm.pcm import Pcm
from denizen.shm.results import Spoken

if TYPE_CHECKING:
    from types import TracebackType

    from denizen.shm.connection import Call, Connection
    from denizen.shm.deadline import Deadline
    from denizen.shm.requests import Request, Voice

C = TypeVar("C")
R = TypeVar("R")

#: How long one attempt to send waits for room. In between it is seen whether the call has ended.
_ATTEMPT_MS = 100
#: How long one wait for an answer lasts.
_SLICE_MS = 60_000


def begin(connection: Connection, request: Request[C, R], deadline: Deadline) -> Call:
    """Sends a request, waiting for room in the shared memory if need be."""
    messages = request.messages(connection.part_bytes)
    call = connection.begin()
    try:
        for message in messages:
            if message.kind is wire.Kind.PART and call.answered():
                break
            while not connection.send(call, message, deadline.left_ms(_ATTEMPT_MS)):
                pass
    except BaseException:
        call.cancel()
        raise
    return call


def take(call: Call, deadline: Deadline) -> wire.Envelope:
    """The next envelope. Raises the error that ended the call."""
    envelope = call.ready()
    while envelope is None:
        try:
            wait_ms = deadline.left_ms(_SLICE_MS)
        except Timeout:
            # What is here already is handed out even where the time is over.
            envelope = call.take(0)
            if envelope is None:
                raise
        else:
            envelope = call.take(wait_ms)
    return envelope


def wait(connection: Connection, request: Request[C, R], deadline: Deadline) -> R:
    """The result of a request that is answered as a whole. An exception meanwhile (Ctrl-C too) cancels it."""
    call = begin(connection, request, deadline)
    try:
        while (envelope := take(call, deadline)).kind is not wire.Kind.RESULT:
            pass
        return request.read_result(envelope)
    except BaseException:
        call.cancel()
        raise


class Stream(Generic[C, R]):
    """An iterator over the pieces of an answer. It belongs to one thread at a time.

    Leaving it unfinished cancels the call: by :meth:`close`, at the end of a `with`, or when it is garbage collected,
    as after a `break` out of `for … in client.generate(…)`. The call's errors are raised where the next piece is asked
    for.
    """

    _call: Call | None = None

    def __init__(self, owner: object, connection: Connection, request: Request[C, R], deadline: Deadline) -> None:
        self._owner = owner  # a client that nobody else holds must live as long as its streams
        self._connection = connection
        self._request = request
        self._deadline = deadline
        self._result: R | None = None
        self._call = begin(connection, request, deadline)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        self._connection.check()
        while self._call is not None:
            try:
                envelope = take(self._call, self._deadline)
                if envelope.kind is wire.Kind.RESULT:
                    self._result = self._request.read_result(envelope)
                    self._call = None
                    break
                item = self._request.read_chunk(envelope)
            except BaseException:
                self.close()
                raise
            if item is not None:
                return item
        raise StopIteration

    def result(self) -> R:
        """What the answer came to; first takes what is still unread of the stream.

        Raises the call's error, or DenizenError if the stream was closed before its end.
        """
        for _ in self:
            pass
        if self._result is None:
            raise DenizenError("the stream was closed before its end, so it has no result")
        return self._result

    def close(self) -> None:
        """Cancels the call if it has not ended. More than once does no harm."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Speech(Stream[Pcm, Spoken]):
    """Read-only float32 arrays of mono sound as it is made; joined they are all of it."""

    def __init__(
        self, owner: object, connection: Connection, request: Request[Pcm, Spoken], deadline: Deadline, voice: Voice
    ) -> None:
        self._voice = voice
        self._first: Pcm | None = None
        super().__init__(owner, connection, request, deadline)

    @property
    def sample_rate(self) -> int:
        """In hertz. Waits for the first sound, and raises what that would."""
        if not self._voice.rate:
            self._first = next(self, None)
        return self._voice.rate

    def __next__(self) -> Pcm:
        first, self._first = self._first, None
        return super().__next__() if first is None else first
