"""When requests are sent, and from when their latency counts."""

from __future__ import annotations

import asyncio
import random

from denizen.bench.load import Clock, ClosedLoop, OpenLoop
from denizen.bench.schema import Record
from denizen.bench.stats import poisson_offsets
from denizen.bench.summary import summarize
from denizen.bench.workload import Job, Workload


def jobs(count: int) -> list[Job]:
    return Workload(seed=0, requests=count, output_len=(4, 4), prompt_tokens=2).jobs(0, 0)


def test_a_closed_loop_keeps_exactly_its_concurrency_busy() -> None:
    running, most, waiting = 0, 0, asyncio.Event()
    records: list[Record] = []

    async def send(job: Job, scheduled: float, clock: Clock) -> Record:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            waiting.set()
        await waiting.wait()
        running -= 1
        return Record(
            index=job.index,
            max_tokens=job.max_tokens,
            scheduled=scheduled,
            sent=clock.now(),
            end=clock.now(),
            finish_reason="length",
        )

    asyncio.run(ClosedLoop(3).run(jobs(20), send, records.append))
    assert most == 3
    assert sorted(record.index for record in records) == list(range(20))


def test_a_closed_loop_with_fewer_requests_than_users_ends() -> None:
    records: list[Record] = []

    async def send(job: Job, scheduled: float, clock: Clock) -> Record:
        return Record(index=job.index, max_tokens=job.max_tokens, scheduled=scheduled, end=clock.now())

    asyncio.run(ClosedLoop(64).run(jobs(2), send, records.append))
    assert len(records) == 2


def test_a_stalled_server_is_charged_for_every_request_that_was_due() -> None:
    """Coordinated omission: one stall must show in the latency of all requests scheduled during it."""
    records: list[Record] = []
    stall = 0.5

    async def run() -> None:
        lock = asyncio.Lock()

        async def send(job: Job, scheduled: float, clock: Clock) -> Record:
            record = Record(index=job.index, max_tokens=job.max_tokens, scheduled=scheduled, sent=clock.now())
            async with lock:  # a server that answers one request at a time, and stalls on the first
                if job.index == 0:
                    await asyncio.sleep(stall)
            record.end = clock.now()
            return record

        await OpenLoop(rate=200, seed=1).run(jobs(200), send, records.append)

    asyncio.run(run())
    due = [record for record in records if record.scheduled < stall]
    assert len(due) > 50
    for record in due:
        assert record.e2e >= stall - record.scheduled
    summary = summarize(records, 1.0)
    assert summary.e2e is not None
    assert summary.e2e.p99 > 0.8 * stall


def test_a_client_that_blocks_shows_as_lag_and_in_latency() -> None:
    records: list[Record] = []

    async def send(job: Job, scheduled: float, clock: Clock) -> Record:
        record = Record(index=job.index, max_tokens=job.max_tokens, scheduled=scheduled, sent=clock.now())
        if job.index == 0:
            while clock.now() < record.sent + 0.2:
                pass  # a client that hogs its event loop
        record.end = clock.now()
        return record

    asyncio.run(OpenLoop(rate=500, seed=2).run(jobs(50), send, records.append))
    # What was due while the client was busy counts from then, not from when it got round to it.
    assert sorted(record.scheduled for record in records) == poisson_offsets(500, 50, random.Random(2))
    summary = summarize([record for record in records if record.index], 1.0)
    assert summary.lag is not None
    assert summary.e2e is not None
    assert summary.lag.max > 0.15
    assert summary.e2e.max >= summary.lag.max
