"""Several processes that share one schedule."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

import pytest
from denizen.bench.client import TextTarget
from denizen.bench.crew import Crew, Limits
from denizen.bench.errors import BenchError
from denizen.bench.load import ClosedLoop, OpenLoop
from denizen.bench.strain import Strain
from denizen.bench.workload import Job, Workload

from .peer import Behaviour, serving


def jobs(count: int) -> list[Job]:
    return Workload(seed=0, requests=count, output_len=(2, 5), prompt_tokens=3).jobs(0, 0)


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("arrivals", [ClosedLoop(4), ClosedLoop(2), OpenLoop(500.0, seed=1)])
def test_every_job_is_sent_once(arrivals: ClosedLoop | OpenLoop, processes: int) -> None:
    wanted, seen = jobs(20), 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count

    with serving() as peer, Crew(TextTarget(url=peer.url, model="tiny"), processes) as crew:
        for _ in range(2):  # a crew outlives a pass
            records, strains = crew.run(arrivals, wanted, progress)
            assert [record.index for record in records] == list(range(20))
            assert [record.error for record in records] == [None] * 20
            assert [record.completion_tokens for record in records] == [job.max_tokens for job in wanted]
            assert len(strains) == processes
            assert all(record.scheduled <= record.sent <= record.end for record in records)
    assert seen == 40
    assert Counter(body["seed"] for body in peer.requests) == {job.seed: 2 for job in wanted}


def test_a_closed_loop_over_processes_keeps_its_concurrency() -> None:
    """No answer comes until all users have sent; then none is beyond them."""
    with serving(Behaviour(hang=set(range(5)))) as peer:
        target = TextTarget(url=peer.url, model="tiny", timeout=3.0)
        with Crew(target, 2) as crew:
            records, _ = crew.run(ClosedLoop(5), jobs(5), lambda _: None)
        assert len(peer.requests) == 5
    assert all(record.error is not None for record in records)
    # All were open at once: the last was sent before the first gave up.
    assert max(record.sent for record in records) < min(record.end for record in records)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failed_request_may_end_the_pass(processes: int) -> None:
    with (
        serving(Behaviour(refuse={3})) as peer,
        Crew(TextTarget(url=peer.url, model="tiny"), processes, Limits(on_error=True)) as crew,
    ):
        records, _ = crew.run(ClosedLoop(2), jobs(40), lambda _: None)
        assert sum(record.error is not None for record in records) == 1
        assert len(records) < 40
        again, _ = crew.run(ClosedLoop(2), jobs(40), lambda _: None)
    assert [record.error for record in again] == [None] * 40


@pytest.mark.parametrize("processes", [1, 2])
def test_a_pass_may_end_by_time_and_answers_what_is_open(processes: int) -> None:
    with serving() as peer, Crew(TextTarget(url=peer.url, model="tiny"), processes, Limits(seconds=0.1)) as crew:
        records, _ = crew.run(ClosedLoop(2), jobs(5000), lambda _: None)
    assert 0 < len(records) < 5000
    assert all(record.error is None and record.completion_tokens == record.max_tokens for record in records)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_request_that_cannot_be_made_says_so(processes: int) -> None:
    talk = [Job(0, "", [{"role": "user", "content": "x"}], 4, seed=0)]
    with (
        serving() as peer,
        Crew(TextTarget(url=peer.url, model="tiny", endpoint="completions"), processes) as crew,
        pytest.raises(BenchError, match="--endpoint chat"),
    ):
        crew.run(ClosedLoop(1), talk, lambda _: None)


def test_a_process_that_dies_ends_the_run() -> None:
    with serving(Behaviour(hang={0, 1})) as peer, Crew(TextTarget(url=peer.url, model="tiny"), 2) as crew:
        victim = crew._children[0].pid
        assert victim is not None

        def kill(_: int) -> None:
            if len(peer.requests) == 2:
                os.kill(victim, signal.SIGKILL)

        with pytest.raises(BenchError, match="load-generating process 0 ended with exit status -9"):
            crew.run(ClosedLoop(2), jobs(2), kill)


def test_a_hogged_event_loop_shows_as_strain() -> None:
    async def hog() -> Strain:
        async with Strain() as strain:
            await asyncio.sleep(0.05)
            end = time.thread_time() + 1.2
            while time.thread_time() < end:
                pass
            await asyncio.sleep(0.05)
        return strain

    strain = asyncio.run(hog())
    assert max(strain.loop_lag) > 1.0
    assert strain.cpu > 1.0


@pytest.mark.parametrize(("cpu", "wall", "saturated"), [(1.9, 2.0, True), (1.0, 2.0, False), (0.5, 0.5, False)])
def test_saturation_is_a_full_cpu_for_a_while(cpu: float, wall: float, saturated: bool) -> None:
    assert Strain(cpu=cpu, wall=wall).saturated is saturated
