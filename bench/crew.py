"""The processes that send a run's requests: one, this one, or several that share one schedule."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from denizen.bench.errors import BenchError
from denizen.bench.load import Clock, Share, Tickets
from denizen.bench.strain import Strain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from multiprocessing.sharedctypes import Synchronized
    from typing import Any

    from denizen.bench.api import Target
    from denizen.bench.load import Arrivals, Job
    from denizen.bench.schema import Attempt

    Counter = Synchronized[int]
    Pass = tuple[list[Any], list[Strain], str | None]

#: All have received their jobs by then, even on a busy machine they only have to wake up.
_HEAD_START = 0.05


@dataclass(frozen=True)
class Limits:
    """When no more is sent in a pass, though there are jobs left; what is open is still answered."""

    on_error: bool = False
    """Once a request has failed."""
    seconds: float | None = None


class Crew:
    """Use as a context manager; the processes live as long as it does."""

    def __init__(self, target: Target, processes: int, limits: Limits | None = None) -> None:
        self._target = target
        self._limits = limits or Limits()
        self.stopped: str | None = None
        """Why the last pass sent no more, if the server fell behind ever further."""
        context = multiprocessing.get_context("spawn")
        self._next: Counter = context.Value("q", 0)
        self._finished: Counter = context.Value("q", 0)
        self._pipes: list[Connection] = []
        self._children: list[SpawnProcess] = []
        for index in range(processes if processes > 1 else 0):
            ours, theirs = context.Pipe()
            child = context.Process(
                target=_child, args=(index, processes, target, theirs, self._next, self._finished), daemon=True
            )
            child.start()
            theirs.close()
            self._pipes.append(ours)
            self._children.append(child)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            child.terminate()
            child.join()

    def run(
        self, arrivals: Arrivals, jobs: Sequence[Job], progress: Callable[[int], object]
    ) -> tuple[list[Any], list[Strain]]:
        """Sends all jobs; records by index, and the strain of each process. `progress` gets increments.

        Raises BenchError if a process ends or cannot go on.
        """
        if not self._children:
            tickets = Tickets(len(jobs))
            share = Share(0, 1, tickets, Clock())
            records, strains, self.stopped = _run(self._target, arrivals, jobs, share, progress, self._limits)
            return sorted(records, key=attrgetter("index")), strains
        self._next.value = self._finished.value = 0
        for pipe in self._pipes:
            pipe.send((arrivals, jobs, self._limits))
        self._answers(lambda _: None)
        for pipe in self._pipes:
            pipe.send(time.perf_counter() + _HEAD_START)
        shown = 0

        def show(_: object = None) -> None:
            nonlocal shown
            now = self._finished.value
            progress(now - shown)
            shown = now

        passes: list[Pass] = self._answers(show)
        show()
        records = sorted((record for part, _, _ in passes for record in part), key=attrgetter("index"))
        self.stopped = next((reason for _, _, reason in passes if reason is not None), None)
        return records, [strain for _, strains, _ in passes for strain in strains]

    def _answers(self, meanwhile: Callable[[object], object]) -> list[Pass]:
        """One answer of each process, as they come."""
        answers: list[Pass] = []
        pending: list[Any] = list(self._pipes)
        while pending:
            for pipe in wait(pending, 0.1):
                index = self._pipes.index(cast("Connection", pipe))
                try:
                    answer = self._pipes[index].recv()
                except EOFError:
                    self._children[index].join()
                    code = self._children[index].exitcode
                    raise BenchError(f"load-generating process {index} ended with exit status {code}") from None
                if isinstance(answer, BaseException):
                    raise answer
                answers.append(answer)
                pending.remove(pipe)
            meanwhile(None)
        return answers


def _run(
    target: Target,
    arrivals: Arrivals,
    jobs: Sequence[Job],
    share: Share,
    progress: Callable[[int], object],
    limits: Limits,
) -> Pass:
    try:
        return asyncio.run(_send(target, arrivals, jobs, share, progress, limits))
    except ExceptionGroup as group:
        if (ours := group.subgroup(BenchError)) is not None:
            raise ours.exceptions[0] from None
        raise


async def _send(
    target: Target,
    arrivals: Arrivals,
    jobs: Sequence[Job],
    share: Share,
    progress: Callable[[int], object],
    limits: Limits,
) -> Pass:
    records: list[Attempt] = []

    def done(record: Attempt) -> None:
        records.append(record)
        progress(1)
        if limits.on_error and record.error is not None:
            share.tickets.close()

    if limits.seconds is not None:
        asyncio.get_running_loop().call_later(limits.seconds - share.clock.now(), share.tickets.close)
    async with target.connect() as client, Strain() as strain:
        await arrivals.run(jobs, client.send, done, share)
    return records, [strain], share.tickets.reason


def _child(index: int, processes: int, target: Target, pipe: Connection, following: Counter, finished: Counter) -> None:
    # Ctrl-C reaches the whole process group; the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def progress(count: int) -> None:
        with finished.get_lock():
            finished.value += count

    while True:
        try:
            arrivals, jobs, limits = pipe.recv()
            pipe.send(None)
            share = Share(index, processes, Tickets(len(jobs), following), Clock(pipe.recv()))
        except EOFError:
            return
        try:
            answer: Pass | BenchError = _run(target, arrivals, jobs, share, progress, limits)
        except BenchError as error:
            answer = error
        pipe.send(answer)
