"""Watches what steps write: between two quiet points only what a step may write has changed.

A fingerprint holds one checksum for each position of each KV pool, for each state slot and for each row of the
sampler's counts, and a copy of the device tables. It is taken between iterations of the engine, when all launched steps
have run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.resident.tables import OUTPUT_COUNT, PAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from denizen.worker.pools.kv import KvPool
    from denizen.worker.pools.state import SlotPool
    from denizen.worker.request import Holdings, Request
    from denizen.worker.served import ServedModel

#: Words of a checksum that are added up at a time, so that a large pool's never lie in memory as a whole.
_CHUNK = 1 << 24


@dataclass(frozen=True)
class _Row:
    """A running request at a quiet point."""

    held: Holdings
    pages: Mapping[str, tuple[int, ...]]
    lengths: Mapping[str, int]  #: positions written, by pool

    def same(self, other: _Row | None) -> bool:
        """Not preempted and admitted anew in between."""
        return other is not None and self.held is other.held


@dataclass(frozen=True)
class _Fingerprint:
    positions: Mapping[str, np.ndarray]  #: int64 [pages, page_size] by KV pool
    slots: Mapping[str, np.ndarray]  #: int64 [slots] by state pool
    tables: Mapping[str, np.ndarray]  #: int32 [rows, width] by table
    counts: np.ndarray  #: int64 [rows]: the sampler's token counts
    rows: Mapping[int, _Row]  #: by request id
    free: Mapping[str, np.ndarray]  #: bool, by what is pooled


class Watch:
    """Compares each quiet point of one model with the one before. Used by the engine's thread."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._before: _Fingerprint | None = None
        scheduler = served.scheduler
        self._pools: dict[str, KvPool | SlotPool] = {
            **{f"kv {key}": pool for key, pool in scheduler.kv.items()},
            **{f"state {key}": pool for key, pool in scheduler.state.items()},
            "rows": scheduler.rows,
        }
        self._taken: dict[str, set[int]] = {name: set() for name in self._pools}
        for name, pool in self._pools.items():
            _note_takes(pool, self._taken[name])
        self._weights: dict[tuple[int, int], torch.Tensor] = {}
        self.checks = 0
        self.positions = 0  #: KV positions that were found unchanged, those of live rows
        self.resting = 0  #: live rows that took part in no step since the check before: states and tables compared

    def forget(self) -> None:
        """The next check has none before it to compare with."""
        self._before = None

    @torch.inference_mode()
    def check(self) -> list[str]:
        """What has changed although no step may change it, or is not as the host believes; then remembers."""
        now = self._fingerprint()
        found = self._against_host(now)
        if self._before is not None:
            found += self._against(self._before, now)
        self._before = now
        for taken in self._taken.values():
            taken.clear()
        self.checks += 1
        return found

    def _fingerprint(self) -> _Fingerprint:
        served, runner = self._served, self._served.runner
        if runner.tables.words.is_cuda:
            torch.cuda.synchronize()
        positions = {}
        for key, pool in runner.attention.items():
            pages, size = pool.keys.shape[1:3]
            sums = self._checksums(pool.keys.flatten(1, 2)) + 3 * self._checksums(pool.values.flatten(1, 2))
            positions[key] = sums.view(pages, size).cpu().numpy()
        slots = {
            key: sum((2 * index + 1) * self._checksums(tensors[name]) for index, name in enumerate(sorted(tensors)))
            .cpu()
            .numpy()
            for key, tensors in runner.state.items()
        }
        layout, words = runner.tables.layout, runner.tables.words.clone().cpu().numpy()
        tables = {
            name: words[table.offset : table.offset + layout.rows * table.width].reshape(layout.rows, table.width)
            for name, table in layout.tables.items()
        }
        counts = self._checksums(_counts(served)[None]).cpu().numpy()
        lengths = {key: tables[f"kv:{key}"][:, 0] for key in positions}
        rows = {request.id: _row(request, lengths) for request in served.scheduler.running}
        free = {name: np.frombuffer(pool._owned, np.uint8) == 0 for name, pool in self._pools.items()}
        return _Fingerprint(positions, slots, tables, counts, rows, free)

    def _checksums(self, tensor: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]`` of ``[layers, n, ...]``. Any change of one word changes it."""
        layers, count = tensor.shape[:2]
        words = tensor.reshape(layers, count, -1)
        words = words.view(torch.int32 if words.element_size() == 4 else torch.int16)
        key = (layers, words.shape[2])
        if key not in self._weights:
            odd = torch.randint(-(1 << 62), 1 << 62, key, generator=torch.Generator().manual_seed(layers)) * 2 + 1
            self._weights[key] = odd.to(tensor.device)
        weights = self._weights[key]
        step = max(1, _CHUNK // (layers * words.shape[2]))
        parts = [
            (words[:, begin : begin + step].long() * weights[:, None]).sum(dim=(0, 2))
            for begin in range(0, count, step)
        ]
        return torch.cat(parts)

    def _against_host(self, now: _Fingerprint) -> list[str]:
        """Lengths of the mirror, pages and state slots of the tables, and the null row."""
        scheduler, found = self._served.scheduler, []
        layout = self._served.runner.tables.layout
        for id, row in now.rows.items():
            held = row.held
            for key, length in row.lengths.items():
                mirror = int(scheduler.mirror.lengths[key][held.row])
                if mirror != length:
                    found.append(f"request {id}: the mirror says {mirror} positions in '{key}', the device {length}")
                count = -(-length // scheduler.kv[key].page_size)
                known = now.tables[f"kv:{key}"][held.row, PAGES : PAGES + count].tolist()
                if known != held.pages[key][:count]:
                    found.append(f"request {id}: pages {known} on the device, {held.pages[key][:count]} on the host")
            if any(row.lengths.values()):
                counts = int(now.tables["row"][held.row, OUTPUT_COUNT]), int(scheduler.mirror.outputs[held.row])
                if counts[0] != counts[1]:
                    found.append(f"request {id}: {counts[0]} output tokens on the device, the mirror says {counts[1]}")
                for key, slot in held.state.items():
                    known = int(now.tables["row"][held.row, layout.state_column(key)])
                    if known != slot:
                        found.append(f"request {id}: state slot {known} on the device, {slot} on the host")
        for name, table in now.tables.items():
            if name != "row" and table[0].any():
                found.append(f"the null row of table '{name}' is {table[0].tolist()}")
        return found

    def _against(self, before: _Fingerprint, now: _Fingerprint) -> list[str]:
        found = []
        rows = {id: row for id, row in before.rows.items() if row.same(now.rows.get(id))}
        for key, sums in now.positions.items():
            fixed = np.repeat(self._untouched(f"kv {key}", before, now)[:, None], sums.shape[1], axis=1)
            owners = np.zeros(len(sums), np.int64)
            for id, row in rows.items():
                pages = np.asarray(row.pages[key], np.int64)
                own = np.ones(pages.size * sums.shape[1], bool)
                # A position is written once, by the step that moves the length beyond it.
                own[row.lengths[key] : now.rows[id].lengths[key]] = False
                fixed[pages] = own.reshape(pages.size, -1)
                owners[pages] = id
                self.positions += row.lengths[key]
            for page, position in np.argwhere(fixed & (sums != before.positions[key])).tolist():
                found.append(f"pool '{key}', page {page}, position {position} has changed; {_owner(int(owners[page]))}")
        resting = {id: row for id, row in rows.items() if row.lengths == now.rows[id].lengths}
        self.resting += len(resting)
        for key, sums in now.slots.items():
            fixed = self._untouched(f"state {key}", before, now)
            owners = np.zeros(len(sums), np.int64)
            for id, row in resting.items():
                fixed[row.held.state[key]] = True
                owners[row.held.state[key]] = id
            for slot in np.flatnonzero(fixed & (sums != before.slots[key])).tolist():
                found.append(f"state pool '{key}', slot {slot} has changed; {_owner(int(owners[slot]))}")
        fixed = self._untouched("rows", before, now)
        for row in resting.values():
            fixed[row.held.row] = True
        for name, table in now.tables.items():
            for index in np.flatnonzero(fixed & (table != before.tables[name]).any(axis=1)).tolist():
                found.append(f"table '{name}', row {index} has changed, which took part in no step")
        for index in np.flatnonzero(fixed & (now.counts != before.counts)).tolist():
            found.append(f"token counts of row {index} have changed, which took part in no step")
        return found

    def _untouched(self, name: str, before: _Fingerprint, now: _Fingerprint) -> np.ndarray:
        """bool: free at both points and in between. Page, slot and row 0 take what padding writes."""
        untouched = before.free[name] & now.free[name]
        untouched[list(self._taken[name])] = False
        untouched[0] = False
        return untouched


def _row(request: Request, lengths: Mapping[str, np.ndarray]) -> _Row:
    held = request.held
    assert held is not None
    written = request.computed > 0  # before its first step the row holds what its last owner left
    return _Row(
        held,
        {key: tuple(pages) for key, pages in held.pages.items()},
        {key: int(values[held.row]) if written else 0 for key, values in lengths.items()},
    )


def _counts(served: ServedModel) -> torch.Tensor:
    sampler = served.runner.sampler
    return getattr(sampler, "state", sampler).counts


def _note_takes(pool: KvPool | SlotPool, taken: set[int]) -> None:
    """What is taken from the pool is also noted, until the next check."""
    take = pool.take

    def noting(*count: int):
        got = take(*count)
        if got is not None:
            taken.update(got if isinstance(got, list) else [got])
        return got

    pool.take = noting


def _owner(id: int) -> str:
    return f"it belongs to request {id}, which did not write there" if id else "it is free"
