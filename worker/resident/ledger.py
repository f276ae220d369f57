"""What the scheduler counts of every row, and the rows that decode together.

A step of 128 rows costs a few array operations instead of loops over 128 requests; what the members of a group share
is found once, when the group forms.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.protocol import token_rows
from denizen.worker.resident.inputs import StepInputs
from denizen.worker.resident.mirror import Advance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from denizen.worker.models.base import Walk
    from denizen.worker.request import Request
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.resident.page_lists import PageLists
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.sampling.sampler import SamplePlan


class Ledger:
    """Arrays of one entry a row of the device tables. Used by the plan thread only."""

    def __init__(self, rows: int) -> None:
        self.requests: list[Request | None] = [None] * rows  #: owner; also while its holdings wait for its last step
        self._in_flight = np.zeros(rows, np.int32)
        self._group: Group | None = None  #: whose steps were only counted
        self._counted = 0  #: and are still to be added to its rows
        self.decodes = np.zeros(rows, bool)  #: its next step is a decode step
        self.limit = np.zeros(rows, np.int32)  #: most output tokens
        self.features = np.zeros(rows, np.int32)  #: bits of ``sampling.params.Feature``
        self.ids = np.zeros(rows, np.uint64)  #: request ids
        self._stops: Counter[frozenset[int]] = Counter()  #: sets of end ids, and how many rows have each
        self.stop_ids: frozenset[int] = frozenset()  #: of all rows

    @property
    def in_flight(self) -> np.ndarray:
        """Committed steps that hold each row and have not completed, int32."""
        if self._counted:
            assert self._group is not None
            self._in_flight[self._group.rows] += self._counted
            self._counted = 0
        return self._in_flight

    def committed(self, plan: StepPlan) -> None:
        """A step is queued."""
        self._move(plan, 1)

    def completed(self, plan: StepPlan) -> None:
        """A step has run."""
        self._move(plan, -1)

    def _move(self, plan: StepPlan, by: int) -> None:
        if plan.group is None or plan.group is not self._group:
            self.in_flight[plan.advance.rows] += by
            if plan.group is not None:
                self._group = plan.group
        else:
            self._counted += by

    def open(self, row: int, request: Request) -> None:
        """The row belongs to ``request``."""
        assert not self.in_flight[row]
        self.requests[row] = request
        self.limit[row] = request.max_tokens
        self.features[row] = request.params.features
        self.ids[row] = request.id
        stops = request.params.stop_ids
        self._stops[stops] += 1
        if self._stops[stops] == 1:
            self.stop_ids |= stops

    def close(self, row: int) -> None:
        """The row is free."""
        request = self.requests[row]
        assert request is not None
        assert not self.in_flight[row]
        self.requests[row] = None
        self.decodes[row] = False
        stops = request.params.stop_ids
        self._stops[stops] -= 1
        if not self._stops[stops]:
            del self._stops[stops]
            self.stop_ids = frozenset().union(*self._stops)

    def owners(self, rows: np.ndarray) -> list[Request]:
        """The requests of ``rows``."""
        requests = self.requests
        return [request for row in rows.tolist() if (request := requests[row]) is not None]


@dataclass(eq=False, slots=True)
class Group:
    """Rows that decode together, by row number: what their steps have in common until one leaves or joins."""

    requests: list[Request]
    advance: Advance
    slots: np.ndarray  #: int32 [bucket], padded with the null row
    lengths: np.ndarray  #: int32 [n], of the pool that positions follow, before their first step
    first: np.ndarray  #: int32 [n], index of the output token of their first step
    turns: int  #: steps until the first of them needs no more
    due: dict[str, np.ndarray]  #: int32 [n] by pool that they write: the first turn in which a row needs a page
    rest: dict[str, np.ndarray]  #: the same modulo the page size: from then on it needs one in each turn with this rest
    features: np.ndarray  #: int32 [n]
    outputs: list[list[int]]  #: of each request
    stop_ids: frozenset[int]  #: a token that is not in here ends nobody
    packed: np.ndarray  #: TOKENS rows, positions and tokens still to be filled in
    inputs: StepInputs  #: of a step without row writes and page arrays
    buffer: np.ndarray
    sample: SamplePlan | None = None  #: None: it depends on how many tokens there are
    reads: Mapping[str, PageLists] = field(default_factory=dict)  #: by key of the KV pools that decode only reads
    turn: int = 0  #: committed steps

    @property
    def rows(self) -> np.ndarray:
        """int64 [n]"""
        return self.advance.rows

    @classmethod
    def form(cls, ledger: Ledger, mirror: Mirror, rows: np.ndarray, slots: np.ndarray, walk: Walk) -> Group:
        """``rows`` int64, rising; ``walk``: decode."""
        requests = ledger.owners(rows)
        assert not len(rows) or rows[0] > 0
        pools = walk.grows
        lengths = {key: mirror.lengths[key][rows] for key in pools}
        due = {key: mirror.pages[key][rows] * mirror.page_size[key] - lengths[key] for key in pools}
        first = mirror.outputs[rows]
        inputs = StepInputs()
        inputs.put("slots", slots)
        return cls(
            requests,
            Advance(rows, np.ones(len(rows), np.int32), pools, rows),
            slots,
            lengths[walk.positions],
            first,
            int((ledger.limit[rows] - first).min()) if len(rows) else 0,
            due,
            {key: turns % mirror.page_size[key] for key, turns in due.items()},
            ledger.features[rows],
            [request.outputs for request in requests],
            ledger.stop_ids,
            token_rows(ledger.ids[rows]),
            inputs,
            inputs.pack(),
        )
