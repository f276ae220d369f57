"""The device tables: one row a running request, all in one buffer of 32-bit words.

Row 0 is the null row that pads batches. The buffer holds one *table* a KV pool and one for what is not a pool's:

- ``kv:KEY`` row: ``[length, -, -, -, page 0, page 1, …]``; a rewritten row is one run of words, so one copy a pool;
- ``row`` row: ``[last token, output count, state slots …, -, sampler block]``.

The plan thread never writes here. It sends row writes (``resident/writes.py``), which the step applies in order before
it runs (E4). Within a step the device itself advances lengths, last token and output count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.worker.sampling.params import ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Words are aligned to 16 bytes where a row part begins.
_ALIGN = 4
#: Column of the first page in a ``kv:`` row; column 0 is the length.
PAGES = 4
LENGTH = 0
LAST_TOKEN = 0
OUTPUT_COUNT = 1
STATE_SLOTS = 2
ROW_TABLE = "row"


def kv_table(key: str) -> str:
    """Name of the table of the KV pool ``key``."""
    return f"kv:{key}"


@dataclass(frozen=True)
class Table:
    """Place of a table in the buffer, in words: row ``r`` begins at ``offset + r * width``."""

    offset: int
    width: int


class TableLayout:
    """Where every table lies. ``max_pages`` = pages that one request can own, per KV pool key."""

    def __init__(self, rows: int, max_pages: dict[str, int], state_pools: Sequence[str]) -> None:
        self.rows = rows
        self.state_pools = tuple(state_pools)
        self.max_pages = dict(max_pages)
        self.tables: dict[str, Table] = {}
        self.sampler_column = _aligned(STATE_SLOTS + len(self.state_pools))
        offset = 0
        widths = {kv_table(key): _aligned(PAGES + pages) for key, pages in max_pages.items()}
        widths[ROW_TABLE] = _aligned(self.sampler_column + ROW_BYTES // 4)
        for name, width in widths.items():
            self.tables[name] = Table(offset, width)
            offset += rows * width
        self.words = offset

    def state_column(self, key: str) -> int:
        """Column of a state pool's slot in the ``row`` table."""
        return STATE_SLOTS + self.state_pools.index(key)


class DeviceTables:
    """The buffer on the device and typed views of it. Only the device thread touches it."""

    def __init__(self, layout: TableLayout, device: torch.device) -> None:
        self.layout = layout
        self.words = torch.zeros(layout.words, dtype=torch.int32, device=device)
        self.lengths: dict[str, torch.Tensor] = {}  #: int32 [rows] by pool key
        self.block_table: dict[str, torch.Tensor] = {}  #: int32 [rows, max_pages] by pool key
        for key, pages in layout.max_pages.items():
            table = self._view(kv_table(key))
            self.lengths[key] = table[:, LENGTH]
            self.block_table[key] = table[:, PAGES : PAGES + pages]
        row = self._view(ROW_TABLE)
        self.last_token = row[:, LAST_TOKEN]  #: int32 [rows]
        self.output_count = row[:, OUTPUT_COUNT]  #: int32 [rows]
        self.state_slots = {key: row[:, layout.state_column(key)] for key in layout.state_pools}  #: int32 [rows]
        first = layout.sampler_column
        self.sampler = row[:, first : first + ROW_BYTES // 4]  #: int32 words [rows, ROW_BYTES // 4]

    def _view(self, name: str) -> torch.Tensor:
        table = self.layout.tables[name]
        rows = self.layout.rows
        return self.words[table.offset : table.offset + rows * table.width].view(rows, table.width)


def _aligned(words: int) -> int:
    return -(-words // _ALIGN) * _ALIGN
