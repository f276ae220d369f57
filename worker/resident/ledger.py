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
from denizen.worker.resident.mirror import FEATURES, LIMIT, OUTPUTS, Advance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from denizen.worker.models.base import Walk
    from denizen.worker.request import Request
    from denizen.worker.resident.inputs import StepInputs
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.resident.page_lists import PageLists
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.sampling.sampler import SamplePlan


class Ledger:
    """Arrays of one entry a row of the device tables. Used by the plan thread only."""

    def __init__(self, rows: int, mirror: Mirror) -> None:
        """``mirror``: whose columns a row's limit and features are, because groups take them with the rest."""
        self.requests = np.empty(rows, object)  #: owner or None; also while its holdings wait for its last step
        self.outputs = np.empty(rows, object)  #: the owner's list of tokens
        self.scores = np.empty(rows, object)  #: and of their log-probabilities, which only models that hear deliver
        self._in_flight = np.zeros(rows, np.int32)
        self._group: Group | None = None  #: whose steps were only counted
        self._counted = 0  #: and are still to be added to its rows
        self.decodes = np.zeros(rows, bool)  #: its next step is a decode step
        self.limit = mirror.columns[LIMIT]  #: most output tokens
        self.features = mirror.columns[FEATURES]  #: bits of ``sampling.params.Feature``
        self.packed = token_rows(np.zeros(rows, np.uint64))  #: TOKENS rows with the request's id
        self._stops: Counter[frozenset[int]] = Counter()  #: sets of end ids, and how many rows have each
        self.stop_ids: frozenset[int] = frozenset()  #: of all rows

    @property
    def in_flight(self) -> np.ndarray:
        """Committed steps that hold each row and have not completed, int32."""
        self._settle()
        return self._in_flight

    def committed(self, plan: StepPlan) -> None:
        """A step is queued."""
        if plan.group is None:
            self._in_flight[plan.advance.rows] += 1
            return
        if plan.group is not self._group:
            self._settle()
            self._group = plan.group
        self._counted += 1

    def completed(self, plan: StepPlan) -> None:
        """A step has run."""
        if plan.group is self._group and plan.group is not None:
            self._counted -= 1
        else:
            self._in_flight[plan.advance.rows] -= 1

    def keep(self, row: int) -> None:
        """Something other than a step holds the row; counts like one in flight."""
        self.in_flight[row] += 1

    def let_go(self, row: int) -> None:
        """Ends :meth:`keep`."""
        self.in_flight[row] -= 1

    def _settle(self) -> None:
        if self._counted:
            assert self._group is not None
            self._in_flight[self._group.rows] += self._counted
            self._counted = 0

    def open(self, row: int, request: Request) -> None:
        """The row belongs to ``request``."""
        assert not self.in_flight[row]
        self.requests[row] = request
        self.limit[row] = request.max_tokens
        self.features[row] = request.params.features
        self.outputs[row] = request.outputs
        self.scores[row] = request.scores
        self.packed["request"][row] = request.id
        stops = request.params.stop_ids
        self._stops[stops] += 1
        if self._stops[stops] == 1:
            self.stop_ids |= stops

    def close(self, row: int) -> None:
        """The row is free."""
        request = self.requests[row]
        assert request is not None
        assert not self.in_flight[row]
        self.requests[row] = self.outputs[row] = self.scores[row] = None
        self.decodes[row] = False
        stops = request.params.stop_ids
        self._stops[stops] -= 1
        if not self._stops[stops]:
            del self._stops[stops]
            self.stop_ids = frozenset().union(*self._stops)


@dataclass(eq=False, slots=True)
class Group:
    """Rows that decode together, by row number: what their steps have in common until one leaves or joins.

    Where many rows run, one leaves or joins in every third step, so that forming a group is kept to few operations:
    what only the delivery of tokens needs is found when the first ones arrive. No row of theirs has another owner then,
    because the step that brings them still holds it.
    """

    requests: list[Request]
    advance: Advance
    slots: np.ndarray  #: int32 [bucket], padded with the null row
    lengths: np.ndarray  #: int32 [n], of the pool that positions follow, before their first step
    first: np.ndarray  #: int32 [n], index of the output token of their first step
    left: np.ndarray  #: int32 [n], steps until each needs no more
    turns: int  #: the least of them
    room: dict[str, np.ndarray]  #: int32 [n] by pool that they write: steps for which each row has pages
    short_at: dict[str, int]  #: by pool: the turn in which a page must be appended
    features: np.ndarray  #: int32 [n]
    stop_ids: frozenset[int]  #: a token that is not in here ends nobody
    inputs: StepInputs  #: of a step without row writes and page arrays; its buffer is ``slots``
    ledger: Ledger
    sample: SamplePlan | None = None  #: of the newest step
    reads: Mapping[str, PageLists] = field(default_factory=dict)  #: by key of the KV pools that decode only reads
    turn: int = 0  #: committed steps
    _outputs: list[list[int]] | None = None
    _scores: list[list[float]] | None = None
    _packed: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """int64 [n]"""
        return self.advance.rows

    @property
    def outputs(self) -> list[list[int]]:
        """Of each request, the list of its tokens."""
        if self._outputs is None:
            self._outputs = self.ledger.outputs[self.rows].tolist()
        return self._outputs

    @property
    def scores(self) -> list[list[float]]:
        """Of each request, the list of its tokens' log-probabilities."""
        if self._scores is None:
            self._scores = self.ledger.scores[self.rows].tolist()
        return self._scores

    @property
    def packed(self) -> np.ndarray:
        """TOKENS rows, positions and tokens still to be filled in."""
        if self._packed is None:
            self._packed = self.ledger.packed.take(self.rows)
        return self._packed

    @classmethod
    def form(
        cls, ledger: Ledger, mirror: Mirror, rows: np.ndarray, slots: np.ndarray, walk: Walk, inputs: StepInputs
    ) -> Group:
        """``rows`` int64, rising; ``walk``: decode; ``inputs``: see the attribute."""
        pools = walk.grows
        count = len(rows)
        assert not count or rows[0] > 0
        taken = mirror.take(rows)
        taken[LIMIT] -= taken[OUTPUTS]
        room = {}
        for key in pools:
            column = mirror.column[key]
            steps = room[key] = taken[column + 1]
            steps *= mirror.page_size[key]
            steps -= taken[column]
        least = np.minimum.reduce(taken, axis=1).tolist() if count else [0] * len(taken)
        return cls(
            ledger.requests[rows].tolist(),
            Advance(rows, mirror.ones[:count], pools, rows),
            slots,
            taken[mirror.column[walk.positions]],
            taken[OUTPUTS],
            taken[LIMIT],
            least[LIMIT],
            room,
            {key: least[mirror.column[key] + 1] for key in pools},
            taken[FEATURES],
            ledger.stop_ids,
            inputs,
            ledger,
        )
