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


@dataclass(eq=False, slots=True)
class Advance:
    """What one step adds: ``counts[i]`` positions to ``rows[i]``, in each pool of ``pools``; a token to ``sampled``."""

    rows: np.ndarray  #: int64 [n]
    counts: np.ndarray  #: int32 [n]
    pools: tuple[str, ...]
    sampled: np.ndarray  #: int64 [m], those of ``rows`` that get an output token


class Mirror:
    """Arrays of one entry a row; row 0 stays zero. Used by the plan thread only.

    A decode step of every row that decodes only moves a *clock*: what such a row counts is held relative to it, from
    :meth:`join` to :meth:`leave`. So a step costs the same for any number of rows, and a row that joins or leaves
    costs nothing for the others.
    """

    def __init__(
        self, rows: int, pools: Mapping[str, int], max_pages: Mapping[str, int], decoded: Sequence[str]
    ) -> None:
        """``pools``: page size by KV pool key; ``max_pages``: that a row can hold; ``decoded``: pools that grow by a
        position in a decode step."""
        self.page_size = dict(pools)
        self.clock = 0  #: decode steps of every row that decodes
        self.decodes = np.zeros(rows, bool)  #: a row's next step is a decode step
        self.pages = {key: np.zeros(rows, np.int32) for key in pools}
        self.decoded = tuple(decoded)
        #: by pool: a clock at which no row that decodes is short of a page yet
        self.enough_until = dict.fromkeys(self.decoded, 0)
        self.ones = np.ones(rows, np.int32)  #: counts of a step with one token a row
        self.ones.flags.writeable = False
        self._tables = {key: np.zeros((rows, max_pages[key]), np.int32) for key in pools}
        #: output counts, then lengths by pool; 64 bits, because the clock never starts anew
        self._counts = np.zeros((1 + len(pools), rows), np.int64)
        still = [key for key in pools if key not in self.decoded]
        self._column = {key: column for column, key in enumerate((*self.decoded, *still), 1)}
        self._lengths = {key: self._counts[column] for key, column in self._column.items()}
        self._moving = self._counts[: 1 + len(self.decoded)]  #: those that the clock moves
        self._relative = tuple(self._moving)

    @property
    def lengths(self) -> dict[str, np.ndarray]:
        """Positions of each row by pool, int64: a copy."""
        return {key: self._settled(column) for key, column in self._column.items()}

    @property
    def outputs(self) -> np.ndarray:
        """Output tokens of each row, those that are still on the device included, int64: a copy."""
        return self._settled(0)

    def _settled(self, column: int, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        counts: np.ndarray = self._counts[column][rows]
        return counts + self.clock * self.decodes[rows] if column < len(self._relative) else counts.copy()

    def relative(self, rows: np.ndarray) -> np.ndarray:
        """Of rows that decode: output counts, then lengths in each pool of ``decoded``, all less the clock.

        A copy, int64 ``[columns, n]``, which holds for as long as they decode.
        """
        taken: np.ndarray = self._moving.take(rows, axis=1)
        return taken

    def length(self, row: int, key: str) -> int:
        """Positions of the row in the pool."""
        column = self._column[key]
        moves = self.decodes[row] and column < len(self._relative)
        return self._counts.item(column, row) + (self.clock if moves else 0)

    def step_lengths(self, key: str, rows: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
        """Lengths int32 ``[n]`` that a step over ``rows`` will see in pool ``key``, its own positions included."""
        return (self._settled(self._column[key], rows) + counts).astype(np.int32)

    def pages_of(self, row: int, key: str) -> list[int]:
        """The row's pages in pool ``key``, in the order of their positions."""
        pages: list[int] = self._tables[key][row, : self.pages[key][row]].tolist()
        return pages

    def short_from(self, key: str, rows: np.ndarray) -> np.ndarray:
        """Of rows that decode: the clock at which each has no place for another position in the pool, int64 ``[n]``."""
        short: np.ndarray = self.pages[key][rows] * self.page_size[key] - self._lengths[key][rows]
        return short

    def open_row(self, row: int, begins: Mapping[str, tuple[int, Sequence[int]]], outputs: int) -> None:
        """A free row is taken: positions and pages by pool, and the tokens that its owner has already."""
        for key, (length, pages) in begins.items():
            self._lengths[key][row] = length
            self.pages[key][row] = len(pages)
            self._tables[key][row, : len(pages)] = pages
        self._counts[0, row] = outputs

    def clear_row(self, row: int) -> None:
        """The row is free."""
        assert not self.decodes[row]
        self._counts[:, row] = 0
        for pages in self.pages.values():
            pages[row] = 0

    def join(self, row: int) -> int:
        """The row, which does not, decodes from now on. Returns its output count, less the clock."""
        # Few rows at a time: plain numbers are quicker than arrays of them.
        assert not self.decodes[row]
        self.decodes[row] = True
        for column in self._relative:
            column[row] -= self.clock
        for key, until in self.enough_until.items():
            short = self.pages[key].item(row) * self.page_size[key] - self._lengths[key].item(row)
            if short < until:
                self.enough_until[key] = short
        return self._counts.item(0, row)

    def leave(self, row: int) -> None:
        """The row, which does, decodes no more."""
        assert self.decodes[row]
        self.decodes[row] = False
        for column in self._relative:
            column[row] += self.clock

    def add_pages(self, rows: np.ndarray, key: str, pages: Sequence[int]) -> None:
        """A page more for each of ``rows``. Raises IndexError if a row has no room for it."""
        counts = self.pages[key][rows]
        self._tables[key][rows, counts] = pages
        self.pages[key][rows] = counts + 1

    def commit(self, advance: Advance) -> np.ndarray:
        """A step of some rows will run; int64 ``[m]``: the index of the token that each sampled one gets."""
        positions = self._settled(0, advance.sampled)
        rows = advance.rows
        for key in advance.pools:
            if (self.step_lengths(key, rows, advance.counts) > self.pages[key][rows] * self.page_size[key]).any():
                raise AssertionError(f"a row of pool '{key}' grew beyond its pages")
            self._lengths[key][rows] += advance.counts
        self._counts[0, advance.sampled] += 1
        return positions

    def tick(self) -> None:
        """A decode step of every row that decodes will run."""
        for key, until in self.enough_until.items():
            if self.clock >= until:
                raise AssertionError(f"a row of pool '{key}' grew beyond its pages")
        self.clock += 1
