"""Accounting of one paged KV pool: which pages are free. The storage itself is ``pools/storage.py``."""

from __future__ import annotations

from denizen.worker.errors import CapacityError

#: The page that padding rows read and write; no request ever owns it.
SINK_PAGE = 0


class KvPool:
    """Pages ``1..pages - 1`` of a pool; page 0 is the sink. Used by the plan thread only.

    A page has one owner. Pages of a request that ends go back through the scheduler, which holds them until the newest
    step that uses them has completed.
    """

    def __init__(self, key: str, pages: int, page_size: int, context: int = 0) -> None:
        """``context``: positions that every request holds, whatever its tokens; 0 = as many as its tokens."""
        if pages < 2:
            raise CapacityError(f"KV pool '{key}' needs at least 2 pages of {page_size}; raise kv_tokens")
        self.key = key
        self.pages = pages
        self.page_size = page_size
        self.context = context
        self._free = list(range(pages - 1, SINK_PAGE, -1))
        self._owned = bytearray(pages)

    @property
    def capacity(self) -> int:
        """Pages that requests can own."""
        return self.pages - 1

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages of a request with ``tokens`` tokens."""
        return -(-(self.context or tokens) // self.page_size)

    def take(self, count: int) -> list[int] | None:
        """``count`` pages, or None (and nothing taken) if there are fewer."""
        if count > len(self._free):
            return None
        first = len(self._free) - count
        pages = self._free[first:]
        pages.reverse()
        del self._free[first:]
        for page in pages:
            self._owned[page] = 1
        return pages

    def give(self, pages: list[int]) -> None:
        """Takes pages back. A page that nobody owns is a bug of the caller and raises."""
        for page in pages:
            if not self._owned[page]:
                raise AssertionError(f"page {page} of pool '{self.key}' was freed twice")
            self._owned[page] = 0
        self._free.extend(reversed(pages))
