"""The host's copy of what the device tables say: lengths and pages of every row by KV pool, output counts.

It moves when a step is committed, exactly once, by the spans that the step's walk declares (E7). A prepared step that
is dropped never moved it, and a committed step always runs, so there is nothing to take back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: Columns of :attr:`Mirror.columns`; after them, of each pool, positions and pages.
OUTPUTS, LIMIT, FEATURES = range(3)
_POOLS = 3


@dataclass(eq=False, slots=True)
class Advance:
    """What one step adds: ``counts[i]`` positions to ``rows[i]``, in each pool of ``pools``; a token to ``sampled``."""

    rows: np.ndarray  #: int64 [n]
    counts: np.ndarray  #: int32 [n]
    pools: tuple[str, ...]
    sampled: np.ndarray  #: int64 [m], those of ``rows`` that get an output token


class Mirror:
    """Arrays of one entry a row; row 0 stays zero. Used by the plan thread only.

    A group of rows repeats its advance step after step: these are only counted, and applied when somebody looks. What a
    group must know of its rows lies in one array, so that it is taken at once.
    """

    def __init__(self, rows: int, pools: Mapping[str, int], max_pages: Mapping[str, int]) -> None:
        """``pools``: page size by KV pool key; ``max_pages``: that a row can hold."""
        self.page_size = dict(pools)
        self._tables = {key: np.zeros((rows, max_pages[key]), np.int32) for key in pools}
        self.columns = np.zeros((_POOLS + 2 * len(pools), rows), np.int32)
        #: by pool: its column of positions; that of its pages is the next
        self.column = {key: _POOLS + 2 * index for index, key in enumerate(pools)}
        self.pages = {key: self.columns[column + 1] for key, column in self.column.items()}
        self._lengths = {key: self.columns[column] for key, column in self.column.items()}
        self._outputs = self.columns[OUTPUTS]
        self.ones = np.ones(rows, np.int32)  #: counts of a step with one token a row
        self.ones.flags.writeable = False
        self._repeated: Advance | None = None
        self._times = 0  #: committed and not yet applied
        self._moved: dict[tuple[str, ...], np.ndarray] = {}  #: by pools: columns that a group's step moves, [c, 1]

    @property
    def lengths(self) -> dict[str, np.ndarray]:
        """Positions of each row by pool, int32."""
        if self._times:
            self._settle()
        return self._lengths

    @property
    def outputs(self) -> np.ndarray:
        """Output tokens of each row, those that are still on the device included, int32."""
        if self._times:
            self._settle()
        return self._outputs

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Everything about ``rows``: a copy, int32 ``[columns, n]``."""
        if self._times:
            self._settle()
        taken: np.ndarray = self.columns.take(rows, axis=1)
        return taken

    def open_row(self, row: int, begins: Mapping[str, tuple[int, Sequence[int]]], outputs: int) -> None:
        """A free row is taken: positions and pages by pool, and the tokens that its owner has already."""
        for key, (length, pages) in begins.items():
            self._lengths[key][row] = length
            self.pages[key][row] = len(pages)
            self._tables[key][row, : len(pages)] = pages
        self._outputs[row] = outputs

    def pages_of(self, row: int, key: str) -> list[int]:
        """The row's pages in pool ``key``, in the order of their positions."""
        pages: list[int] = self._tables[key][row, : self.pages[key][row]].tolist()
        return pages

    def clear_row(self, row: int) -> None:
        """The row is free."""
        for key, lengths in self.lengths.items():
            lengths[row] = 0
            self.pages[key][row] = 0
        self.outputs[row] = 0

    def add_pages(self, rows: np.ndarray, key: str, pages: Sequence[int]) -> None:
        """A page more for each of ``rows``. Raises IndexError if a row has no room for it."""
        counts = self.pages[key][rows]
        self._tables[key][rows, counts] = pages
        self.pages[key][rows] = counts + 1

    def commit(self, advance: Advance) -> np.ndarray:
        """A step of rows in no group will run; int32 ``[m]``: the index of the token that each sampled one gets."""
        positions: np.ndarray = self._outputs[advance.sampled]
        rows = advance.rows
        for key in advance.pools:
            moved = self._lengths[key][rows] + advance.counts
            if (moved > self.pages[key][rows] * self.page_size[key]).any():
                raise AssertionError(f"a row of pool '{key}' grew beyond its pages")
            self._lengths[key][rows] = moved
        self._outputs[advance.sampled] += 1
        return positions

    def repeat(self, advance: Advance) -> None:
        """A step of the group whose ``advance`` this is will run. The caller has seen that its rows have the pages."""
        if advance is not self._repeated:
            if self._times:
                self._settle()
            self._repeated = advance
        self._times += 1

    def _settle(self) -> None:
        advance = self._repeated
        assert advance is not None
        moved = self._moved.get(advance.pools)
        if moved is None:
            columns = [OUTPUTS, *(self.column[key] for key in advance.pools)]
            moved = self._moved[advance.pools] = self.columns.shape[1] * np.array(columns)[:, None]
        # Each place once: a row is in a group once.
        self.columns.reshape(-1)[advance.rows + moved] += self._times
        self._times = 0

    def step_lengths(self, key: str, rows: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
        """Lengths int32 ``[n]`` that a step over ``rows`` will see in pool ``key``, its own positions included."""
        lengths: np.ndarray = self.lengths[key][rows] + np.asarray(counts, np.int32)
        return lengths
