"""What the scheduler counts of every row, and the rows that decode together.

A step of 128 rows costs a few array operations instead of loops over 128 requests; what the members of a group share
is found once, when the group forms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.protocol import token_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from denizen.worker.request import Request
    from denizen.worker.resident.page_lists import PageLists
    from denizen.worker.sampling.sampler import SamplePlan


class Ledger:
    """Arrays of one entry a row of the device tables. Used by the plan thread only."""

    def __init__(self, rows: int) -> None:
        self.requests: list[Request | None] = [None] * rows  #: owner; also while its holdings wait for its last step
        self.in_flight = np.zeros(rows, np.int32)  #: committed steps that hold the row and have not completed
        self.decodes = np.zeros(rows, bool)  #: its next step is a decode step
        self.limit = np.zeros(rows, np.int32)  #: most output tokens
        self.features = np.zeros(rows, np.int32)  #: bits of ``sampling.params.Feature``
        self.ids = np.zeros(rows, np.uint64)  #: request ids

    def open(self, row: int, request: Request) -> None:
        """The row belongs to ``request``."""
        assert not self.in_flight[row]
        self.requests[row] = request
        self.limit[row] = request.max_tokens
        self.features[row] = request.params.features
        self.ids[row] = request.id

    def close(self, row: int) -> None:
        """The row is free."""
        assert not self.in_flight[row]
        self.requests[row] = None
        self.decodes[row] = False

    def owners(self, rows: np.ndarray) -> list[Request]:
        """The requests of ``rows``."""
        requests = self.requests
        return [request for row in rows.tolist() if (request := requests[row]) is not None]


@dataclass(eq=False, slots=True)
class Group:
    """Rows that decode together, by row number: what their steps have in common until one leaves or joins."""

    requests: list[Request]
    rows: np.ndarray  #: int64 [n]
    ones: np.ndarray  #: int32 [n]
    slots: np.ndarray  #: int32 [bucket], padded with the null row
    outputs: list[list[int]]  #: of each request
    stop_ids: frozenset[int]  #: of all of them
    packed: np.ndarray  #: TOKENS rows, positions and tokens still to be filled in
    sample: SamplePlan | None = None  #: None: it depends on how many tokens there are
    reads: Mapping[str, PageLists] = field(default_factory=dict)  #: by key of the KV pools that decode only reads

    @classmethod
    def form(cls, ledger: Ledger, rows: np.ndarray, slots: np.ndarray) -> Group:
        requests = ledger.owners(rows)
        return cls(
            requests,
            rows,
            np.ones(len(rows), np.int32),
            slots,
            [request.outputs for request in requests],
            frozenset().union(*{request.params.stop_ids for request in requests}),
            token_rows(ledger.ids[rows]),
        )
