"""A request's rows in the device tables as the host writes them: whole, when it begins or without residency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.resident.tables import PAGES, ROW_TABLE, STATE_SLOTS, kv_table
from denizen.worker.sampling.params import Feature
from denizen.worker.sampling.state import SamplerRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from denizen.worker.request import Request
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.resident.writes import RowWrites

#: Pages that a decode step appends in one pool: its key, places of the requests int64 ``[n]``, and a page for each.
Appended = tuple[str, np.ndarray, list[int]]


def write_row(writes: RowWrites, mirror: Mirror, request: Request) -> None:
    """The whole row of a request that begins: one run a KV pool, and one for the rest.

    Its length is 0 where tokens are yet to come, and its context's where it holds one.
    """
    _write(writes, mirror, request, {}, 0, [0, len(request.outputs)])


def rewrite_row(writes: RowWrites, mirror: Mirror, request: Request, appended: Mapping[str, int]) -> None:
    """Without residency: what the host knows of the row, again. Last token and output count are the device's.

    ``appended``: pages by pool that the step appends to it.
    """
    _write(writes, mirror, request, appended, STATE_SLOTS, [])


def _write(
    writes: RowWrites, mirror: Mirror, request: Request, appended: Mapping[str, int], column: int, counts: list[int]
) -> None:
    """``counts``: columns of the ``row`` table from ``column`` to the state slots."""
    held, layout = request.held, writes.layout
    assert held is not None
    for key, own in held.pages.items():
        pages = own + ([appended[key]] if key in appended else [])
        length = mirror.length(held.row, key)
        writes.put(kv_table(key), held.row, 0, [length] + [0] * (PAGES - 1) + pages)
    head = np.zeros(layout.sampler_column - column, np.int32)
    values = counts + [held.state[key] for key in layout.state_pools]
    head[: len(values)] = values
    writes.put(ROW_TABLE, held.row, column, np.concatenate([head, request.params.packed]))


def sampler_rows(request: Request) -> list[SamplerRow]:
    """What the sampler must know of a request that begins beside its block."""
    features = request.params.features
    if not features & (Feature.PENALTY | Feature.BIAS):
        return []
    prompt = request.prompt if features & Feature.PENALTY else None
    return [SamplerRow(request.row, prompt, tuple(request.outputs), request.params.logit_bias)]


def pages_of(index: int, appended: Sequence[Appended]) -> dict[str, int]:
    """The pages by pool that a step appends to the request at ``index``."""
    found = {}
    for key, indices, pages in appended:
        place = int(np.searchsorted(indices, index))
        if place < len(indices) and indices[place] == index:
            found[key] = pages[place]
    return found
