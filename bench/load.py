"""When each request is sent.

Both arrival models give a request its *scheduled* time and latency counts from it. In a closed loop that is the moment
at which one of the `concurrency` users became free; in an open loop it is drawn before the run, so that a server that
stalls is charged for every request that should have been sent meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from denizen.bench.backlog import Backlog
from denizen.bench.stats import poisson_offsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from multiprocessing.sharedctypes import Synchronized


#: Above every number of a job.
_GIVEN_UP = 1 << 62
#: Seconds after which a process looks whether another one has given up.
_LOOK_S = 0.2


class Clock:
    """Monotonic seconds since `start`, a time of `time.perf_counter`, which all processes of a machine share."""

    def __init__(self, start: float | None = None) -> None:
        self._start = time.perf_counter() if start is None else start

    def now(self) -> float:
        return time.perf_counter() - self._start


class Tickets:
    """Gives out the numbers of the jobs in order, each once. Shared by load-generating processes if `counter` is."""

    def __init__(self, total: int, counter: Synchronized[int] | None = None) -> None:
        self._total = total
        self._counter = counter
        self._next = 0
        self.reason: str | None = None
        """Why this process gave up; None if another one did, or none."""

    def __iter__(self) -> Iterator[int]:
        while (number := self._take()) < self._total:
            yield number

    @property
    def closed(self) -> bool:
        """Whether all have been given out."""
        return (self._next if self._counter is None else self._counter.value) >= self._total

    @property
    def given_up(self) -> bool:
        """Whether what is open is not to be waited for."""
        return (self._next if self._counter is None else self._counter.value) >= _GIVEN_UP

    def close(self) -> None:
        """No more are given out."""
        self._put(self._total)

    def give_up(self, reason: str) -> None:
        """No more are given out, and nobody waits for the answers that are still to come."""
        self.reason = reason
        self._put(_GIVEN_UP)

    def _put(self, following: int) -> None:
        self._next = following
        if self._counter is not None:
            with self._counter.get_lock():
                self._counter.value = max(following, self._counter.value)

    def _take(self) -> int:
        if self._counter is None:
            number, self._next = self._next, self._next + 1
            return number
        with self._counter.get_lock():
            number = self._counter.value
            self._counter.value = number + 1
            return number


@dataclass(frozen=True)
class Share:
    """The part of a pass that one of `processes` sends. All of them have all jobs, and clocks that start together."""

    index: int
    processes: int
    tickets: Tickets
    clock: Clock


class Job(Protocol):
    """One request to be sent; what else there is to it, its client knows.

    Jobs in a row with the same `conversation`, where they have one that is not None, are sent one after another.
    """

    @property
    def index(self) -> int: ...


if TYPE_CHECKING:
    Send = Callable[[Any, float, Clock], Awaitable[Any]]


class Arrivals(Protocol):
    """An arrival model."""

    @property
    def label(self) -> str: ...

    @property
    def users(self) -> int | None:
        """How many requests are always open until the last has been sent; None if that is left to the server."""
        ...

    def describe(self) -> dict[str, Any]:
        """The `load` entry of a result."""
        ...

    async def run(
        self, jobs: Sequence[Job], send: Send, done: Callable[[Any], None], share: Share | None = None
    ) -> float:
        """Sends all jobs, or those that fall to `share`; calls `done` with each record, returns the seconds it took."""
        ...


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each sending its next request when its last one is answered.

    A user takes all turns of a conversation.
    """

    concurrency: int

    @property
    def label(self) -> str:
        return f"c={self.concurrency}"

    @property
    def users(self) -> int | None:
        return self.concurrency

    def describe(self) -> dict[str, Any]:
        return {"mode": "closed", "concurrency": self.concurrency}

    async def run(
        self, jobs: Sequence[Job], send: Send, done: Callable[[Any], None], share: Share | None = None
    ) -> float:
        share = share or _all_of(jobs)
        clock = share.clock
        turns = chains(jobs)
        users = range(min(self.concurrency, len(turns)))[share.index :: share.processes]

        async def user() -> None:
            for number in share.tickets:
                for job in turns[number] if number < len(turns) else ():
                    done(await send(job, clock.now(), clock))

        await asyncio.sleep(-clock.now())
        async with asyncio.TaskGroup() as group:
            for _ in users:
                group.create_task(user())
        return clock.now()


@dataclass(frozen=True)
class OpenLoop:
    """Poisson arrivals at `rate` requests a second, whatever the server does.

    Of conversations the first turns arrive so, each further one when its user has the answer to the one before. When
    the server falls behind ever further, the pass ends: nothing more is sent, and what is open is given up.
    """

    rate: float
    seed: int

    @property
    def label(self) -> str:
        return f"{self.rate:g}/s"

    @property
    def users(self) -> int | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"mode": "open", "rate": self.rate}

    async def run(
        self, jobs: Sequence[Job], send: Send, done: Callable[[Any], None], share: Share | None = None
    ) -> float:
        share = share or _all_of(jobs)
        clock = share.clock
        turns = chains(jobs)
        offsets = poisson_offsets(self.rate, len(turns), random.Random(self.seed))
        mine = slice(share.index, None, share.processes)
        backlog = Backlog()
        open_: set[asyncio.Task[None]] = set()

        async def user(jobs: Sequence[Job], scheduled: float) -> None:
            for job in jobs:
                number = backlog.sent(clock.now())
                done(await send(job, scheduled, clock))
                backlog.ended(number, clock.now())
                scheduled = clock.now()

        async with asyncio.TaskGroup() as group:
            for chain, scheduled in zip(turns[mine], offsets[mine], strict=True):
                # Behind schedule there is nothing to wait for: the lateness is part of the request's latency.
                if (ahead := scheduled - clock.now()) > 0:
                    await asyncio.sleep(ahead)
                if reason := backlog.grows(clock.now()):
                    share.tickets.give_up(reason)
                if share.tickets.closed:
                    break
                task = group.create_task(user(chain, scheduled))
                open_.add(task)
                task.add_done_callback(open_.discard)
            while open_:
                if share.tickets.given_up:
                    for task in open_:
                        task.cancel()
                await asyncio.wait(open_, timeout=_LOOK_S)
        return clock.now()


def chains(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs, each with those that wait for its answer."""
    found: list[list[Job]] = []
    last = None
    for job in jobs:
        conversation = getattr(job, "conversation", None)
        if conversation is not None and conversation == last:
            found[-1].append(job)
        else:
            found.append([job])
        last = conversation
    return found


def _all_of(jobs: Sequence[Job]) -> Share:
    return Share(0, 1, Tickets(len(jobs)), Clock())
