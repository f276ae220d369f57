"""The host mirror against the device, through thousands of random events; and what prepared plans may not move."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
import torch
from denizen.kernels.page_gather import page_gather
from denizen.kernels.row_writes import apply_row_writes
from denizen.worker.models.base import RAGGED
from denizen.worker.request import Phase, Request
from denizen.worker.resident.planner import GRAPH_SLOTS, PlanMode
from denizen.worker.sampling.params import SamplingParams

from tests.worker.peer import assert_empty
from tests.worker.toy import ToyModel, serve_toy

STOP = 7


class Machine:
    """A scheduler with a device that computes nothing: it applies row writes and advances lengths.

    It has a queue a walk, as the engine has, and runs the steps of each in order, those of the two in any order.
    """

    def __init__(self, seed: int, **options) -> None:
        self.random = random.Random(seed)
        # A pool that decode only reads needs a full plan of every step, for which all is looked up.
        model = ToyModel(context_pool=options.get("mode") is not PlanMode.HOST_PLAN_FREE)
        self.served = serve_toy(model, buckets=[1, 2, 4, 8], **options)
        self.scheduler = self.served.scheduler
        self.mirror = self.scheduler.mirror
        self.tables = self.served.runner.tables
        self.queued: dict[str, deque] = {"decode": deque(), "prefill": deque()}
        self.overtaken = 0  #: steps that completed after one of the other walk that was committed later
        self.live: dict[int, Request] = {}
        self.prepared = None
        self.counts = dict.fromkeys(("admit", "abort", "stop", "length", "promote", "drop", "late"), 0)
        self._next = 1

    def submit(self) -> None:
        prompt = np.asarray([self.random.randrange(97) for _ in range(self.random.randint(1, 40))], np.int32)
        params = SamplingParams(stop_ids=frozenset({STOP}))
        request = Request(self._next, prompt, params, self.random.randint(1, 30))
        self._next += 1
        self.scheduler.submit(request)
        self.live[request.id] = request
        self.counts["admit"] += 1

    def abort(self) -> None:
        if self.live:
            self._end(self.random.choice(list(self.live.values())), "abort")

    def prepare(self) -> None:
        if self.prepared is None:
            before = self._mirror_state()
            self.prepared = self.scheduler.preplan_decode()
            assert self._mirror_state() == before

    def queue(self) -> None:
        if len(self.queued["decode"]) == GRAPH_SLOTS:
            self.complete("decode")
        prepared, self.prepared = self.prepared, None
        plan = self.scheduler.plan_decode(prepared)
        if prepared is not None:
            self.counts["promote" if plan is prepared else "drop"] += 1
        self._commit(plan)
        if len(self.queued["prefill"]) < GRAPH_SLOTS:
            self._commit(self.scheduler.plan_prefill())

    def _commit(self, step) -> None:
        if step is not None:
            self.scheduler.commit(step)
            self.check_plan(step)
            rows = step.advance.rows
            lengths = {key: self.mirror.lengths[key][rows].copy() for key in self.mirror.lengths}
            self.queued[step.walk].append((step, lengths))

    def complete(self, walk: str | None = None) -> None:
        """The oldest step of ``walk`` (None = of either)."""
        walks = [walk for walk, steps in self.queued.items() if steps]
        if not walks:
            return
        step, expected = self.queued[walk or self.random.choice(walks)].popleft()
        self.overtaken += any(other.number < step.number for steps in self.queued.values() for other, _ in steps)
        self.run(step)
        for key, lengths in expected.items():
            assert self.tables.lengths[key].numpy()[step.advance.rows].tolist() == lengths.tolist()
            assert self.tables.lengths[key][0] == 0
            for row, length in zip(step.advance.rows.tolist(), lengths.tolist(), strict=True):
                count = -(-length // 4)
                assert self.tables.block_table[key][row, :count].tolist() == self.mirror.pages_of(row, key)[:count]
        held = {entry.request: entry.row for entry in step.entries}
        self.scheduler.complete(step)
        for request, row in held.items():
            if request.phase is not Phase.RUNNING:  # its row is free exactly when no other step holds it
                waits = any(request in other.requests for steps in self.queued.values() for other, _ in steps)
                assert waits == (request in self.scheduler._leaving)
                assert waits == (self.scheduler.ledger.requests[row] is request)
        for entry in step.entries:
            if not entry.samples:
                continue
            if entry.request.phase is Phase.ENDED:
                self.counts["late"] += 1
                continue
            token = STOP if self.random.random() < 0.05 else 8
            reason = entry.request.accept(token)
            if reason is not None:
                self._end(entry.request, reason)

    def run(self, step) -> None:
        words = torch.from_numpy(step.buffer)
        sections = {name: words[b:e].view(shape) for name, (b, e, shape) in step.inputs.sections.items()}
        if "runs" in sections:
            apply_row_writes(self.tables.words, sections["runs"], sections["payload"])
        counts = step.advance.counts
        for key, span in self.served.model.walks[step.walk].streams.items():
            if span:
                self.tables.lengths[key][step.advance.rows] += torch.from_numpy(
                    counts if span == RAGGED else counts * span
                )

    def check_plan(self, step) -> None:
        """The mirror's page counts, padding included, equal what the tables would give once the step runs."""
        assert set(step.reads) == ({"context"} & set(step.modes) if step.walk == "decode" else set())
        for key in step.modes:
            lists = step.reads.get(key)
            indptr = step.inputs.section(step.buffer, f"indptr:{key}") if lists is None else lists.indptr
            if indptr is None:
                continue
            lengths = [self.mirror.lengths[key][row] for row in step.advance.rows]
            lengths += [1] * (step.bucket - len(lengths))
            counts = [max(1, -(-int(length) // 4)) for length in lengths]
            assert indptr.tolist() == np.concatenate([[0], np.cumsum(counts)]).tolist()
            if lists is not None:
                owned = [request.held.pages[key][:count] for request, count in zip(step.requests, counts, strict=False)]
                padding = step.bucket - len(owned)
                assert lists.indices.tolist() == [page for pages in owned for page in pages] + [0] * padding
                assert lists.last_page_len.tolist() == [(int(length) - 1) % 4 + 1 for length in lengths]

    def check(self) -> None:
        """The mirror equals what the requests say, from scratch."""
        lengths = {key: np.zeros_like(values) for key, values in self.mirror.lengths.items()}
        pages = {key: np.zeros_like(values) for key, values in self.mirror.pages.items()}
        owned = dict.fromkeys(lengths, 0)
        pages_held = {key: [] for key in lengths}
        for request in self.scheduler.running:
            planned = int(self.mirror.outputs[request.row])
            assert planned >= len(request.outputs)
            decoded = planned - (len(request.tokens) - len(request.prompt)) - 1
            for key in lengths:
                written = request.computed + (max(decoded, 0) if key == "self" else 0)
                lengths[key][request.row] = written
                pages[key][request.row] = len(request.held.pages[key])
                owned[key] += len(request.held.pages[key])
                pages_held[key] += request.held.pages[key]
        assert all(len(set(pages)) == len(pages) for pages in pages_held.values()), "a page has two owners"
        settled = np.ones(self.scheduler.rows.slots, bool)
        settled[[held.row for held in self.scheduler._leaving.values()]] = False
        for key in lengths:
            assert (self.mirror.lengths[key] == lengths[key])[settled].all()
            assert (self.mirror.pages[key] == pages[key])[settled].all()
            leaving = sum(len(held.pages[key]) for held in self.scheduler._leaving.values())
            ahead = sum(len(pages) for pool, _, pages in self.prepared.appended if pool == key) if self.prepared else 0
            assert self.scheduler.kv[key].used == owned[key] + leaving + ahead

    def check_walks(self) -> None:
        """No row is in steps of both walks, and the ledger knows how many hold it."""
        rows = {walk: [step.advance.rows for step, _ in steps] for walk, steps in self.queued.items()}
        walks = {walk: np.concatenate([np.empty(0, np.int64), *parts]) for walk, parts in rows.items()}
        assert not np.intersect1d(*walks.values()).size
        held = np.bincount(np.concatenate(list(walks.values())), minlength=self.scheduler.rows.slots)
        assert (held == self.scheduler.ledger.in_flight).all()

    def _end(self, request: Request, reason: str) -> None:
        del self.live[request.id]
        self.scheduler.end(request)
        self.counts[reason] += 1

    def _mirror_state(self) -> list[bytes]:
        return [values.tobytes() for part in (self.mirror.lengths, self.mirror.pages) for values in part.values()]


@pytest.mark.parametrize("mode", PlanMode)
def test_mirror_never_drifts_from_a_recomputed_plan(mode):
    looking = random.Random(2)
    machine = Machine(seed=1, kv_tokens=72, max_rows=8, prefill_chunk=16, mode=mode)
    events = [machine.submit, machine.abort, machine.prepare, machine.queue, machine.complete]
    for _ in range(10_000):
        weights = [2 if len(machine.live) < 14 else 0, 0.4, 3, 6, 6]
        machine.random.choices(events, weights)[0]()
        if looking.random() < 0.5:  # to look settles what the mirror and the ledger have only counted
            machine.check_walks()
            machine.check()
    # Every kind of event took part.
    assert min(machine.counts.values()) > 50, machine.counts
    assert machine.overtaken > 500
    assert machine.scheduler.preemptions > 25
    for _ in range(10_000):
        if not machine.live:
            break
        machine.queue()
        machine.complete()
        machine.check()
    while any(machine.queued.values()):
        machine.complete()
    if machine.prepared is not None:
        machine.scheduler.planner.drop(machine.prepared)
    assert_empty(machine.served)


def _running(served, requests: int, prompt: int):
    """A scheduler with ``requests`` rows that decode next, and their machine-free commits."""
    for index in range(requests):
        served.scheduler.submit(Request(index + 1, np.full(prompt + index, 3, np.int32), SamplingParams(), 50))
    while len(served.scheduler.decodable()) < requests:
        plan = served.scheduler.plan_prefill()
        served.scheduler.commit(plan)
        served.scheduler.complete(plan)
    return served.scheduler


def _appending(scheduler):
    """Decodes until the next step appends pages; that step, prepared."""
    for _ in range(20):
        prepared = scheduler.preplan_decode()
        if prepared.appended:
            return prepared
        scheduler.commit(prepared)
    raise AssertionError("the test needs a plan that takes pages")


def _same(a, b) -> bool:
    return a.buffer.tolist() == b.buffer.tolist() and a.inputs.sections == b.inputs.sections


@pytest.mark.parametrize("resident", [True, False])
def test_a_dropped_plan_equals_never_prepared(resident):
    schedulers = [_running(serve_toy(resident=resident, mode=PlanMode.FULL), 3, 8) for _ in range(2)]
    dropped, other = map(_appending, schedulers)
    for scheduler, plan in zip(schedulers, (dropped, other), strict=True):
        scheduler.planner.drop(plan)
    for _ in range(9):
        plans = [scheduler.plan_decode() for scheduler in schedulers]
        assert _same(*plans)
        for scheduler, plan in zip(schedulers, plans, strict=True):
            scheduler.commit(plan)
        if (again := schedulers[0].preplan_decode()) is not None:
            schedulers[0].planner.drop(again)


def test_a_promoted_plan_equals_one_made_in_time():
    schedulers = [_running(serve_toy(mode=PlanMode.FULL), 3, 8) for _ in range(2)]
    for _ in range(9):
        prepared = schedulers[0].preplan_decode()
        promoted = schedulers[0].plan_decode(prepared)
        assert promoted is prepared
        fresh = schedulers[1].plan_decode()
        assert _same(promoted, fresh)
        schedulers[0].commit(promoted)
        schedulers[1].commit(fresh)


def test_a_plan_for_other_rows_is_dropped_and_its_pages_return():
    served = serve_toy()
    scheduler = _running(served, 3, 8)
    prepared = _appending(scheduler)
    used = scheduler.kv["self"].used
    ended = scheduler.running[1]
    row, held = ended.row, len(ended.held.pages["self"])
    scheduler.end(ended)
    plan = scheduler.plan_decode(prepared)
    assert plan is not prepared
    own = sum(row == prepared.advance.rows[place] for _, places, _ in prepared.appended for place in places)
    assert scheduler.kv["self"].used == used - own - (held if not scheduler.leaving else 0)
    assert [entry.request for entry in plan.entries] == scheduler.running


@pytest.mark.parametrize("lengths", [[1], [3, 4, 5], [4, 8, 16], [1, 2, 31, 64]])
def test_host_page_arrays_equal_the_gather_from_the_tables(lengths):
    """For every length around page boundaries, padding included."""
    served = serve_toy(mode=PlanMode.FULL, buckets=[1, 2, 4, 8])
    scheduler = served.scheduler
    for index, length in enumerate(lengths):
        scheduler.submit(Request(index + 1, np.full(length, 3, np.int32), SamplingParams(), 9))
    while len(scheduler.decodable()) < len(lengths):
        plan = scheduler.plan_prefill()
        scheduler.commit(plan)
        served.runner.run(plan)
        scheduler.complete(plan)
    for _ in range(6):
        plan = scheduler.plan_decode()
        scheduler.commit(plan)
        served.runner.run(plan)  # the tables now hold this step's lengths and pages
        sections = {name: torch.from_numpy(plan.buffer)[b:e] for name, (b, e, _) in plan.inputs.sections.items()}
        slots = sections["slots"]
        step_lengths = served.runner.tables.lengths["self"][slots.long()]
        indptr, last = torch.zeros(len(slots) + 1, dtype=torch.int32), torch.zeros(len(slots), dtype=torch.int32)
        indices = torch.full((200,), -1, dtype=torch.int32)
        table = served.runner.tables.block_table["self"]
        page_gather(slots, table, step_lengths, 4, 0, indptr, indices, last)
        assert sections["indptr:self"].tolist() == indptr.tolist()
        assert sections["indices:self"].tolist() == indices[: indptr[-1]].tolist()
        assert sections["last_page_len:self"].tolist() == last.tolist()
        scheduler.complete(plan)
