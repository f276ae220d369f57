"""Row writes of one step, packed so that one scatter applies them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from denizen.worker.resident.tables import TableLayout


class RowWrites:
    """Collects writes to the device tables on the host. A *run* is words that lie together in one row of a table."""

    def __init__(self, layout: TableLayout) -> None:
        self.layout = layout
        self._runs: list[tuple[int, int]] = []
        self._payload: list[np.ndarray] = []
        self._words: list[tuple[np.ndarray, np.ndarray]] = []  #: runs of one word, their words

    def __len__(self) -> int:
        return len(self._runs) + sum(len(runs) for runs, _ in self._words)

    def put(self, table: str, row: int, column: int, values: np.ndarray | list[int]) -> None:
        """Writes ``values`` (int32 words) to ``table`` from ``(row, column)`` on, within that row: one run."""
        words = np.asarray(values, np.int32)
        place = self.layout.tables[table]
        if not 0 < row < self.layout.rows or column < 0 or column + len(words) > place.width:
            raise AssertionError(f"row write outside table '{table}': row {row}, column {column}, {len(words)} words")
        if not len(words):
            return
        self._runs.append((place.offset + row * place.width + column, len(words)))
        self._payload.append(words)

    def put_words(self, table: str, rows: np.ndarray, columns: np.ndarray, words: list[int]) -> None:
        """Writes one word to each of several rows: runs of their own. The caller keeps within the table."""
        place = self.layout.tables[table]
        runs = np.ones((len(rows), 2), np.int32)
        runs[:, 0] = rows * place.width + (columns + place.offset)
        self._words.append((runs, np.array(words, np.int32)))

    def pack(self) -> tuple[np.ndarray, np.ndarray]:
        """``runs`` int32 ``[n, 2]`` (first word in the tables, words) and ``payload`` int32 ``[m]`` in run order."""
        if len(self._words) == 1 and not self._runs:
            return self._words[0]
        runs = [np.array(self._runs, np.int32).reshape(-1, 2), *(runs for runs, _ in self._words)]
        payload = [np.empty(0, np.int32), *self._payload, *(words for _, words in self._words)]
        return np.concatenate(runs), np.concatenate(payload)
