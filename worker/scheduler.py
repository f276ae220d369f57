"""Which requests take part in the next steps of one model: admission, chunked prefill, decode, preemption.

A decode step has every row that decodes; a prefill step has at most ``prefill_chunk`` tokens, several requests packed.
The two walks have queues of their own, and their steps may complete in any order: a request decodes only after its last
prefill step has completed, so that no row is in both. Requests are served first come, first served. When pages run out,
the youngest running request gives its own back and is computed anew later; the oldest can always finish, because a
request that could not fit alone is refused at the door.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.admission import Admission
from denizen.worker.errors import RequestError
from denizen.worker.request import Holdings, Phase, Request
from denizen.worker.resident.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from denizen.worker.pools.kv import KvPool
    from denizen.worker.pools.state import SlotPool
    from denizen.worker.resident.ledger import Group
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.resident.planner import Planner, StepPlan


class Scheduler:
    """The queues of one model, and its accounting of rows, pages and state slots. Used by the plan thread only."""

    def __init__(
        self,
        rows: SlotPool,
        kv: Mapping[str, KvPool],
        state: Mapping[str, SlotPool],
        mirror: Mirror,
        planner: Planner,
        context: int,
        prefill_chunk: int,
        prefill_rows: Sequence[int] = (),
        admission: Admission | None = None,
        whole: bool = False,
    ) -> None:
        """``prefill_chunk``: most tokens of a prefill step; ``prefill_rows``: its sizes in requests, rising, the last
        being the most (none = any number).

        ``whole``: prompts are not split, and a step has just as many requests as one of its sizes, since a row that
        pads it costs as much as a live one. ``prefill_chunk`` holds every prompt.
        """
        self.rows = rows
        self.kv = kv
        self.state = state
        self.mirror = mirror
        self.planner = planner
        self.context = context
        self.prefill_chunk = prefill_chunk
        self.prefill_rows = tuple(prefill_rows) or (rows.capacity,)
        self.whole = whole
        self.waiting: deque[Request] = deque()  #: by arrival
        self.running: list[Request] = []  #: by arrival
        self.admission = admission or Admission()
        self._gathered = 0  #: iterations for which the first waiting request has been kept back
        self.preemptions = 0
        self.ledger = Ledger(rows.slots, mirror)
        self._group: Group | None = None  #: every row that decodes; None: to be formed again
        self._unfinished = 0  #: running requests whose prompts are not computed to the end
        self._arrivals = 0
        self._leaving: dict[Request, Holdings] = {}  #: free once no step in flight holds the row (E5)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def prefills(self) -> bool:
        """There are prompts to compute."""
        return bool(self.waiting) or self._unfinished > 0

    @property
    def leaving(self) -> bool:
        """Steps in flight hold requests that have ended or were preempted."""
        return bool(self._leaving)

    def submit(self, request: Request) -> None:
        """Queues the request. Raises :class:`RequestError` for one that could never run."""
        total = len(request.prompt) + request.max_tokens
        if total > self.context:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.max_tokens}; "
                f"together at most {self.context} fit",
                param="max_tokens",
                code="context_length_exceeded",
            )
        for pool in self.kv.values():
            # The last token is sampled, never written.
            if pool.pages_for(total - 1) > pool.capacity:
                raise RequestError(
                    f"the request needs {total - 1} KV positions; the cache holds {pool.capacity * pool.page_size}; "
                    "lower max_tokens or raise kv_tokens",
                    param="max_tokens",
                    code="context_length_exceeded",
                )
        self._arrivals += 1
        request.arrival = self._arrivals
        self.waiting.append(request)

    def decodable(self) -> list[Request]:
        """Requests whose next step is a decode step, by row."""
        return self._decoding().requests

    def _decoding(self) -> Group:
        """The rows that decode. The group is kept until a row leaves or joins."""
        if self._group is None:
            self._group = self.planner.group(self.ledger, self.ledger.decodes.nonzero()[0])
        return self._group

    def preplan_decode(self) -> StepPlan | None:
        """Prepares the next decode step for the rows as they are now; None if there is none, or pages are short."""
        group = self._decoding()
        return self.planner.prepare_decode(group) if group.requests else None

    def plan_decode(self, prepared: StepPlan | None = None) -> StepPlan | None:
        """The next decode step: ``prepared`` if it still names the right rows, else a new one.

        Preempts when pages are short and none are on their way back.
        """
        group = self._decoding()
        if prepared is not None:
            if prepared.group is group:
                return prepared
            self.planner.drop(prepared)
        while group.requests:
            plan = self.planner.prepare_decode(group)
            if plan is not None:
                return plan
            if self._leaving:  # pages come back when the queued steps complete; meanwhile run the rows that can
                fitting = self._fitting(group)
                return (
                    self.planner.prepare_decode(self.planner.group(self.ledger, fitting, whole=False))
                    if len(fitting)
                    else None
                )
            self._preempt()
            group = self._decoding()
        return None

    def plan_prefill(self) -> StepPlan | None:
        """The next prefill step, requests that begin included. It may follow another one of the same prompt."""
        budget, most = self.prefill_chunk, self.prefill_rows[-1]
        chunks: list[tuple[Request, int]] = []
        for request in self.running if self._unfinished else ():
            left = request.prefill - request.computed
            if left and self._takes(left, budget) and len(chunks) < most:
                chunks.append((request, min(left, budget)))
                budget -= min(left, budget)
        if not chunks and self._gathers():
            return None
        while self.waiting and self._takes(self.waiting[0].length, budget) and len(chunks) < most:
            request = self.waiting[0]
            if not self._admit(request):
                break
            self.waiting.popleft()
            count = min(len(request.tokens), budget)
            chunks.append((request, count))
            budget -= count
        if self.whole and chunks:  # who was admitted and does not fit is first in the next step
            chunks = chunks[: max((rows for rows in self.prefill_rows if rows <= len(chunks)), default=len(chunks))]
        return self.planner.prepare_prefill(chunks) if chunks else None

    def _takes(self, tokens: int, budget: int) -> bool:
        """Whether a prefill step that has room for ``budget`` tokens takes some of ``tokens``."""
        return budget >= tokens if self.whole else budget > 0

    def _gathers(self) -> bool:
        """Whether the waiting prompts shall wait for others, one more iteration."""
        policy = self.admission
        if not self.waiting or self._gathered >= policy.gather_steps:
            self._gathered = 0
            return False
        enough = len(self.running) // policy.gather_rows
        if len(self.waiting) >= enough or sum(request.length for request in self.waiting) >= policy.gather_tokens:
            self._gathered = 0
            return False
        self._gathered += 1
        return True

    def commit(self, plan: StepPlan) -> None:
        """The step is about to be queued on the device."""
        self.planner.commit(plan)
        self.ledger.committed(plan)
        group = plan.group
        if group is None:
            for request, count in zip(plan.requests, plan.advance.counts.tolist(), strict=True):
                request.computed += count
                self._unfinished -= request.computed == request.prefill
            self._find_ends(plan)
            return
        ended = self.ledger.ended() if group.whole else self.ledger.ended_of(group.rows)
        if ended:  # known before the token is: they decode no more
            plan.ends = [bisect_left(group.rows, row) for row in ended]
            self._leave(ended)
        if not group.whole:
            self._group = None

    def _find_ends(self, plan: StepPlan) -> None:
        """Whose last token the committed prefill step gives: they never decode."""
        last = plan.positions + 1 >= self.ledger.limit[plan.advance.sampled]
        plan.ends = last.nonzero()[0].tolist()

    def complete(self, plan: StepPlan) -> None:
        """The step has completed on the device: prompts at their end decode, and what only waited for it is freed."""
        self.ledger.completed(plan)
        if plan.walk == "prefill":
            ends = {plan.sampling[index] for index in plan.ends}
            ready = [r.row for r in plan.sampling if r.phase is Phase.RUNNING and r not in ends]
            if ready:
                self._join(ready)
        self._free_leaving()

    def _free_leaving(self) -> None:
        for request, held in list(self._leaving.items()):
            if not self.ledger.holds(held.row):
                del self._leaving[request]
                self._free(held)

    def keep(self, request: Request) -> Holdings:
        """Somebody reads what the request holds, while a step holds it: until :meth:`let_go` it is not freed, though
        the request may end. Also of one that was preempted, whose last token was under way."""
        held = request.held or self._leaving[request]
        self.ledger.keep(held.row)
        return held

    def let_go(self, row: int) -> None:
        """Ends :meth:`keep`."""
        self.ledger.let_go(row)
        self._free_leaving()

    def _join(self, rows: list[int]) -> None:
        self.ledger.join(rows)
        self._group = None

    def _leave(self, rows: list[int]) -> None:
        self.ledger.leave(rows)
        self._group = None

    def end(self, request: Request) -> None:
        """The request's terminal envelope is decided: it leaves the queues, its holdings go as soon as they may."""
        if request.phase is Phase.RUNNING:
            self.running.remove(request)
            self._release(request)
        elif request.phase is Phase.WAITING:
            self.waiting.remove(request)
        request.phase = Phase.ENDED

    def _admit(self, request: Request) -> bool:
        """Gives a waiting request its row, state slots and the pages of all it knows; False if something is missing."""
        if request in self._leaving or not self.rows.free or not all(pool.free for pool in self.state.values()):
            return False
        spare = len(self.running)  # a page for each running row, or admission would bring on the next preemption
        last = len(request.prompt) + request.max_tokens - 1
        for pool in self.kv.values():
            # One position for the first decode step too, unless the request ends before it.
            if pool.pages_for(min(request.length + 1, last)) + (0 if pool.context else spare) > pool.free:
                return False
        pages = {}
        for key, pool in self.kv.items():
            count = pool.pages_for(request.length)
            if count + 2 * spare < pool.free:  # not scarce: for the first decode steps too
                count = pool.pages_for(min(request.length + self.planner.ahead[key], last))
            taken = pool.take(count)
            assert taken is not None
            pages[key] = taken
        row = self.rows.take()
        assert row is not None
        state = {}
        for key, slots in self.state.items():
            slot = slots.take()
            assert slot is not None
            state[key] = slot
        begins = {key: (pool.context, pages[key]) for key, pool in self.kv.items()}
        self.mirror.open_row(row, begins, len(request.outputs))
        self.ledger.open(row, request)
        request.begin(Holdings(row, self.mirror, state))
        self._unfinished += 1
        self.running.append(request)  # who waited first was admitted first, so that it is the youngest
        return True

    def _fitting(self, group: Group) -> np.ndarray:
        """The rows of the oldest requests whose next pages are there: int64 ``[n]``, rising."""
        free = {key: pool.free for key, pool in self.kv.items()}
        fitting = []
        for request in sorted(group.requests, key=lambda request: request.arrival):
            short = self.planner.pages_short(request)
            if all(free[key] >= count for key, count in short.items()):
                for key, count in short.items():
                    free[key] -= count
                fitting.append(request.row)
        return np.array(sorted(fitting), np.int64)

    def _preempt(self) -> None:
        """Takes the holdings of the youngest running request; it waits, before all younger ones, to begin anew."""
        self.preemptions += 1
        request = self.running.pop()
        self._release(request)
        request.phase = Phase.WAITING
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        held, request.held = request.held, None
        assert held is not None
        if self.ledger.decodes[held.row]:
            self._leave([held.row])
        self._unfinished -= request.computed < request.prefill
        if self.ledger.holds(held.row):
            self._leaving[request] = held
        else:
            self._free(held)

    def _free(self, held: Holdings) -> None:
        for key, pages in held.pages.items():
            self.kv[key].give(pages)
        self.mirror.clear_row(held.row)
        self.ledger.close(held.row)
        self.rows.give(held.row)
        for key, slot in held.state.items():
            self.state[key].give(slot)
