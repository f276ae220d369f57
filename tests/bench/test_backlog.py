"""When a level of an open loop is called hopeless: queues simulated in virtual time."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING

import pytest
from denizen.bench.backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable

SERVICES: dict[str, Callable[[random.Random], float]] = {
    "fixed": lambda rng: 1.0,
    "exponential": lambda rng: rng.expovariate(1.0),
    "uniform": lambda rng: rng.uniform(0.1, 1.9),
}


def stopped(seed: int, share: float, servers: int, service: str, seconds: float) -> float | None:
    """When `servers` with a mean service of 1 s, at `share` of the rate that they can take, are called overloaded."""
    rng = random.Random(seed)
    backlog, now = Backlog(), 0.0
    free = [0.0] * servers
    ends: list[tuple[float, int]] = []
    while (now := now + rng.expovariate(share * servers)) < seconds:
        while ends and ends[0][0] <= now:
            end, number = heapq.heappop(ends)
            backlog.ended(number, end)
        if backlog.grows(now):
            return now
        number = backlog.sent(now)
        end = max(heapq.heappop(free), now) + SERVICES[service](rng)
        heapq.heappush(free, end)
        heapq.heappush(ends, (end, number))
    return None


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("servers", [1, 16])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_server_that_keeps_up_is_never_stopped(service: str, servers: int, share: float) -> None:
    assert [stopped(seed, share, servers, service, 300.0) for seed in range(20)] == [None] * 20


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("share", [1.5, 3.0, 10.0])
def test_an_overloaded_server_is_stopped_early(service: str, share: float) -> None:
    times = [stopped(seed, share, 16, service, 300.0) for seed in range(20)]
    assert all(time is not None and time < 100.0 for time in times)


def test_before_the_first_answers_nothing_is_said() -> None:
    """The number of open requests grows on any server until then."""
    backlog = Backlog()
    for step in range(4000):
        assert backlog.grows(step / 100) is None
        backlog.sent(step / 100)


def test_the_reason_has_the_numbers() -> None:
    backlog = Backlog()
    reason = None
    for step in range(4000):
        number = backlog.sent(step / 100)
        if number < 8 or number % 4 == 0:
            backlog.ended(number, step / 100)
        if reason := backlog.grows(step / 100):
            break
    assert reason is not None
    assert reason.startswith("overloaded: in the last")
