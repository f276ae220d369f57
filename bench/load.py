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

from denizen.bench.stats import poisson_offsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from denizen.bench.schema import Record
    from denizen.bench.workload import Job


class Clock:
    """Monotonic seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start


if TYPE_CHECKING:
    Send = Callable[[Job, float, Clock], Awaitable[Record]]


class Arrivals(Protocol):
    """An arrival model."""

    @property
    def label(self) -> str: ...

    def describe(self) -> dict[str, Any]:
        """The `load` entry of a result."""
        ...

    async def run(self, jobs: Sequence[Job], send: Send, done: Callable[[Record], None]) -> float:
        """Sends all jobs, calls `done` with each record, returns the wall seconds that it took."""
        ...


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each sending its next request when its last one is answered."""

    concurrency: int

    @property
    def label(self) -> str:
        return f"c={self.concurrency}"

    def describe(self) -> dict[str, Any]:
        return {"mode": "closed", "concurrency": self.concurrency}

    async def run(self, jobs: Sequence[Job], send: Send, done: Callable[[Record], None]) -> float:
        clock = Clock()
        pending: Iterator[Job] = iter(jobs)

        async def user() -> None:
            for job in pending:
                done(await send(job, clock.now(), clock))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.concurrency, len(jobs))):
                group.create_task(user())
        return clock.now()


@dataclass(frozen=True)
class OpenLoop:
    """Poisson arrivals at `rate` requests a second, whatever the server does."""

    rate: float
    seed: int

    @property
    def label(self) -> str:
        return f"{self.rate:g}/s"

    def describe(self) -> dict[str, Any]:
        return {"mode": "open", "rate": self.rate}

    async def run(self, jobs: Sequence[Job], send: Send, done: Callable[[Record], None]) -> float:
        offsets = poisson_offsets(self.rate, len(jobs), random.Random(self.seed))
        clock = Clock()

        async def request(job: Job, scheduled: float) -> None:
            done(await send(job, scheduled, clock))

        async with asyncio.TaskGroup() as group:
            for job, scheduled in zip(jobs, offsets, strict=True):
                # Behind schedule there is nothing to wait for: the lateness is part of the request's latency.
                if (ahead := scheduled - clock.now()) > 0:
                    await asyncio.sleep(ahead)
                group.create_task(request(job, scheduled))
        return clock.now()
