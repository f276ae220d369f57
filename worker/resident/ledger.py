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
from denizen.worker.resident.mirror import Advance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from denizen.worker.request import Request
    from denizen.worker.resident.inputs import StepInputs
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.resident.page_lists import PageLists
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.sampling.sampler import SamplePlan


class Ledger:
    """Arrays of one entry a row of the device tables. Used by the plan thread only.

    Steps in flight are counted as the mirror counts: a step of every row that decodes moves one number when it is
    committed, the mirror's clock, and one when it has completed.
    """

    def __init__(self, rows: int, mirror: Mirror) -> None:
        self.requests = np.empty(rows, object)  #: owner or None; also while its holdings wait for its last step
        self.outputs = np.empty(rows, object)  #: the owner's list of tokens
        self.scores = np.empty(rows, object)  #: and of their log-probabilities, which only models that hear deliver
        self.limit = np.zeros(rows, np.int64)  #: most output tokens
        self.features = np.zeros(rows, np.int32)  #: bits of ``sampling.params.Feature``
        self.packed = token_rows(np.zeros(rows, np.uint64))  #: TOKENS rows with the request's id
        self.decoding = 0  #: rows that decode
        self.asking = 0  #: rows with features
        self._mirror = mirror
        self._held = [0] * rows  #: what holds each row beside steps of every row that decodes
        self._joined = [0] * rows  #: the clock when it began to decode,
        self._left = [0] * rows  #: and when it ceased
        self._completed = 0  #: the clock up to which steps have completed
        self._ends = [0] * rows  #: the clock at which it has its last token
        self._due: dict[int, list[int]] = {}  #: by clock: rows that may have their last token then
        self._stops: Counter[frozenset[int]] = Counter()  #: sets of end ids, and how many rows have each
        self.stop_ids: frozenset[int] = frozenset()  #: of all rows

    @property
    def decodes(self) -> np.ndarray:
        """Whether the next step of each row is a decode step."""
        return self._mirror.decodes

    def join(self, rows: Sequence[int]) -> None:
        """``rows``, which no decode step holds, decode from now on."""
        self.decoding += len(rows)
        for row in rows:
            assert self._left[row] <= max(self._joined[row], self._completed)
            outputs = self._mirror.join(row)
            self._joined[row] = self._mirror.clock
            self._await_end(row, self.limit.item(row) - outputs)

    def leave(self, rows: Sequence[int]) -> None:
        """``rows`` decode no more."""
        self.decoding -= len(rows)
        for row in rows:
            self._mirror.leave(row)
            self._left[row] = self._mirror.clock

    def _await_end(self, row: int, clock: int) -> None:
        self._ends[row] = clock
        self._due.setdefault(clock, []).append(row)

    def ended(self) -> list[int]:
        """After a step of every row that decodes was committed: rows whose last token it gives, rising."""
        clock = self._mirror.clock
        due = self._due.pop(clock, None)
        if due is None:
            return []
        decodes = self.decodes  # who was due may have ended sooner, by an end id, and the row may have another owner
        return sorted({row for row in due if self._ends[row] == clock and decodes[row]})

    def ended_of(self, rows: np.ndarray) -> list[int]:
        """The same after a step of ``rows`` alone, which now end sooner than the others."""
        ended = []
        for row in rows.tolist():
            end = self._ends[row] - 1
            if end <= self._mirror.clock:
                ended.append(row)
            else:
                self._await_end(row, end)
        return ended

    @property
    def in_flight(self) -> np.ndarray:
        """Committed steps that hold each row and have not completed, int64; what else holds it is counted too."""
        return np.array([self.holds(row) for row in range(len(self._held))], np.int64)

    def holds(self, row: int) -> int:
        """:attr:`in_flight` of one row."""
        last = self._mirror.clock if self.decodes[row] else self._left[row]
        return self._held[row] + max(0, last - max(self._joined[row], self._completed))

    def committed(self, plan: StepPlan) -> None:
        """A step is queued."""
        if plan.counted:
            for row in plan.advance.rows.tolist():
                self._held[row] += 1

    def completed(self, plan: StepPlan) -> None:
        """A step has run. Steps of a walk complete in their order."""
        if plan.counted:
            for row in plan.advance.rows.tolist():
                self._held[row] -= 1
        else:
            self._completed += 1

    def keep(self, row: int) -> None:
        """Something other than a step holds the row; counts like one in flight."""
        self._held[row] += 1

    def let_go(self, row: int) -> None:
        """Ends :meth:`keep`."""
        self._held[row] -= 1

    def open(self, row: int, request: Request) -> None:
        """The row belongs to ``request``."""
        assert not self.holds(row)
        self.requests[row] = request
        self.limit[row] = request.max_tokens
        self.features[row] = request.params.features
        self.asking += request.params.features != 0
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
        assert not self.holds(row)
        self.requests[row] = self.outputs[row] = self.scores[row] = None
        self.asking -= request.params.features != 0
        stops = request.params.stop_ids
        self._stops[stops] -= 1
        if not self._stops[stops]:
            del self._stops[stops]
            self.stop_ids = frozenset().union(*self._stops)


@dataclass(eq=False, slots=True)
class Group:
    """Rows that decode together, by row number: what their steps have in common until one leaves or joins.

    Where many rows run, one leaves or joins in every third step, so that forming a group takes few operations. What it
    counts is relative to the mirror's clock, and what only the delivery of tokens needs is found when the first ones
    arrive. No row has another owner then, because the step that brings them still holds it.
    """

    requests: list[Request]
    advance: Advance
    slots: np.ndarray  #: int32 [bucket], padded with the null row
    outputs_at: np.ndarray  #: int64 [n]: the index of the output token of their step at clock 0
    lengths_at: np.ndarray  #: int64 [n]: and their length before it, in the pool that positions follow
    stop_ids: frozenset[int]  #: a token that is not in here ends nobody
    inputs: StepInputs  #: of a step without row writes and page arrays; its buffer is ``slots``
    ledger: Ledger
    whole: bool  #: every row that decodes: its steps move the mirror's clock
    sample: SamplePlan | None = None  #: of the newest step
    reads: Mapping[str, PageLists] = field(default_factory=dict)  #: by key of the KV pools that decode only reads
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
        cls,
        ledger: Ledger,
        mirror: Mirror,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: str,
        inputs: StepInputs,
        whole: bool,
    ) -> Group:
        """``rows`` int64, rising; ``positions``: the pool that positions follow; the rest: see the attributes."""
        count = len(rows)
        assert not count or rows[0] > 0
        counts = mirror.relative(rows)
        return cls(
            ledger.requests[rows].tolist(),
            Advance(rows, mirror.ones[:count], mirror.decoded, rows),
            slots,
            counts[0],
            counts[1 + mirror.decoded.index(positions)],
            ledger.stop_ids,
            inputs,
            ledger,
            whole,
        )
