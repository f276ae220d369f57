"""How hard a load-generating process works: whether what it measures may be its own slowness."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_PERIOD = 0.01
#: A pass shorter than this says nothing about the share of a CPU: starting takes much of it.
_SHORTEST = 1.0
#: Of one CPU, from which on an event loop that has a moment's more to do falls behind.
_FULL = 0.9


@dataclass
class Strain:
    """Use as an async context manager around a pass. Times in seconds."""

    loop_lag: list[float] = field(default_factory=list)
    """How late the event loop came back to a task that slept, some hundred times a second."""
    cpu: float = 0.0
    """CPU time of the event loop's thread."""
    wall: float = 0.0

    async def __aenter__(self) -> Strain:
        self._cpu, self._wall = time.thread_time(), time.perf_counter()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cpu, self.wall = time.thread_time() - self._cpu, time.perf_counter() - self._wall
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        del self._task  # what is left can be sent to another process

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + _PERIOD
            await asyncio.sleep(_PERIOD)
            self.loop_lag.append(time.perf_counter() - due)

    @property
    def cpu_share(self) -> float:
        return self.cpu / self.wall if self.wall > 0 else 0.0

    @property
    def saturated(self) -> bool:
        """Whether the event loop had no CPU time to spare."""
        return self.wall >= _SHORTEST and self.cpu_share >= _FULL
