"""The same answers for asyncio: nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from denizen.shm import wire
from denizen.shm.errors import DenizenError
from denizen.shm.pcm import Pcm
from denizen.shm.results import Spoken

if TYPE_CHECKING:
    from types import TracebackType

    from denizen.shm.connection import Call, Connection
    from denizen.shm.deadline import Deadline
    from denizen.shm.requests import Request, Voice

C = TypeVar("C")
R = TypeVar("R")

_RETRY_SECONDS = 0.001
#: Copying more than this into the shared memory is done in a thread: the loop has other work meanwhile.
_COPY_BYTES = 64 << 10


class LoopCall:
    """A call of the loop that runs where it is made."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._waiter: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """Something has come, or nothing will any more. Called by the announcing thread.

        Raises RuntimeError if the loop has been closed.
        """
        if not self._scheduled:  # one wake-up for all that comes until the loop has had its turn
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._arrived)

    def _arrived(self) -> None:
        self._scheduled = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, deadline: Deadline) -> wire.Envelope:
        """The next envelope. Raises the error that ended the call."""
        while (envelope := self.call.take(0)) is None:
            self._waiter = self._loop.create_future()
            left = deadline.left()
            timer = None if left is None else self._loop.call_later(left, self._arrived)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return envelope


class LoopConnection:
    """A connection whose calls event loops wait for: a thread tells them what has come."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._calls: dict[int, LoopCall] = {}
        connection.announce()
        self._thread = threading.Thread(target=self._announce, name="denizen.shm announcer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.connection.close()
        self._thread.join()

    def _announce(self) -> None:
        self.connection.arrivals(self._tell)
        for request in list(self._calls):
            self._tell(request)

    def _tell(self, request: int) -> None:
        call = self._calls.get(request)
        if call is not None:
            try:
                call.tell()
            except RuntimeError:
                self.end(call)

    async def begin(self, request: Request[C, R], deadline: Deadline) -> LoopCall:
        """Sends a request, waiting for room in the shared memory if need be."""
        messages = request.messages(self.connection.part_bytes)
        call = LoopCall(self.connection.begin())
        self._calls[call.call.request] = call
        try:
            for message in messages:
                if message.kind is wire.Kind.PART and call.call.answered():
                    break
                while not await self._send(call.call, message):
                    deadline.left()
                    await asyncio.sleep(_RETRY_SECONDS)
        except BaseException:
            self.end(call)
            raise
        return call

    async def _send(self, call: Call, message: wire.Message) -> bool:
        if message.attachment is not None and len(message.attachment) > _COPY_BYTES:
            return await asyncio.to_thread(self.connection.send, call, message, 0)
        return self.connection.send(call, message, 0)

    def end(self, call: LoopCall) -> None:
        """Cancels it unless it has ended, and forgets it. May run in a finalizer."""
        call.call.cancel()
        self._calls.pop(call.call.request, None)

    async def wait(self, request: Request[C, R], deadline: Deadline) -> R:
        """The result of a request that is answered as a whole. Cancelling the task cancels it."""
        call = await self.begin(request, deadline)
        try:
            while (envelope := await call.take(deadline)).kind is not wire.Kind.RESULT:
                pass
            return request.read_result(envelope)
        finally:
            self.end(call)


class AsyncStream(Generic[C, R]):
    """An asynchronous iterator over the pieces of an answer. It belongs to one task at a time.

    Leaving it unfinished cancels the call: by :meth:`close`, at the end of an `async with`, by cancelling the task that
    waits for a piece, or when it is garbage collected, as after a `break` out of `async for`. Errors of the call are
    raised where the next piece is asked for.
    """

    _call: LoopCall | None = None

    def __init__(self, owner: object, connection: LoopConnection, request: Request[C, R], deadline: Deadline) -> None:
        self._owner = owner  # a client that nobody else holds must live as long as its streams
        self._connection = connection
        self._request = request
        self._deadline = deadline
        self._result: R | None = None

    async def _begin(self) -> Self:
        self._call = await self._connection.begin(self._request, self._deadline)
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> C:
        self._connection.connection.check()
        while self._call is not None:
            try:
                envelope = await self._call.take(self._deadline)
                if envelope.kind is wire.Kind.RESULT:
                    self._result = self._request.read_result(envelope)
                    self.close()
                    break
                item = self._request.read_chunk(envelope)
            except BaseException:
                self.close()
                raise
            if item is not None:
                return item
        raise StopAsyncIteration

    async def result(self) -> R:
        """What the answer came to; first takes what is still unread of the stream.

        Raises the call's error, or DenizenError if the stream was closed before its end.
        """
        async for _ in self:
            pass
        if self._result is None:
            raise DenizenError("the stream was closed before its end, so it has no result")
        return self._result

    def close(self) -> None:
        """Cancels the call if it has not ended. More than once does no harm; there is nothing to wait for."""
        call, self._call = self._call, None
        if call is not None:
            self._connection.end(call)

    async def aclose(self) -> None:
        """:meth:`close` under the name that `contextlib.aclosing` asks for."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncSpeech(AsyncStream[Pcm, Spoken]):
    """Read-only float32 arrays of mono sound as it is made; joined they are all of it."""

    def __init__(
        self, owner: object, connection: LoopConnection, request: Request[Pcm, Spoken], deadline: Deadline, voice: Voice
    ) -> None:
        super().__init__(owner, connection, request, deadline)
        self._voice = voice
        self._first: Pcm | None = None

    async def sample_rate(self) -> int:
        """In hertz. Waits for the first sound, and raises what that would."""
        if not self._voice.rate:
            self._first = await anext(self, None)
        return self._voice.rate

    async def __anext__(self) -> Pcm:
        first, self._first = self._first, None
        return await super().__anext__() if first is None else first
