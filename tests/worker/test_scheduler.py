"""Admission, chunked prefill, fairness and preemption, without a device: steps complete when the test says so."""

from __future__ import annotations

import random
import resource
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from denizen.worker import capacity
from denizen.worker.admission import Admission
from denizen.worker.errors import CapacityError, RequestError
from denizen.worker.memory import zeros
from denizen.worker.pools.kv import KvPool
from denizen.worker.pools.state import SlotPool
from denizen.worker.request import Phase, Request
from denizen.worker.sampling.params import SamplingParams

from tests.worker.peer import assert_empty
from tests.worker.toy import serve_toy

if TYPE_CHECKING:
    from collections.abc import Callable


def _request(id: int, prompt: int, max_tokens: int = 8) -> Request:
    return Request(id, np.full(prompt, id % 90, np.int32), SamplingParams(), max_tokens)


class Loop:
    """Schedules as the engine does, up to ``depth`` steps of each walk ahead; tokens are all 1.

    Prefill steps arrive at once where nothing decodes, else after ``late`` (called for each) iterations.
    """

    def __init__(self, served, depth: int = 2, late: Callable[[], int] = lambda: 0) -> None:
        self.scheduler = served.scheduler
        self.depth = depth
        self.late = late
        self.decodes: deque = deque()
        self.prefills: deque[list] = deque()  #: [iterations to go, plan]
        self.order: list[int] = []  #: requests in the order in which they ended
        self.first: list[int] = []  #: requests in the order of their first token
        self.largest_prefill = 0

    def iterate(self) -> bool:
        """One iteration; False if there was nothing to do."""
        queued = False
        plan = self.scheduler.plan_decode()
        if plan is not None:
            self.scheduler.commit(plan)
            self.decodes.append(plan)
            queued = True
        queued = self.queue_prefill() or queued
        waited = bool(self.decodes) and (len(self.decodes) >= self.depth or not queued)
        if waited:
            self.complete(self.decodes.popleft())
        for flight in self.prefills:
            flight[0] -= 1
        while self.prefills and (self.prefills[0][0] < 0 or not (self.decodes or queued)):
            self.complete(self.prefills.popleft()[1])
            waited = True
        return queued or waited

    def queue_prefill(self) -> bool:
        if len(self.prefills) >= self.depth or (plan := self.scheduler.plan_prefill()) is None:
            return False
        self.scheduler.commit(plan)
        self.prefills.append([self.late(), plan])
        self.largest_prefill = max(self.largest_prefill, sum(entry.count for entry in plan.entries))
        return True

    @property
    def busy(self) -> bool:
        return bool(self.decodes or self.prefills)

    def complete(self, plan) -> None:
        self.scheduler.complete(plan)
        for entry in plan.entries:
            request = entry.request
            if not entry.samples or request.phase is Phase.ENDED:
                continue
            if not request.outputs:
                self.first.append(request.id)
            if request.accept(1) is not None:
                self.scheduler.end(request)
                self.order.append(request.id)

    def run(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            if self.scheduler.idle and not self.busy:
                return
            assert self.iterate(), "nothing runs and nothing can be admitted"
        raise AssertionError("no end in sight")


@pytest.mark.parametrize("depth", [1, 2])
def test_no_mix_of_requests_deadlocks_or_starves(depth):
    """Random prompts, lengths and page sizes under heavy page pressure, deferred frees included."""
    for seed in range(60):
        chance = random.Random(seed)
        page = chance.choice([1, 2, 4, 16])
        tokens = min(chance.randint(3, 12) * page * 3, 512)
        served = serve_toy(
            kv_tokens=tokens, page_size=page, max_rows=chance.randint(1, 8), prefill_chunk=chance.choice([1, 5, 64])
        )
        loop = Loop(served, depth, late=lambda chance=chance: chance.choice([0, 0, 1, 5]))
        count = chance.randint(3, 25)
        for id in range(1, count + 1):
            prompt = chance.randint(1, tokens - 1)
            loop.scheduler.submit(_request(id, prompt, chance.randint(1, min(tokens - prompt, 40))))
            for _ in range(chance.randint(0, 6)):
                loop.iterate()
        loop.run()
        assert sorted(loop.order) == list(range(1, count + 1))
        assert_empty(served)


def test_requests_start_first_come_first_served_even_when_a_later_one_would_fit():
    served = serve_toy(kv_tokens=64, max_rows=8)
    loop = Loop(served)
    for id, prompt in ((1, 20), (2, 50), (3, 2), (4, 2)):
        loop.scheduler.submit(_request(id, prompt))
    loop.run()
    assert loop.first == [1, 2, 3, 4]


def test_running_rows_advance_in_every_iteration_of_a_long_prefill():
    served = serve_toy(kv_tokens=512, prefill_chunk=4)
    loop = Loop(served, depth=1)
    short = _request(1, 3, 60)
    loop.scheduler.submit(short)
    while not short.outputs:
        loop.iterate()
    long = _request(2, 100)
    loop.scheduler.submit(long)
    before, iterations = len(short.outputs), 0
    while not long.outputs:
        loop.iterate()
        iterations += 1
    assert iterations >= 25
    assert len(short.outputs) - before == iterations


def test_one_prefill_step_packs_several_requests_within_the_chunk():
    served = serve_toy(prefill_chunk=16)
    loop = Loop(served, depth=1)
    for id in range(1, 7):
        loop.scheduler.submit(_request(id, 5))
    loop.iterate()
    assert len(loop.scheduler.running) == 4
    assert loop.largest_prefill == 16
    loop.run()
    assert loop.largest_prefill == 16


def test_short_prompts_wait_for_each_other_where_many_rows_run():
    served = serve_toy(max_rows=100, kv_tokens=4096, prefill_chunk=640)
    scheduler = served.scheduler
    scheduler.admission = Admission(gather_steps=8)
    loop = Loop(served)
    for id in range(1, 65):
        scheduler.submit(_request(id, 4, 60))
    while not all(request.outputs for request in scheduler.running) or scheduler.waiting:
        loop.iterate()

    def iterations_until_admitted() -> int:
        for count in range(20):
            if not scheduler.waiting:
                return count
            loop.iterate()
        raise AssertionError("never admitted")

    scheduler.submit(_request(100, 4, 60))
    assert iterations_until_admitted() == 9  # nobody else came
    scheduler.submit(_request(101, 4, 60))
    loop.iterate()
    assert len(scheduler.waiting) == 1
    scheduler.submit(_request(102, 4, 60))
    assert iterations_until_admitted() == 1  # two for 65 rows
    scheduler.submit(_request(103, 512 - 61, 60))
    assert iterations_until_admitted() == 9
    loop.run()
    scheduler.submit(_request(104, 4))
    assert iterations_until_admitted() == 1  # few rows run
    loop.run()
    assert_empty(served)


def test_the_youngest_is_preempted_and_returns_before_younger_waiting_ones():
    served = serve_toy(kv_tokens=40, max_rows=3)
    loop = Loop(served, depth=1)
    requests = [_request(id, 9, 20) for id in (1, 2, 3, 4)]
    for request in requests:
        loop.scheduler.submit(request)
    while not loop.scheduler.preemptions:
        loop.iterate()
    waiting = [request.id for request in loop.scheduler.waiting]
    running = [request.id for request in loop.scheduler.running]
    assert running == sorted(running)
    assert waiting == sorted(waiting)
    assert running[-1] < waiting[0]
    loop.run()
    assert loop.order[0] == 1


def test_a_preempted_request_waits_for_its_tokens_in_flight():
    """Symptom: a token lost or doubled when a request is preempted with steps in flight."""
    served = serve_toy(kv_tokens=24, max_rows=2)
    loop = Loop(served, depth=2)
    requests = [_request(id, 6, 14) for id in (1, 2)]
    for request in requests:
        loop.scheduler.submit(request)
    flights = set()
    while not loop.scheduler.idle or loop.busy:
        before = loop.scheduler.preemptions
        assert loop.iterate()
        if loop.scheduler.preemptions > before:
            victim = loop.scheduler.waiting[0]
            flights.add(victim in loop.scheduler._leaving)
            assert victim.held is None
    assert flights, "the test needs a preemption"
    assert all(len(request.outputs) == 14 for request in requests)
    assert_empty(served)


def test_refusals_name_the_parameter_and_the_limit():
    scheduler = serve_toy(kv_tokens=64, max_context=60).scheduler
    with pytest.raises(RequestError, match="together at most 60 fit") as caught:
        scheduler.submit(_request(1, 50, 11))
    assert caught.value.param == "max_tokens"
    scheduler.submit(_request(2, 50, 10))


def test_pools_refuse_to_free_what_nobody_owns():
    pool = KvPool("kv", 4, 16)
    pages = pool.take(2)
    assert pool.take(2) is None
    pool.give(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.give(pages)
    slots = SlotPool("rows", 3)
    slot = slots.take()
    slots.give(slot)
    with pytest.raises(AssertionError, match="freed twice"):
        slots.give(slot)
    assert 0 not in {slots.take(), slots.take()}
    assert slots.take() is None


def test_pools_that_are_too_small_say_what_to_raise():
    with pytest.raises(CapacityError, match="kv_tokens"):
        KvPool("kv", 1, 16)
    with pytest.raises(CapacityError, match="max_rows"):
        SlotPool("rows", 1)


def test_pools_that_somebody_asked_for_and_that_do_not_fit_are_refused_with_their_sizes(monkeypatch):
    """Before a page is counted: a list of all of them may be more than the memory too."""
    monkeypatch.setattr(capacity, "available_bytes", lambda device: 1 << 20)
    assert serve_toy(kv_tokens=8_000).kv_tokens == 8_000
    with pytest.raises(CapacityError, match=r"kv_tokens = 2000000000 and 8 rows take 119.2 GiB; cpu has 0.0 GiB left"):
        serve_toy(kv_tokens=2 * 10**9)
    with pytest.raises(CapacityError, match=r"kv_tokens = 4000000000 is too much: lower it to 2146435072 at most"):
        serve_toy(kv_tokens=4 * 10**9)
    with pytest.raises(CapacityError, match=r"50000 rows take .* lower kv_tokens or max_rows"):
        serve_toy(max_rows=50_000)


def test_pools_cost_no_memory_before_they_are_used():
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident_bytes()
    tensor = zeros((1 << 10, 1 << 18), torch.device("cpu"), torch.bfloat16)
    assert resident_bytes() - before < 64 << 20
    assert tensor.data_ptr() % 64 == 0
    assert not tensor[-1].any()
    tensor[3, 4] = 1.5
    assert float(tensor[3].sum()) == 1.5
