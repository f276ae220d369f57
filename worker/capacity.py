"""How many rows and KV positions the memory of a device holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.worker.config import default_rows
from denizen.worker.errors import CapacityError
from denizen.worker.memory import available_bytes
from denizen.worker.pools.storage import kv_bytes_per_page, state_bytes_per_slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from denizen.worker.models.base import Model, StatePoolSpec

#: Part of the available memory that the KV pools and states may take when ``kv_tokens`` is not given, by device type.
_KV_SHARE = {"cpu": 0.3, "cuda": 0.85}
#: Bytes that a CUDA model needs besides: intermediate results of its graphs, the planner's workspace, and a row of the
#: sampler's counts and biases for every row of the tables.
_CUDA_RESERVE = 4 << 30
#: Places in a pool are numbers of 32 bits; rounding up to pages and the sink page stay within.
_MOST_TOKENS = (1 << 31) - (1 << 20)


class Capacity:
    """What one model may take of a device's memory."""

    def __init__(
        self,
        model: Model,
        state_pools: Sequence[StatePoolSpec],
        device: torch.device,
        dtype: torch.dtype,
        page_size: int,
        share: float,
    ) -> None:
        """``share``: of the memory that pools may take, this model's part."""
        self._model = model
        self._device = device
        self._page_size = page_size
        self._available = available_bytes(device)
        self._room = int(self._available * share * _KV_SHARE[device.type])
        if device.type == "cuda":
            self._room -= _CUDA_RESERVE
        #: bytes of a page of every pool that follows the tokens
        self._page = sum(kv_bytes_per_page(spec, page_size, dtype) for spec in model.kv_pools if not spec.context)
        self._row = sum(state_bytes_per_slot(spec, dtype) for spec in state_pools)
        for spec in model.kv_pools:
            self._row += -(-spec.context // page_size) * kv_bytes_per_page(spec, page_size, dtype)
        if device.type == "cuda":
            self._row += 8 * model.vocab_size

    def rows(self, context: int) -> int:
        """Rows where none are asked for: fewer than usual if a row's own context is so large that they do not fit."""
        rows = default_rows(self._device.type, self._model.kind)
        if any(spec.context for spec in self._model.kv_pools):
            rows = max(1, min(rows, self._room // (self._row + self._pages(context) * self._page)))
        return rows

    def tokens(self, rows: int, context: int) -> int:
        """KV positions that the memory holds, at most what all rows could use. Raises :class:`CapacityError`."""
        pages = min((self._room - (rows + 1) * self._row) // self._page, rows * self._pages(context))
        if pages < 1:
            raise CapacityError(
                f"there is no memory for a KV cache on {self._device} beside the weights and {rows} rows; "
                "lower max_rows, or set kv_tokens"
            )
        return pages * self._page_size

    def check(self, rows: int, tokens: int) -> None:
        """Raises :class:`CapacityError` if so many rows and KV positions, which somebody asked for, are too many."""
        if tokens > _MOST_TOKENS:
            raise CapacityError(f"kv_tokens = {tokens} is too much: lower it to {_MOST_TOKENS} at most")
        need = -(-tokens // self._page_size) * self._page + (rows + 1) * self._row
        if need > self._available:
            raise CapacityError(
                f"kv_tokens = {tokens} and {rows} rows take {need / 2**30:,.1f} GiB; {self._device} has "
                f"{self._available / 2**30:,.1f} GiB left; lower kv_tokens or max_rows"
            )

    def _pages(self, context: int) -> int:
        return -(-context // self._page_size)
