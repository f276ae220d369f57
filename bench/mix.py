"""Several loads on one server at once: each class of requests with its own arrivals, until the time is over."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from denizen.bench.api import Client, Target
from denizen.bench.load import OpenLoop, Share, Tickets, chains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from denizen.bench.levels import Load
    from denizen.bench.load import Clock, ClosedLoop, Job, Send

#: Blocks of jobs of one pass are numbered from here on, those of the next from twice as far on.
_PASS = 1_000_000
#: Of one class in one process.
_MOST_FAILURES = 100


@dataclass(frozen=True)
class Part:
    """One class of requests (it travels to the load-generating processes in a job's place)."""

    index: int
    name: str
    arrivals: ClosedLoop | OpenLoop
    load: Load[Any, Any]

    def block(self, measured_pass: int, number: int) -> Sequence[Job]:
        """The jobs that a pass takes, in blocks as large as the load's passes."""
        return self.load.jobs(self.index, measured_pass * _PASS + number)


@dataclass(frozen=True)
class Packed:
    """A job with the place of its class in the mix."""

    part: int
    job: Job


@dataclass(frozen=True, kw_only=True)
class MixTarget(Target):
    """One server, as each class of requests sees it."""

    targets: tuple[Target, ...]

    def connect(self) -> Client:
        return MixClient(self)


class MixClient(Client):
    """Sends each job with the client of its class."""

    def __init__(self, target: MixTarget) -> None:
        super().__init__(target)
        self._clients = [one.connect() for one in target.targets]
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Client:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def send(self, job: Packed, scheduled: float, clock: Clock) -> Any:
        return await self._clients[job.part].send(job.job, scheduled, clock)


@dataclass(frozen=True)
class Mix:
    """Runs parts side by side for `seconds` (:class:`denizen.bench.load.Arrivals`); its jobs are the parts.

    What is open when the time is over is still answered. Since nobody knows how many jobs a closed loop will take,
    each process makes them as they are needed, and sends those whose turn is its own.
    """

    seconds: float
    measured_pass: int

    @property
    def label(self) -> str:
        return f"{self.seconds:g} s"

    @property
    def users(self) -> int | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"mode": "mixed", "seconds": self.seconds}

    async def run(
        self, jobs: Sequence[Any], send: Send, done: Callable[[Any], None], share: Share | None = None
    ) -> float:
        assert share is not None, "a mix is run by a crew"
        async with asyncio.TaskGroup() as group:
            for part in jobs:
                group.create_task(self._run_part(part, send, done, share))
        return share.clock.now()

    async def _run_part(self, part: Part, send: Send, done: Callable[[Any], None], share: Share) -> None:
        async def send_packed(job: Job, scheduled: float, clock: Clock) -> Any:
            return await send(Packed(part.index, job), scheduled, clock)

        failed = itertools.count(1)

        def done_named(record: Any) -> None:
            record.level = part.name
            done(record)
            # Failures may come faster than answers ever do.
            if record.error is not None and next(failed) == _MOST_FAILURES:
                tickets.give_up(f"the pass ended after {_MOST_FAILURES} failures: {record.error}")

        tickets = _NamedTickets(part.name, share.tickets)
        own = Share(share.index, share.processes, tickets, share.clock)
        if isinstance(part.arrivals, OpenLoop):
            count = arrivals_within(part.arrivals, self.seconds)
            await part.arrivals.run(self._first(part, count), send_packed, done_named, own)
        else:
            await self._users(part, part.arrivals.concurrency, send_packed, done_named, own)

    async def _users(self, part: Part, count: int, send: Send, done: Callable[[Any], None], share: Share) -> None:
        clock, waiting = share.clock, self._chains(part, share)

        async def user() -> None:
            while (free := clock.now()) < self.seconds and not share.tickets.closed:
                for job in next(waiting):
                    done(await send(job, free, clock))
                    free = clock.now()

        await asyncio.sleep(-clock.now())
        async with asyncio.TaskGroup() as group:
            for _ in range(count)[share.index :: share.processes]:
                group.create_task(user())

    def _chains(self, part: Part, share: Share) -> Iterator[list[Job]]:
        """The jobs that fall to a process, without an end; each with those that wait for its answer."""
        index, turn = 0, itertools.cycle(range(share.processes))
        for number in itertools.count():
            for chain in chains(part.block(self.measured_pass, number)):
                if next(turn) == share.index:
                    yield [_numbered(job, index + place) for place, job in enumerate(chain)]
                index += len(chain)

    def _first(self, part: Part, count: int) -> list[Job]:
        """The jobs of the first `count` users of an open loop."""
        found: list[Job] = []
        for number in itertools.count():
            found.extend(part.block(self.measured_pass, number))
            if len(chains(found)) >= count:
                break
        jobs = [job for chain in chains(found)[:count] for job in chain]
        return [_numbered(job, index) for index, job in enumerate(jobs)]


def arrivals_within(loop: OpenLoop, seconds: float) -> int:
    """How many requests of an open loop are due before `seconds`; at least one, at 0."""
    rng = random.Random(loop.seed)
    count, now = 0, 0.0
    while now < seconds:
        count, now = count + 1, now + rng.expovariate(loop.rate)
    return count


class _NamedTickets(Tickets):
    """Those of the whole mix, for a part: what closes one class ends the pass for all."""

    def __init__(self, name: str, whole: Tickets) -> None:
        super().__init__(0)
        self._name, self._whole = name, whole

    @property
    def closed(self) -> bool:
        return self._whole.closed

    @property
    def given_up(self) -> bool:
        return self._whole.given_up

    def close(self) -> None:
        self._whole.close()

    def give_up(self, reason: str) -> None:
        self._whole.give_up(f"{self._name}: {reason}")


def _numbered(job: Any, index: int) -> Job:
    numbered: Job = dataclasses.replace(job, index=index)
    return numbered
